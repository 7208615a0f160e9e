"""The paper's memory: one sketch of the per-example gradients of the true logit, rows of length p."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..batches import Output, batch_size, true_logit
from ..errors import NonFiniteError, StorageError
from ..linalg import gram
from ..parameters import ProtectedParameters
from ..projector import BasisProjector
from ..signals import GradientSignals
from ..sketch import REGISTRY as SKETCHES
from ..sketch import AllRows, ProductSketch, SecondMoment, Sketch
from ..theory.bounds import nystrom_error
from .base import Held, Memory


class GradientMemory(Memory):
    """One sketch of all gradients; the projector is hard, on the sketch's basis.

    The basis stands in the sketch's own memory, and is used up by the next observe. With `basis_dtype` (float32,
    "bfloat16", …) or `offload` ("cpu") the projector has a basis of its own on the model's device: training can then go
    on with the old basis while new examples are observed. `offload` is where the sketch is while the model trains; from
    the first example that is observed until the projector is made it is on the model's device, where the work is done.
    A memory that would take more than `limit` bytes in this process is refused. With a `power` q a gradient g is
    remembered as g ‖g‖^q: 0 is the paper's, with 1 examples whose output is easily changed count more.
    """

    name = "gradients"

    def __init__(
        self,
        sketch: Sketch,
        *,
        basis_dtype: torch.dtype | str | None = None,
        offload: str | None = None,
        limit: int | None = None,
        power: float = 0.0,
    ) -> None:
        if not isinstance(sketch, Sketch):
            raise TypeError(f"expected a sketch such as so.ProductSketch(600), got {sketch!r}")
        if not math.isfinite(power):
            raise ValueError(f"power is the exponent of a gradient's norm, such as 1.0; got {power!r}")
        self.sketch = sketch
        self.basis_dtype = None if basis_dtype is None else _dtype(basis_dtype)
        self.offload = offload
        self.limit = limit
        self.power = float(power)
        self._basis: Tensor | None = None
        self._gram_inverse: Tensor | None = None

    signals: GradientSignals

    @property
    def separate(self) -> bool:
        """Whether the projector has a basis of its own."""
        return self.basis_dtype is not None or self.offload is not None

    def bind(self, parameters: ProtectedParameters, output: Output | None) -> None:
        """See `Memory`; the default output is the true logit."""
        self.parameters = parameters
        needed = self.cost(parameters)
        if self.limit is not None and needed > self.limit:
            raise ValueError(
                f"{self.sketch!r} takes {needed:,} bytes in a process, its limit is {self.limit:,}. Choose a "
                f"smaller rank, or split it over at least {-(-needed // self.limit)} times as many processes: "
                "so.protect(..., shard=True) under torchrun"
            )
        self.signals = GradientSignals(parameters, output or true_logit, power=self.power)
        self.sketch.bind(parameters.p, parameters.dtype, self.offload or parameters.device, parameters.columns)

    def cost(self, parameters: ProtectedParameters) -> int:
        """The sketch, and the basis where that is separate; of split ones the largest part that a process has."""
        p, itemsize, width = parameters.p, parameters.dtype.itemsize, parameters.columns.widest
        bytes_ = self.sketch.cost(p, itemsize)
        if width < p:
            column = bytes_ - self.sketch.cost(p - 1, itemsize)
            bytes_ -= column * (p - width)
        if self.separate:
            rank = self.sketch.settings().get("rank", 0) + self.sketch.settings().get("corank", 0)
            dtype = self.basis_dtype or parameters.dtype
            bytes_ += rank * width * dtype.itemsize + rank * rank * itemsize
        return bytes_

    def observe(self, inputs: Any, targets: Any) -> None:
        """See `Memory`."""
        require_finite(self.signals, inputs, targets)
        if self.offload is not None:
            self.sketch.move_(self.parameters.device)
        for rows in self.signals.chunks(inputs, targets):
            self.sketch.observe(rows)
            del rows  # or it would stay while the next chunk is made
        self.examples += batch_size(inputs)

    def end_task(self) -> None:
        """See `Memory`."""
        self.sketch.end_task()

    def projector(self) -> BasisProjector:
        """See `Memory`."""
        B = self.sketch.basis()
        if not self.separate:
            return BasisProjector(B, columns=self.parameters.columns)
        self._basis = B.to(device=self.parameters.device, dtype=self.basis_dtype or B.dtype, copy=True)
        if self._basis.dtype != self.parameters.dtype:
            K = self.parameters.columns.total(gram(self._basis))
            self._gram_inverse = torch.linalg.inv(K).to(self.parameters.dtype)
        if self.offload is not None:
            self.sketch.move_(self.offload)
        return BasisProjector(self._basis, gram_inverse=self._gram_inverse, columns=self.parameters.columns)

    def sensitivity(self) -> float | None:
        """c = √(E/n), E = Tr(M − M̂) bounding the energy that the basis leaves out (`left_out`), n examples observed.

        To first order the output of example e changes by g_eᵀΔw, so Σ_e (g_eᵀΔw)² = Δwᵀ M Δw with M = Σ g gᵀ. The
        projector is hard: Δw = (I − P)Δw, P on the span of the basis. The sketch knows an M̂ <= M with range in that
        span, so (I − P)M(I − P) = (I − P)(M − M̂)(I − P), and its largest eigenvalue is at most its trace, at most
        Tr(M − M̂) = E. Hence Σ_e (g_eᵀΔw)² <= E ‖Δw‖². Equality needs all that is left out to lie in one direction, and
        Δw in it; for a Δw that has nothing to do with M the change is smaller by about √p.

        None for sketches without that certificate, for a basis that was rounded, whose span is another one, and for
        gradients that were scaled.
        """
        rounded = self.basis_dtype is not None and self.basis_dtype != self.sketch.dtype
        left = left_out(self.sketch)
        if left is None or rounded or self.power:
            return None
        return (left / self.sketch.count) ** 0.5 if self.sketch.count else 0.0

    def sketches(self) -> Iterator[tuple[str, Sketch]]:
        """See `Memory`."""
        yield "sketch", self.sketch

    def skip(self, examples: int) -> None:
        """See `Memory`; an example is a row."""
        self.sketch.skip(examples)
        self.examples += examples

    def counted(self, examples: int) -> None:
        """Say that the gradients of so many examples were given to the sketch itself."""
        self.examples += examples

    def merge(self, other: "GradientMemory") -> None:
        """See `Memory`."""
        self.require_same_model(other)
        if other.power != self.power:
            raise ValueError(f"gradients were scaled by other powers of their norm: {other.power:g} and {self.power:g}")
        self.sketch.merge(other.sketch)
        self.examples += other.examples

    def held(self) -> Iterator[Held]:
        """See `Memory`."""
        purposes = {
            "rows": "sketch, or its basis in the same place",
            "factor": "restores the sketch from its basis",
            "values": "estimated eigenvalues",
        }
        width, p = self.parameters.columns.width, self.parameters.p
        split = f"; {width:,} of {p:,} columns in this process" if width < p else ""
        for name, tensor in self.sketch.tensors().items():
            purpose = purposes.get(name, "stored by the sketch") + (split if name == "rows" else "")
            yield Held(f"sketch.{name}", purpose, tensor)
        if self._basis is not None:
            yield Held("basis", "orthonormal rows that updates are projected on", self._basis)
        if self._gram_inverse is not None:
            yield Held("gram_inverse", "corrects the rounding of the basis", self._gram_inverse)

    def diagnostics(self) -> dict[str, Any]:
        """See `Memory`."""
        return {"memory": self.name, "path": self.signals.path, "sketch": sketch_diagnostics(self.sketch)}

    def state_dict(self) -> dict[str, Any]:
        """See `Memory`."""
        state = self.sketch.state_dict()
        basis_dtype = None if self.basis_dtype is None else str(self.basis_dtype).removeprefix("torch.")
        settings: dict[str, Any] = {"basis_dtype": basis_dtype, "offload": self.offload, "power": self.power}
        meta = {"memory": self.name, "settings": settings, "examples": self.examples, "sketch": state["meta"]}
        return {"meta": meta, "tensors": {f"sketch.{k}": v for k, v in state["tensors"].items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Memory`."""
        load_sketch(self.sketch, state["meta"]["sketch"], state["tensors"], "sketch")
        self.examples = int(state["meta"]["examples"])

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> "GradientMemory":
        """An unbound memory with the settings of a `state_dict`'s metadata."""
        return cls(SKETCHES[meta["sketch"]["sketch"]](**meta["sketch"]["settings"]), **meta["settings"])


def require_finite(signals: GradientSignals, inputs: Any, targets: Any) -> None:
    """Raise NonFiniteError, naming the examples, if any gradient of a batch is not finite.

    A batch of one chunk is checked by the sketch itself. For several, the gradient of the sum is not finite if one of
    the terms is not; that costs one ordinary backward pass, and nothing has been observed yet.
    """
    if batch_size(inputs) <= signals.chunk:
        return
    total = signals.total(inputs, targets)
    if all(t is None or bool(t.isfinite().all()) for t in total):
        return
    start, bad = 0, []
    for rows in signals.chunks(inputs, targets):
        bad += [start + int(i) for i in (~rows.isfinite().all(1)).nonzero().flatten()]
        start += len(rows)
    if bad:
        raise NonFiniteError(
            f"the gradients of examples {bad[:8]} of {start} contain NaN or infinity; nothing was observed. "
            "Leave these examples out, or look for a division by zero in the model",
            bad,
        )


def load_sketch(sketch: Sketch, meta: dict[str, Any], tensors: dict[str, Tensor], prefix: str) -> None:
    """Give a sketch the part of a memory's state that is its own."""
    own = {k.removeprefix(prefix + "."): t for k, t in tensors.items() if k.startswith(prefix + ".")}
    try:
        sketch.load_state_dict({"meta": meta, "tensors": own})
    except (ValueError, KeyError) as error:
        raise StorageError(f"{prefix}: {error}") from error


def left_out(sketch: Sketch) -> float | None:
    """Tr(M − M̂), by `theory.nystrom_error`, for sketches whose estimate has M̂ <= M; None for others.

    It bounds E_G(B), what the basis leaves out of the rows. Product sketches have it (Nyström), and moments and all
    rows, which leave out rounding only. The values of other sketches may overrate a direction.
    """
    if not isinstance(sketch, (ProductSketch, SecondMoment, AllRows)):
        return None
    return nystrom_error(sketch.spectrum()[0], sketch.energy)


def sketch_diagnostics(sketch: Sketch) -> dict[str, Any]:
    """Rank, captured energy, leading values and stable rank, estimated from the sketch itself.

    `capacity`: 1 − rank / the most the sketch can have, 0 when new directions must share the place of old ones; None
    for sketches that grow. `left_out`: at most so much energy lies outside the basis; None where nothing is certain.
    """
    values, _ = sketch.spectrum()
    total, top = float(values.sum()), float(values[0]) if len(values) else 0.0
    return {
        "sketch": repr(sketch),
        "rows": sketch.count,
        "rank": len(values),
        "capacity": None if sketch.rank_limit is None else 1.0 - len(values) / sketch.rank_limit,
        "energy": sketch.energy,
        "captured": min(1.0, total / sketch.energy) if sketch.energy else 0.0,
        "left_out": left_out(sketch),
        "stable_rank": sketch.energy / top if top else 0.0,
        "values": [float(value) for value in values[:64]],
    }


def _dtype(value: torch.dtype | str) -> torch.dtype:
    dtype = getattr(torch, value, None) if isinstance(value, str) else value
    if dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f'basis_dtype is "float32", "bfloat16" or "float16"; got {value!r}')
    return dtype
