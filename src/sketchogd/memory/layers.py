"""The layer memory: for each layer one sketch of its inputs and one of its output sensitivities.

The gradient of an output with respect to a layer's weight is G = Σ_t δ_t a_tᵀ over the positions t that use it. The
layer's block of Σ vec(G) vec(G)ᵀ is approximated by a Kronecker product of two factors (`curvature`), as K-FAC
(Martens, Grosse 2015; for shared weights Eschenhagen et al. 2023) does for curvature and the Kronecker-factored Laplace
approximation (Ritter, Botev, Barber 2018) for old tasks. EK-FAC (George et al. 2018) measures eigenvalues anew in the
eigenbasis of the factors; here they are products. Letters: a input rows, δ sensitivities (the gradient of every logit
with respect to the layer's output), λ eigenvalues, V eigenvectors.
"""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .. import schema
from ..coverage import Covered, unexplained
from ..errors import ProtectionWarning, StorageError
from ..ledger import Held
from ..model.batches import Output, batch_size, every_logit, logits_of
from ..model.layers import TRANSPOSED, hidden_from_gradients
from ..model.parameters import ProtectedParameters
from ..model.sensitivities import Reading
from ..projector.layers import LayerPlace, LayersProjector
from ..projector.rules import DAMPING, Pull, Rule, rule_from
from ..projector.span import Span
from ..seeds import derive_seed
from ..sketch import REGISTRY as SKETCHES
from ..sketch import SecondMoment, Sketch, SketchedMoment
from ..sketch.columns import UNSPLIT, Scattered
from ..sketch.stored import Part, require_numbers, require_parts
from .base import Memory
from .curvature import CURVATURES, LayerFactors, spread
from .estimates import Estimate
from .layout import Layout, Rank
from .metadata import LAYERS
from .others import OtherParameters
from .ranks import PROBING, WIDER, Division, Side, divided
from .staging import Commit
from .state import load_sketches, require_sketches, sketch_diagnostics


class LayerMemory(Memory):
    """A sketch of the inputs and one of the output sensitivities of every layer, far smaller than gradients.

    By default weights are pulled back to where they were when the projector was made (`Pull`), which needs no tuning
    for each problem and one more copy of the weights. `Project` and `Shrink` need no copy; with inputs only,
    `LayerMemory(rank, rule=Shrink(0.0, energy=0.99), outputs=False)` is GPM (Saha et al. 2021), streaming.

    Args:
        rank: rows of each sketch, a number or {"layer.inputs", "layer.outputs", layer name or glob: number}. A factor
            with d <= rank keeps its exact second moment.
        rule: `Pull()` (default), `Shrink(ridge)` or `Project()`.
        ridge: short for `rule=Shrink(ridge, energy)`.
        strength: short for `rule=Pull(strength, damping, anchor_dtype)`.
        damping: see `strength`.
        outputs: False keeps inputs only, of single positions, and protects every output direction.
        sketch: the kind of sketch; by default one that knows a flat tail, and with `curvature="positions"` a
            `ProductSketch`.
        seed: for test matrices and random combinations of logits.
        energy: see `ridge`.
        rest: rank of the sketches of gradients of the parameters that belong to no layer; by default a quarter of the
            rank, between 4 and 64.
        anchor_dtype: see `strength`.
        curvature: "traces" counts how all positions that share a weight change an output together (`PartialTraces`);
            "positions" counts single positions, as version 0.1 did (`SinglePositions`).
        division: bytes over which the first `remember` divides the rows by the spectra that it finds, in place of the
            rank; budgets give it.
        apart: whether each module has a sketch of its own for its parameters that belong to no layer; False keeps one
            for all of them, as version 0.1 did and as memories with a privacy guarantee do.
    """

    name = "layers"

    def __init__(
        self,
        rank: Rank,
        *,
        rule: Rule | None = None,
        ridge: float | None = None,
        strength: float | None = None,
        damping: float | None = None,
        outputs: bool = True,
        sketch: type[Sketch] | None = None,
        seed: int = 0,
        energy: float | None = None,
        rest: int | None = None,
        anchor_dtype: str | None = None,
        curvature: str = "traces",
        division: Division | None = None,
        apart: bool = True,
    ) -> None:
        ranks = rank.values() if isinstance(rank, Mapping) else [rank]
        if not ranks or any(isinstance(r, bool) or not isinstance(r, int) or r < 1 for r in ranks):
            raise ValueError(f"rank is a positive integer, or one for each layer by name or glob; got {rank!r}")
        short = {"ridge": ridge, "strength": strength, "damping": damping, "energy": energy}
        if curvature not in CURVATURES:
            raise ValueError(f"curvature is {' or '.join(map(repr, CURVATURES))}; got {curvature!r}")
        self.curvature = CURVATURES[curvature if outputs else "positions"]()
        self.rule = rule_from(rule, Pull(), **short, anchor_dtype=anchor_dtype).with_usual(self.curvature.strength)
        self.rank = rank
        self.outputs = outputs
        self.sketch = sketch or self.curvature.sketch
        self.seed = seed
        self.rest = rest
        self.division = division
        self.apart = apart and self.curvature.name == "traces"
        self.tasks = 0
        self.logits = 0
        self.in_part: set[str] = set()
        self._combinations: int | None = None

    in_part: set[str]
    """Layers that the first batch was seen to use in other ways too, which nothing protects."""

    factors: dict[str, LayerFactors]
    others: OtherParameters | None = None
    spread: Tensor
    output: Output

    @property
    def lasting(self) -> bool:
        """False: eigenvectors stand in place of the sketches."""
        return False

    def settings(self) -> dict[str, Any]:
        """The settings as plain data."""
        rank = dict(self.rank) if isinstance(self.rank, Mapping) else self.rank
        rule = {**_USUAL, **self.rule.settings()}
        plain: dict[str, Any] = {"rank": rank, "ridge": rule["ridge"], "strength": rule["strength"]}
        plain |= {"damping": rule["damping"], "outputs": self.outputs, "sketch": self.sketch.name, "seed": self.seed}
        plain |= {"energy": rule["energy"], "rest": self.rest, "anchor_dtype": rule["anchor_dtype"]}
        return plain | ({} if self.curvature.name == "positions" else {"curvature": "traces", "apart": self.apart})

    def __repr__(self) -> str:
        rank = dict(self.rank) if isinstance(self.rank, Mapping) else self.rank
        said = [f"{rank!r}", f"rule={self.rule!r}"]
        said += [] if self.outputs else ["outputs=False"]
        said += [] if self.sketch is self.curvature.sketch else [f"sketch={self.sketch.__name__}"]
        said += [f"seed={self.seed}"] if self.seed else []
        said += ['curvature="positions"'] if self.outputs and self.curvature.name == "positions" else []
        said += [] if self.rest is None else [f"rest={self.rest}"]
        return f"LayerMemory({', '.join(said)})"

    # ---------------------------------------------------------------- structure

    @property
    def _layout(self) -> Layout:
        return Layout(self.rank, self.outputs, self.sketch, self.seed, self.rest, self.curvature.tied, self.apart)

    def cost(self, parameters: ProtectedParameters) -> int:
        """See `Memory`."""
        sums = spread.empty(torch.device("meta")).nbytes if self.curvature.name == "traces" else 0
        return self._layout.cost(parameters) + sums

    def spans(self, parameters: ProtectedParameters) -> list[Span | None]:
        """See `Memory`."""
        coordinates = self.rule.anchor is not None and self.rule.anchor.in_span
        return self._layout.spans(parameters) if coordinates else [None] * len(parameters)

    def _bind(self, parameters: ProtectedParameters, output: Output | None) -> None:
        """See `Memory`; the default output is every logit."""
        self.output = output or every_logit
        self.factors = self._layout.factors(parameters)
        found = self._layout.of_no_layer(parameters)
        self.others = None if found is None else OtherParameters(*found, self._output_of_others, self.apart)
        self.spread = spread.empty(parameters.device)

    def _output_of_others(self, output: Any, target: Any) -> Tensor:
        """The scalar whose gradient is sketched where a parameter has no layer; target: signs for `every_logit`."""
        return (logits_of(output) * target).sum() if self.output is every_logit else self.output(output, target)

    # ---------------------------------------------------------------- dividing a budget's rows

    def probe(self) -> "LayerMemory | None":
        """See `Memory`: sketches of several times the rank."""
        if self.division is None or self.examples or isinstance(self.rank, Mapping):
            return None
        probe = LayerMemory(
            WIDER * self.rank,
            rule=self.rule,
            outputs=self.outputs,
            sketch=self.sketch,
            seed=self.seed,
            rest=1,
            curvature=self.curvature.name,
            apart=self.apart,
        )
        probe._combinations = PROBING
        return probe

    def divide(self, probe: "LayerMemory") -> None:
        """See `Memory`."""
        assert self.division is not None
        assert isinstance(self.rank, int)
        ranks = self._divided(probe, self.division)
        if ranks is not None:
            self.rank, self.rest = {**ranks, "*": self.rank}, self._layout.rank_of_others  # "*": layers to come
            self._bind(self.parameters, self.output)

    def _divided(self, probe: "LayerMemory", division: Division) -> dict[str, int] | None:
        whole = sum(factors.trace for factors in probe.factors.values())
        sides, left = [], division.nbytes - self.cost(self.parameters)
        for (name, found), own in zip(probe.factors.items(), self.factors.values(), strict=True):
            layer = found.layer
            kept = ("outputs", layer.fan_in) if layer.tokens else ("inputs", layer.fan_out)
            mine = dict(own.sketches())
            for part, sketch in found.sketches():
                copies = division.copies * -(-kept[1] // self.parameters.columns.parts) if part == kept[0] else 0
                left += mine[part].cost(sketch.d, sketch.dtype.itemsize)
                values, energy, share = sketch.spectrum()[0], sketch.energy, found.trace / whole if whole > 0 else 0.0
                itemsize = sketch.dtype.itemsize
                sides.append(Side(f"{name}.{part}", sketch.d, values, energy, share, copies, copies > 0, itemsize))
        return divided(sides, left) if whole > 0 else None

    # ---------------------------------------------------------------- observing

    def stage(self, inputs: Any, targets: Any, ahead: int = 0) -> Commit:
        """See `Memory`. One forward pass and, for the sensitivities, one backward pass per logit.

        An example counts with the mean over its logits, in units of the first example's: where heads differ in size,
        the sensitivities of later ones are scaled by the root of first over own number of logits.
        """
        try:
            return self._staged(inputs, targets, ahead)
        finally:
            self.parameters.reshard()

    def _staged(self, inputs: Any, targets: Any, ahead: int) -> Commit:
        layers = [factors.layer for factors in self.factors.values()]
        seed = derive_seed(self.seed, "signs", self.examples + ahead)
        watched = () if self.others is None else self.others.parameters.tensors
        split = self.parameters if self.parameters.split else None
        reading = Reading(
            self.parameters.model, layers, inputs, targets, self.output, seed, watched, self._combinations, split
        )
        reading.in_step(lambda: reading.call)
        reading.in_step(lambda: reading.outputs)
        b, logits, scalars = batch_size(inputs), 1, reading.call.targets
        if self.output is every_logit:
            logits = reading.count
            scalars = next(reading.signs(1, derive_seed(seed, "rest")))
        if self.examples == 0:
            reading.in_step(lambda: self.warn_of_unseen(reading))
        first = self.logits if self.logits and self.outputs else logits
        scale = (first / logits) ** 0.5
        moments = spread.moments_of(reading.outputs)
        if self.output is every_logit:
            moments = spread.scaled(spread.moments_of(reading.logits, reading.counted), scale)
        commits: list[Commit] = []
        others = self.others
        if others is not None:
            weights = torch.ones_like(reading.outputs)
            if self.output is every_logit:
                scalars = scalars * scale if scale != 1.0 else scalars
                weights = scalars.reshape(weights.shape)
            # before the curvature takes the graph apart
            commits.append(reading.in_step(lambda: others.stage(reading, scalars, weights)))
        commits.append(self.curvature.stage(self.factors, reading, scale))

        def commit() -> None:
            for each in commits:
                each()
            self.spread += moments
            self.logits = first
            self.examples += b

        return commit

    def add_estimates(
        self,
        moments: Mapping[str, Estimate],
        tokens: Mapping[str, Tensor],
        outputs: Tensor,
        examples: int,
        logits: int,
    ) -> None:
        """Remember about so many examples by estimates in their place, as a memory with a privacy guarantee does.

        Args:
            moments: what each sketch would have observed, by its name.
            tokens: what is added to the token counts, by name.
            outputs: moments of the outputs, as `curvature.spread` has them.
            examples: about how many there are.
            logits: per example.
        """
        first = self.logits or logits
        for name, sketch in self.sketches():
            moments[name].scaled(first / logits).add_to(sketch)
        for name, counts in self.counts():
            if name in tokens:
                counts += tokens[name] * (first / logits)
        self.spread += spread.scaled(outputs, (first / logits) ** 0.5)
        self.logits = first
        self.examples += examples

    def warn_of_unseen(self, reading: Reading) -> None:
        """Warn of layers whose parameters move the outputs otherwise than by the calls that were recorded."""
        if reading.hidden:
            warnings.warn(hidden_from_gradients(reading.hidden), ProtectionWarning, stacklevel=5)
        names = unexplained(reading, [factors.layer for factors in self.factors.values()], self.seed)
        self.in_part = set(names)
        if names:
            warnings.warn(
                f"outputs depend on the parameters of {', '.join(map(repr, names))} in a way that a layer memory does "
                "not see: they are masked, scaled, sliced or otherwise transformed before they are used, which is NOT "
                "PROTECTED. Use a parametrization (torch.nn.utils.parametrize), whose parameters get a sketch of "
                "their gradients, or memory=so.ProductSketch(rank)",
                ProtectionWarning,
                stacklevel=5,
            )

    def coverage(self) -> Iterator[Covered]:
        """See `Memory`."""
        for name, factors in self.factors.items():
            seen = factors.trace > 0
            part = "in part, it is used otherwise too: " if name in self.in_part and seen else ""
            for tensor in (factors.layer.weight, factors.layer.bias):
                if tensor is not None:
                    yield Covered(tensor, f"{part}layer {name!r}, {self.curvature.name}", seen)
        if self.others is not None:
            parts, own = iter(self.others.parts), None
            held = self.others.parameters
            for tensor, place, seen in zip(held.tensors, held.places, self.others.seen(), strict=True):
                own = own if own is not None and place.start < own.place.stop else next(parts)
                yield Covered(tensor, f"gradients, {own.sketch!r}", seen)

    def end_task(self) -> None:
        """See `Memory`."""
        self.tasks += 1
        for _, sketch in self.sketches():
            sketch.end_task()

    def sketches(self) -> Iterator[tuple[str, Sketch]]:
        """See `Memory`."""
        for name, factors in self.factors.items():
            for part, sketch in factors.sketches():
                yield f"{name}.{part}", sketch
        if self.others is not None:
            yield from ((part.name, part.sketch) for part in self.others.parts)

    def counts(self) -> Iterator[tuple[str, Tensor]]:
        """What is simply added up: the token counts of embeddings and the moments of the outputs, by name."""
        if self.curvature.name == "traces":
            yield SPREAD, self.spread
        for name, factors in self.factors.items():
            if factors.counts is not None:
                yield f"{name}.counts", factors.counts

    def skip(self, examples: int) -> None:
        """See `Memory`; the combinations of logits that are sketched follow from the number of the example."""
        self.examples += examples

    def has_logits(self, logits: int) -> None:
        """Count in so many logits per example: what was observed by another number is scaled to it.

        Raises ValueError if that needs scaling and a sketch cannot be scaled.
        """
        if self.outputs and self.logits not in (0, logits):
            traces = self.curvature.name == "traces"
            for name, sketch in self.sketches():
                if not isinstance(sketch, SketchedMoment | SecondMoment):
                    raise ValueError(
                        f"some examples have {logits} logits and others {self.logits}, which sketches of kind "
                        f"{type(sketch).__name__} cannot weigh against each other; use sketch=so.ProductSketch"
                    )
                if traces or not name.endswith(".inputs"):
                    sketch.scale(logits / self.logits)
            for name, counts in self.counts():
                factor = logits / self.logits
                counts.copy_(spread.scaled(counts, factor**0.5) if name == SPREAD else counts * factor)
        self.logits = logits

    # ---------------------------------------------------------------- projecting

    def projector(self) -> LayersProjector:
        """See `Memory`."""
        tensors = self.parameters.tensors
        index = {id(t): i for i, t in enumerate(tensors)}
        layers, places = {}, {}
        for name, factors in self.factors.items():
            layer, spectra = factors.layer, self.curvature.spectra(factors)
            bias = None if layer.bias is None else index[id(layer.bias)]
            places[name] = LayerPlace(index[id(layer.weight)], bias, layer.kind in TRANSPOSED, layer.tokens)
            if spectra is not None:
                layers[name] = self.rule.on_layer(spectra, self.weight)
        columns = Scattered(self.parameters.columns) if self.parameters.split else UNSPLIT
        others = None if self.others is None else self.others.projector(self.rule, self.weight, columns)
        indices = () if self.others is None else self.others.indices(tensors)
        return LayersProjector(self.parameters, layers, places, others, indices, self.rule.anchor)

    @property
    def weight(self) -> float:
        """What a square change of one logit of one example weighs: tasks over Σ (z − z̄)², the spread of all of them.

        Times the number of layers: (Σ x)² of what they change together is at most so many times Σ x².

        The mean square change of a task's logits, over their mean square spread, then weighs 1 where all tasks have
        equally many examples; otherwise each task has the share of its examples. Where no task was ever ended, all
        examples are one. With `curvature="positions"` the spread counts as 1.
        """
        logits = max(1, self.logits) if self.outputs else 1  # of inputs alone no logit enters
        unit = self.curvature.unit(spread.energy(self.spread), logits * max(1, self.examples))
        return self.together * max(1, self.tasks) / unit

    @property
    def promises(self) -> bool:
        """See `Memory`: not with `curvature="positions"`, which does what version 0.1 did."""
        return self.curvature.name == "traces"

    @property
    def together(self) -> int:
        """See `Memory`: the layers of which something is remembered, and the sketches of parameters of no layer."""
        seen = sum(factors.trace > 0 for factors in self.factors.values())
        others = 0 if self.others is None else self.others.remembered
        return self.curvature.together(max(1, seen + others))

    def sensitivity(self) -> None:
        """None: `theory.layer_change_bound` is in terms of what the optimizer proposed, and counts unseen pairs."""

    # ---------------------------------------------------------------- bytes and state

    def merge(self, other: "LayerMemory") -> None:
        """See `Memory`."""
        self.require_same_model(other)
        settings = [{**memory.settings(), "apart": None} for memory in (self, other)]
        names = [[name for name, _ in memory.sketches()] for memory in (self, other)]
        if settings[0] != settings[1] or names[0] != names[1]:
            divided = isinstance(self.rank, Mapping) and self.rank != other.rank
            raise ValueError(
                f"{other!r} cannot be merged into {self!r}: settings and layers must be equal"
                + (". Budgets divide rows by what each has seen; give both the same rank=" if divided else "")
            )
        sketches = list(zip(self.sketches(), other.sketches(), strict=True))
        for (_, mine), (_, theirs) in sketches:
            mine.require_mergeable(theirs)
        if other.logits:
            self.has_logits(other.logits)
        for (_, mine), (_, theirs) in sketches:
            mine.merge(theirs)
        for (_, own), (_, added) in zip(self.counts(), other.counts(), strict=True):
            own += added.to(own.device)
        self.examples += other.examples
        self.tasks += other.tasks

    def held(self) -> Iterator[Held]:
        """See `Memory`."""
        for name, sketch in self.sketches():
            for part, tensor in sketch.tensors().items():
                yield Held(f"{name}.{part}", _PURPOSES.get(part, "stored by the sketch"), tensor)
        for name, counts in self.counts():
            yield Held(name, _PURPOSES.get(name, "how often each token was seen"), counts)

    def diagnostics(self) -> dict[str, Any]:
        """See `Memory`."""
        return {
            "memory": self.name,
            "ridge": self.rule.settings().get("ridge"),
            "sketches": {name: sketch_diagnostics(sketch) for name, sketch in self.sketches()},
        }

    def state_dict(self) -> dict[str, Any]:
        """See `Memory`."""
        meta: dict[str, Any] = {"memory": self.name, "settings": self.settings()}
        meta |= {"examples": self.examples, "tasks": self.tasks, "logits": self.logits}
        tensors: dict[str, Tensor] = {}
        meta["sketches"] = {}
        for name, sketch in self.sketches():
            state = sketch.state_dict()
            meta["sketches"][name] = state["meta"]
            tensors |= {f"{name}.{k}": t for k, t in state["tensors"].items()}
        return {"meta": meta, "tensors": tensors | dict(self.counts())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Memory`."""
        meta, tensors = state["meta"], state["tensors"]
        trial = self.from_meta(meta)
        if trial.settings() != self.settings():
            raise StorageError(f"the state is of a layer memory with {meta['settings']}")
        trial.require_state(self.parameters, meta, tensors)
        trial.bind(self.parameters, self.output)
        load_sketches(trial.sketches(), meta["sketches"], tensors)
        for name, counts in trial.counts():
            counts.copy_(tensors[name])
        self.factors, self.others, self.spread = trial.factors, trial.others, trial.spread
        self.examples, self.tasks, self.logits = (int(meta[key]) for key in ("examples", "tasks", "logits"))

    def require_state(
        self, parameters: ProtectedParameters, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> set[str]:
        """See `Memory`."""
        try:
            planned, counts = self._layout.planned(parameters)
            counts |= {SPREAD: len(spread.empty(torch.device("cpu")))} if self.curvature.name == "traces" else {}
        except (TypeError, ValueError) as error:
            raise StorageError(f"settings: {error}") from error
        try:
            own = {name: tensors[name] for name in counts if name in tensors}
            require_parts({name: Part((size,), torch.float64) for name, size in counts.items()}, own)
            require_numbers(own)
        except ValueError as error:
            raise StorageError(str(error)) from error
        return require_sketches(planned, meta["sketches"], tensors, parameters.dtype) | set(counts)

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> "LayerMemory":
        """See `Memory`."""
        LAYERS(meta, schema.TOP)
        settings = dict(meta["settings"])
        short = {key: settings.pop(key, None) for key in _USUAL}
        if short["ridge"] is None:
            short["energy"] = None  # files have it with a pull too, where it says nothing
        else:
            short["damping"] = None  # and this with a ridge
        settings.setdefault("curvature", "positions")  # files of version 0.1 do not say
        settings.setdefault("apart", False)
        try:
            rule = rule_from(None, Pull(), **short)
            return cls(settings.pop("rank"), rule=rule, **{**settings, "sketch": SKETCHES[settings["sketch"]]})
        except (TypeError, ValueError) as error:
            raise StorageError(f"settings: {error}") from error


LayerSketch = LayerMemory
"""The name until version 0.1."""

_USUAL: dict[str, Any] = {
    "ridge": None,
    "strength": None,
    "damping": DAMPING,
    "energy": 1.0,
    "anchor_dtype": None,
}
"""What a file says of a rule's settings that the rule does not have."""

SPREAD = "outputs.spread"
"""The name of the outputs' moments among the tensors."""

_PURPOSES = {
    SPREAD: "number, sum and squares of the outputs, whose spread is the unit of changes",
    "rows": "sketch, or its eigenvectors in the same place",
    "matrix": "second moment, or its eigenvectors in the same place",
    "factor": "restores the sketch from its eigenvectors",
    "values": "eigenvalues",
}
