"""The paper's memory: one sketch of the per-example gradients of the true logit, rows of length p.

With `blocks` the parameters are cut into J blocks, and each has a sketch of its own part of the gradients, which takes
as many bytes in all. Letters: p parameters, k rank, n examples, g a gradient, g_j its part in block j.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .. import schema
from ..coverage import Covered
from ..errors import StorageError
from ..ledger import Held
from ..model.batches import Output, batch_size, every_logit, true_logit
from ..model.calls import Call
from ..model.gradients import GradientSignals
from ..model.parameters import ProtectedParameters
from ..model.signs import signed_sum
from ..projector.base import Projector
from ..projector.basis import BlocksProjector
from ..projector.rules import Project, Pull, Rule, rule_from
from ..sketch import Additive, Sketch
from ..sketch.base import positive
from ..sketch.columns import UNSPLIT, Whole
from .base import Memory
from .blocks import Block, places
from .estimates import Estimate
from .metadata import GRADIENTS, has_device, is_device
from .staging import Commit, staged_rows
from .state import (
    Planned,
    left_out,
    load_sketches,
    require_sketches,
    seen_in,
    sketch_diagnostics,
    stored_sketch,
)


class GradientMemory(Memory):
    """The paper's memory: a sketch of all gradients, whose basis updates are projected on.

    The basis stands in the sketch's own memory and is used up by the next observe, unless `basis_dtype` or `offload`
    gives the projector a basis of its own: training can then go on with the old basis while new examples are observed.

    With J > 1 blocks, a displacement that is orthogonal to every part g_j of a gradient is orthogonal to the gradient:
    J k directions in place of k are protected, in the same p k numbers and (J − 1) k² more for the factors. More blocks
    keep more and leave less free to learn with.

    With `Pull` training descends on the new loss + strength/2 · the mean square change of remembered outputs, summed
    over tasks, to first order (gᵀΔ)²; with blocks Σ_j (g_jᵀΔ_j)²: as much, where the changes that the blocks cause have
    nothing to do with each other, and never less than a J-th of it. Directions that a sketch has no room for get the
    mean of the energy that it does not hold.

    Args:
        sketch: an unbound sketch such as `so.ProductSketch(600)`.
        rule: `Project()` (default, the paper's), `Shrink(ridge)` or `Pull(strength)`.
        basis_dtype: dtype of a separate basis: "float32", "bfloat16" or "float16".
        offload: where the sketch is while the model trains, such as "cpu"; from the first example that is observed
            until the projector is made it is on the model's device.
        limit: a memory of more bytes than this in one process is refused.
        power: a gradient g is remembered as g ‖g‖^power. 0 is the paper's; with 1 examples whose output is easily
            changed count more.
        blocks: cut the parameters into so many equal blocks, each with a sketch like the given one of its part of
            each gradient.
        strength: short for `rule=Pull(strength)`.
    """

    name = "gradients"

    def __init__(
        self,
        sketch: Sketch,
        *,
        rule: Rule | None = None,
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
        self.rule = rule_from(rule, Project(), strength=strength)
        if self.rule.anchor is not None and self.rule.anchor.in_span:
            raise ValueError(
                'anchor_dtype="span" is for layer memories; a gradient memory keeps the weights themselves'
            )
        if isinstance(self.rule, Pull) and power:
            raise ValueError("a pull weighs how much outputs change, which gradients scaled by power= do not tell")
        self.sketch = sketch
        self.basis_dtype = None if basis_dtype is None else _dtype(basis_dtype)
        if offload is not None and not is_device(offload):
            raise ValueError(f'offload is a device such as "cpu" or "cuda:0"; got {offload!r}')
        self.offload = offload
        self.limit = limit
        self.power = float(power)
        self.blocks = blocks
        self.tasks = 0
        self.parts: list[Block] = []

    signals: GradientSignals
    every: bool
    """Whether every logit is remembered."""

    @property
    def lasting(self) -> bool:
        """See `Memory`."""
        return self.basis_dtype is not None or self.offload is not None

    def _bind(self, parameters: ProtectedParameters, output: Output | None) -> None:
        """See `Memory`; the default output is the true logit. `every_logit` is a random combination of each example's.

        The expected moment Σ g gᵀ of the gradients of Σ ± logit is that of the gradients of every logit.
        """
        self.every = output is every_logit
        if self.offload is not None and not has_device(self.offload):
            raise ValueError(f"offload={self.offload!r}: this machine has no such device")
        needed = self.cost(parameters)
        if self.limit is not None and needed > self.limit:
            raise ValueError(
                f"{self.sketch!r} takes {needed:,} bytes in a process, its limit is {self.limit:,}. Choose a "
                f"smaller rank, or split it over at least {-(-needed // self.limit)} times as many processes: "
                "so.protect(..., shard=True) under torchrun"
            )
        self.signals = GradientSignals(parameters, signed_sum if self.every else output or true_logit, power=self.power)
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
        if self.lasting:
            rank = min(self.sketch.settings().get("rank", 0) + self.sketch.settings().get("corank", 0), p)
            bytes_ += rank * width * (self.basis_dtype or dtype).itemsize + rank * rank * dtype.itemsize
        return bytes_

    def spans(self, parameters: ProtectedParameters) -> list[None]:
        """See `Memory`."""
        return [None] * len(parameters)

    def probe(self) -> None:
        """None: there is one sketch."""

    def divide(self, probe: Any) -> None:
        """There is nothing to divide."""

    def stage(self, inputs: Any, targets: Any, ahead: int = 0) -> Commit:
        """See `Memory`."""
        inputs, targets = self.prepared(inputs, targets, ahead)
        chunks = staged_rows(self.signals, inputs, targets, self._require_finite)

        def commit() -> None:
            if self.offload is not None:
                for block in self.parts:
                    block.sketch.move_(self.parameters.device)
            for rows in chunks():
                for block in self.parts[1:]:
                    block.sketch.require_finite(rows[:, block.place])  # before the first block takes its part
                for block in self.parts:
                    block.sketch.observe(rows[:, block.place])
                del rows  # or it would stay while the next chunk is made
            self.examples += batch_size(inputs)

        return commit

    def add_estimates(self, estimates: Mapping[str, Estimate], examples: int) -> None:
        """Remember about so many examples by estimates in their place, one per block by the name of its sketch.

        A memory with a privacy guarantee knows no more.
        """
        for block in self.parts:
            if self.offload is not None:
                block.sketch.move_(self.parameters.device)
            estimates[block.name].add_to(block.sketch)
        self.examples += examples

    def _require_finite(self, rows: Tensor) -> None:
        for block in self.parts:
            block.sketch.require_finite(rows[:, block.place])

    def prepared(self, inputs: Any, targets: Any, ahead: int = 0) -> tuple[Any, Any]:
        """Inputs and targets for `signals`: for every logit, numbers of examples from which their signs follow."""
        if not self.every:
            return inputs, targets
        call = Call.of(self.parameters.model, inputs, targets, every_logit)
        b, device = batch_size(inputs), self.parameters.device
        numbers = torch.arange(b, device=device) + self.examples + ahead
        return call.inputs, {"number": numbers, "counted": call.counted}

    def coverage(self) -> Iterator[Covered]:
        """See `Memory`."""
        seen = seen_in([block.sketch for block in self.parts], self.parameters)
        for tensor, own in zip(self.parameters.tensors, seen, strict=True):
            yield Covered(tensor, f"gradients, {self.sketch!r}", own)

    def end_task(self) -> None:
        """See `Memory`."""
        self.tasks += 1
        for block in self.parts:
            block.sketch.end_task()

    def projector(self) -> Projector:
        """See `Memory`."""
        columns = self.parameters.columns if len(self.parts) == 1 else UNSPLIT
        made: list[tuple[slice, Projector]] = []
        for block in self.parts:
            if self.lasting:
                block.copy_basis(self.basis_dtype, self.parameters, columns)
            made.append((block.place, block.projector(columns, self.rule, self.weight)))
            if self.offload is not None:
                block.sketch.move_(self.offload)
        return made[0][1] if len(made) == 1 else BlocksProjector(made)

    @property
    def together(self) -> int:
        """See `Memory`: 1, as blocks hardly ever move an output the same way."""
        return 1

    @property
    def weight(self) -> float:
        """What a square change of an output weighs: tasks over examples.

        Two tasks weigh twice as much as one, and each has the share of its examples; where no task was ever ended, all
        examples are one.
        """
        return max(1, self.tasks) / max(1, self.examples)

    def sensitivity(self) -> float | None:
        """c = √(E/n), E = Tr(M − M̂) bounding the energy that the basis leaves out (`left_out`), n examples observed.

        To first order the output of example e changes by g_eᵀΔw, so Σ_e (g_eᵀΔw)² = Δwᵀ M Δw with M = Σ g gᵀ. The
        projector is hard: Δw = (I − P)Δw, P on the span of the basis. The sketch knows an M̂ <= M with range in that
        span, so (I − P)M(I − P) = (I − P)(M − M̂)(I − P), and its largest eigenvalue is at most its trace, at most
        Tr(M − M̂) = E. Hence Σ_e (g_eᵀΔw)² <= E ‖Δw‖². Equality needs all that is left out to lie in one direction, and
        Δw in it; for a Δw that has nothing to do with M the change is smaller by about √p.

        With blocks E is the sum of theirs: the root of Σ_e (Σ_j g_ejᵀΔw_j)² is at most Σ_j √E_j ‖Δw_j‖, which is at
        most √(Σ_j E_j) ‖Δw‖.

        None for sketches without that certificate, for a rounded basis, whose span is another one, for scaled
        gradients, and for rules that are not hard.
        """
        rounded = self.basis_dtype is not None and self.basis_dtype != self.parameters.dtype
        left = [left_out(block.sketch) for block in self.parts]
        if rounded or self.power or not isinstance(self.rule, Project) or None in left:
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
            if isinstance(block.sketch, Additive):
                block.sketch.skip(examples)
        self.examples += examples

    def counted(self, examples: int) -> None:
        """Count examples whose gradients were given to the sketches directly."""
        self.examples += examples

    def merge(self, other: "GradientMemory") -> None:
        """See `Memory`."""
        self.require_same_model(other)
        if other.rule != self.rule:
            raise ValueError(f"their rules differ: {other.rule!r} and {self.rule!r}")
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
        """The settings as plain data; those added after files were written only where they are not as usual."""
        basis_dtype = None if self.basis_dtype is None else str(self.basis_dtype).removeprefix("torch.")
        plain: dict[str, Any] = {"basis_dtype": basis_dtype, "offload": self.offload, "power": self.power}
        plain |= {"blocks": self.blocks} if self.blocks > 1 else {}
        return plain | _rule_settings(self.rule)

    def __repr__(self) -> str:
        said = [f", {key}={value!r}" for key, value in self.settings().items() if value]
        return f"GradientMemory({self.sketch!r}{''.join(said)})"

    def state_dict(self) -> dict[str, Any]:
        """See `Memory`."""
        states = {name: sketch.state_dict() for name, sketch in self.sketches()}
        metas = {name: state["meta"] for name, state in states.items()}
        meta: dict[str, Any] = {"memory": self.name, "settings": self.settings(), "examples": self.examples}
        meta |= {"tasks": self.tasks} if self.rule.anchor is not None else {}
        meta |= metas if len(metas) == 1 else {"sketches": metas}
        tensors = {f"{name}.{k}": v for name, state in states.items() for k, v in state["tensors"].items()}
        return {"meta": meta, "tensors": tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Memory`."""
        meta, tensors = state["meta"], state["tensors"]
        self.require_state(self.parameters, meta, tensors)
        # A sketch takes a whole state or nothing; for several, all must fit before the first is changed.
        loaded = [self.sketch if len(self.parts) == 1 else _empty_like(block.sketch) for block in self.parts]
        named = [(block.name, sketch) for block, sketch in zip(self.parts, loaded, strict=True)]
        load_sketches(named, _sketch_metas(meta), tensors)
        for block, sketch in zip(self.parts, loaded, strict=True):
            block.sketch = sketch
        self.examples, self.tasks = int(meta["examples"]), int(meta.get("tasks", 0))

    def require_state(
        self, parameters: ProtectedParameters, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> set[str]:
        """See `Memory`."""
        metas = _sketch_metas(meta)
        if len(metas) != self.blocks:  # before anything is made for each of them
            raise StorageError(f"the state has {len(metas)} sketches and the memory {self.blocks} blocks")
        try:
            cuts = places(parameters, self.blocks)
        except ValueError as error:
            raise StorageError(f"settings.blocks: {error}") from error
        whole = len(cuts) == 1
        planned = [
            Planned(
                "sketch" if whole else f"sketch.{i}",
                self.sketch,
                parameters.columns if whole else Whole(place.stop - place.start),
            )
            for i, place in enumerate(cuts)
        ]
        return require_sketches(planned, metas, tensors, parameters.dtype)

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> "GradientMemory":
        """See `Memory`."""
        GRADIENTS(meta, schema.TOP)
        name, first = next(iter(_sketch_metas(meta).items()), ("", None))
        sketch = stored_sketch(first, name)
        settings = dict(meta["settings"])
        rule = {key: settings.pop(key, None) for key in _RULE_KEYS}
        try:
            return cls(sketch, rule=rule_from(None, Project(), **rule), **settings)
        except (TypeError, ValueError) as error:
            raise StorageError(f"settings: {error}") from error


_RULE_KEYS = ("ridge", "strength", "anchor_dtype")
"""What a file says of a rule; `damping` and `energy` are for layers."""


def _rule_settings(rule: Rule) -> dict[str, Any]:
    """A rule as files have it; nothing for the paper's."""
    settings = {} if isinstance(rule, Project) else rule.settings()
    return {key: settings[key] for key in _RULE_KEYS if settings.get(key) is not None}


def _empty_like(sketch: Sketch) -> Sketch:
    return sketch.fresh().bind(sketch.d, sketch.dtype, sketch.device)


def _sketch_metas(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of every sketch of a state by its name."""
    return {"sketch": meta["sketch"]} if "sketch" in meta else dict(meta.get("sketches", {}))


def _dtype(value: torch.dtype | str) -> torch.dtype:
    dtype = getattr(torch, value, None) if isinstance(value, str) else value
    if dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f'basis_dtype is "float32", "bfloat16" or "float16"; got {value!r}')
    return dtype
