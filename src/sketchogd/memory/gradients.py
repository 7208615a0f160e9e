"""The paper's memory: one sketch of the per-example gradients of the true logit, rows of length p.

With `blocks` the parameters are cut into J blocks, and each has a sketch of its own part of the gradients, which takes
as many bytes in all. Letters: p parameters, k rank, n examples, g a gradient, g_j its part in block j.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch

from ..errors import NonFiniteError, StorageError
from ..ledger import Held
from ..model.batches import Output, batch_size, true_logit
from ..model.gradients import GradientSignals
from ..model.parameters import ProtectedParameters
from ..projector import BlocksProjector, Projector
from ..sketch import REGISTRY as SKETCHES
from ..sketch import Sketch
from ..sketch.base import positive
from ..sketch.columns import UNSPLIT
from .base import Memory
from .blocks import Block, places
from .state import left_out, load_sketch, sketch_diagnostics


class GradientMemory(Memory):
    """One sketch of all gradients; the projector is hard, on the sketch's basis, or with `strength` a pull.

    The basis stands in the sketch's own memory, and is used up by the next observe. With `basis_dtype` (float32,
    "bfloat16", …) or `offload` ("cpu") the projector has a basis of its own on the model's device: training can then go
    on with the old basis while new examples are observed. `offload` is where the sketch is while the model trains; from
    the first example that is observed until the projector is made it is on the model's device, where the work is done.
    A memory that would take more than `limit` bytes in this process is refused. With a `power` q a gradient g is
    remembered as g ‖g‖^q: 0 is the paper's, with 1 examples whose output is easily changed count more.

    With `blocks` J > 1 each of J equal blocks of the parameters has a sketch like the given one, of its own part g_j of
    each gradient, and is projected on its own basis. A displacement that is orthogonal to every g_j is orthogonal to g;
    J k directions in place of k are protected, in the same p k numbers and (J − 1) k² more for the factors. More blocks
    keep more and leave less free to learn with.

    With a `strength` no direction is forbidden: weights are pulled back to where they were when the projector was made
    (their anchor, one more copy), as by a `LayerSketch`. Training descends on the new loss + `strength`/2 · the mean
    square change of remembered outputs, summed over tasks, to first order (gᵀΔ)². With blocks it is Σ_j (g_jᵀΔ_j)²: as
    much, where what the blocks change has nothing to do with each other, and never less than a J-th of it. Directions
    that a sketch has no room for get the mean of the energy that it does not hold.
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
        blocks: int = 1,
        strength: float | None = None,
    ) -> None:
        if not isinstance(sketch, Sketch):
            raise TypeError(f"expected a sketch such as so.ProductSketch(600), got {sketch!r}")
        if not math.isfinite(power):
            raise ValueError(f"power is the exponent of a gradient's norm, such as 1.0; got {power!r}")
        positive(blocks=blocks)
        if not (strength is None or (strength > 0 and math.isfinite(strength))):
            raise ValueError(f"strength is a number > 0, or None for a hard projection; got {strength!r}")
        if strength is not None and power:
            raise ValueError("strength= weighs how much outputs change, which gradients scaled by power= do not tell")
        self.sketch = sketch
        self.basis_dtype = None if basis_dtype is None else _dtype(basis_dtype)
        self.offload = offload
        self.limit = limit
        self.power = float(power)
        self.blocks = blocks
        self.strength = None if strength is None else float(strength)
        self.tasks = 0
        self.parts: list[Block] = []

    signals: GradientSignals

    @property
    def separate(self) -> bool:
        """Whether the projector has a basis of its own."""
        return self.basis_dtype is not None or self.offload is not None

    @property
    def anchored(self) -> bool:
        """See `Memory`."""
        return self.strength is not None

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
        device, cuts = self.offload or parameters.device, places(parameters, self.blocks)
        if len(cuts) == 1:
            self.sketch.bind(parameters.p, parameters.dtype, device, parameters.columns)
            self.parts = [Block("sketch", cuts[0], self.sketch)]
            return
        self.parts = [
            Block(f"sketch.{i}", place, self.sketch.fresh().bind(place.stop - place.start, parameters.dtype, device))
            for i, place in enumerate(cuts)
        ]

    def cost(self, parameters: ProtectedParameters) -> int:
        """The sketches, and the bases where those are separate; of split ones the largest part that a process has."""
        sizes = [place.stop - place.start for place in places(parameters, self.blocks)]
        if len(sizes) == 1:
            return self._cost(parameters.p, parameters.columns.widest, parameters.dtype)
        return sum(self._cost(size, size, parameters.dtype) for size in sizes)

    def _cost(self, p: int, width: int, dtype: torch.dtype) -> int:
        bytes_ = self.sketch.cost(p, dtype.itemsize)
        if width < p:
            column = bytes_ - self.sketch.cost(p - 1, dtype.itemsize)
            bytes_ -= column * (p - width)
        if self.separate:
            rank = min(self.sketch.settings().get("rank", 0) + self.sketch.settings().get("corank", 0), p)
            bytes_ += rank * width * (self.basis_dtype or dtype).itemsize + rank * rank * dtype.itemsize
        return bytes_

    def observe(self, inputs: Any, targets: Any) -> None:
        """See `Memory`."""
        require_finite(self.signals, inputs, targets)
        if self.offload is not None:
            for block in self.parts:
                block.sketch.move_(self.parameters.device)
        for rows in self.signals.chunks(inputs, targets):
            for block in self.parts[1:]:
                block.sketch.require_finite(rows[:, block.place])  # before the first block takes its part
            for block in self.parts:
                block.sketch.observe(rows[:, block.place])
            del rows  # or it would stay while the next chunk is made
        self.examples += batch_size(inputs)

    def end_task(self) -> None:
        """See `Memory`."""
        self.tasks += 1
        for block in self.parts:
            block.sketch.end_task()

    def projector(self) -> Projector:
        """See `Memory`."""
        columns = self.parameters.columns if len(self.parts) == 1 else UNSPLIT
        made = []
        for block in self.parts:
            if self.separate:
                block.copy_basis(self.basis_dtype, self.parameters, columns)
            made.append((block.place, block.projector(columns, self._weight if self.anchored else None)))
            if self.offload is not None:
                block.sketch.move_(self.offload)
        return made[0][1] if len(made) == 1 else BlocksProjector(made)

    @property
    def _weight(self) -> float:
        """What a square change of an output weighs: strength · tasks over examples.

        Two tasks weigh twice as much as one, whatever their numbers of examples; where no task was ever ended, all
        examples are one.
        """
        return (self.strength or 0.0) * max(1, self.tasks) / max(1, self.examples)

    def sensitivity(self) -> float | None:
        """c = √(E/n), E = Tr(M − M̂) bounding the energy that the basis leaves out (`left_out`), n examples observed.

        To first order the output of example e changes by g_eᵀΔw, so Σ_e (g_eᵀΔw)² = Δwᵀ M Δw with M = Σ g gᵀ. The
        projector is hard: Δw = (I − P)Δw, P on the span of the basis. The sketch knows an M̂ <= M with range in that
        span, so (I − P)M(I − P) = (I − P)(M − M̂)(I − P), and its largest eigenvalue is at most its trace, at most
        Tr(M − M̂) = E. Hence Σ_e (g_eᵀΔw)² <= E ‖Δw‖². Equality needs all that is left out to lie in one direction, and
        Δw in it; for a Δw that has nothing to do with M the change is smaller by about √p.

        With blocks E is the sum of theirs: the root of Σ_e (Σ_j g_ejᵀΔw_j)² is at most Σ_j √E_j ‖Δw_j‖, which is at
        most √(Σ_j E_j) ‖Δw‖.

        None for sketches without that certificate, for a basis that was rounded, whose span is another one, for
        gradients that were scaled, and for a pull, which is not hard.
        """
        rounded = self.basis_dtype is not None and self.basis_dtype != self.parameters.dtype
        left = [left_out(block.sketch) for block in self.parts]
        if rounded or self.power or self.anchored or None in left:
            return None
        count = self.parts[0].sketch.count
        return (sum(energy for energy in left if energy is not None) / count) ** 0.5 if count else 0.0

    def sketches(self) -> Iterator[tuple[str, Sketch]]:
        """See `Memory`."""
        for block in self.parts:
            yield block.name, block.sketch

    def skip(self, examples: int) -> None:
        """See `Memory`; an example is a row."""
        for block in self.parts:
            block.sketch.skip(examples)
        self.examples += examples

    def counted(self, examples: int) -> None:
        """Say that the gradients of so many examples were given to the sketch itself."""
        self.examples += examples

    def merge(self, other: "GradientMemory") -> None:
        """See `Memory`."""
        self.require_same_model(other)
        if other.strength != self.strength:
            raise ValueError(f"the strengths of their pulls differ: {other.strength} and {self.strength}")
        if other.power != self.power:
            raise ValueError(f"gradients were scaled by other powers of their norm: {other.power:g} and {self.power:g}")
        if len(other.parts) != len(self.parts):
            raise ValueError(f"the parameters were cut otherwise: {len(other.parts)} and {len(self.parts)} blocks")
        sketches = list(zip(self.sketches(), other.sketches(), strict=True))
        for (_, mine), (_, theirs) in sketches:
            mine.require_mergeable(theirs)
        for (_, mine), (_, theirs) in sketches:
            mine.merge(theirs)
        self.examples += other.examples
        self.tasks += other.tasks

    def held(self) -> Iterator[Held]:
        """See `Memory`."""
        width, p = self.parameters.columns.width, self.parameters.p
        split = f"; {width:,} of {p:,} columns in this process" if width < p else ""
        for block in self.parts:
            yield from block.held(split)

    def diagnostics(self) -> dict[str, Any]:
        """See `Memory`."""
        found: dict[str, Any] = {"memory": self.name, "path": self.signals.path}
        if len(self.parts) == 1:
            return found | {"sketch": sketch_diagnostics(self.sketch)}
        return found | {"sketches": {name: sketch_diagnostics(sketch) for name, sketch in self.sketches()}}

    def settings(self) -> dict[str, Any]:
        """The settings as plain data; those that came later only where they say something."""
        basis_dtype = None if self.basis_dtype is None else str(self.basis_dtype).removeprefix("torch.")
        plain: dict[str, Any] = {"basis_dtype": basis_dtype, "offload": self.offload, "power": self.power}
        plain |= {"blocks": self.blocks} if self.blocks > 1 else {}
        return plain | ({"strength": self.strength} if self.anchored else {})

    def __repr__(self) -> str:
        said = [f", {key}={value!r}" for key, value in self.settings().items() if value]
        return f"GradientMemory({self.sketch!r}{''.join(said)})"

    def state_dict(self) -> dict[str, Any]:
        """See `Memory`."""
        states = {name: sketch.state_dict() for name, sketch in self.sketches()}
        metas = {name: state["meta"] for name, state in states.items()}
        meta: dict[str, Any] = {"memory": self.name, "settings": self.settings(), "examples": self.examples}
        meta |= {"tasks": self.tasks} if self.anchored else {}
        meta |= metas if len(metas) == 1 else {"sketches": metas}
        tensors = {f"{name}.{k}": v for name, state in states.items() for k, v in state["tensors"].items()}
        return {"meta": meta, "tensors": tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Memory`."""
        meta = state["meta"]
        metas = _sketch_metas(meta)
        if list(metas) != [block.name for block in self.parts]:
            raise StorageError(f"the state is of {len(metas)} blocks of gradients, the memory has {len(self.parts)}")
        # A sketch takes a whole state or nothing; for several, all must fit before the first is changed.
        loaded = [self.sketch if len(metas) == 1 else _empty_like(block.sketch) for block in self.parts]
        for block, sketch in zip(self.parts, loaded, strict=True):
            load_sketch(sketch, metas[block.name], state["tensors"], block.name)
        for block, sketch in zip(self.parts, loaded, strict=True):
            block.sketch = sketch
        self.examples, self.tasks = int(meta["examples"]), int(meta.get("tasks", 0))

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> "GradientMemory":
        """An unbound memory with the settings of a `state_dict`'s metadata."""
        sketch = next(iter(_sketch_metas(meta).values()))
        return cls(SKETCHES[sketch["sketch"]](**sketch["settings"]), **meta["settings"])


def _empty_like(sketch: Sketch) -> Sketch:
    return sketch.fresh().bind(sketch.d, sketch.dtype, sketch.device)


def _sketch_metas(meta: dict[str, Any]) -> dict[str, Any]:
    """The metadata of every sketch of a state by its name."""
    found: dict[str, Any] = {"sketch": meta["sketch"]} if "sketch" in meta else meta["sketches"]
    return found


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


def _dtype(value: torch.dtype | str) -> torch.dtype:
    dtype = getattr(torch, value, None) if isinstance(value, str) else value
    if dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f'basis_dtype is "float32", "bfloat16" or "float16"; got {value!r}')
    return dtype
