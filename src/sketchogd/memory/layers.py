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

from ..coverage import Covered
from ..errors import ProtectionWarning, StorageError
from ..ledger import Held
from ..model.batches import Output, batch_size, every_logit, logits_of
from ..model.layers import TRANSPOSED
from ..model.parameters import ProtectedParameters
from ..model.sensitivities import Reading, sign_rows
from ..projector.layers import LayerPlace, LayersProjector
from ..projector.rules import DAMPING, Pull, Rule, rule_from
from ..seeds import derive_seed
from ..sketch import REGISTRY as SKETCHES
from ..sketch import ProductSketch, SecondMoment, Sketch
from .base import Memory
from .curvature import CURVATURES
from .factors import LayerFactors
from .layout import Layout, Rank
from .others import OtherParameters
from .staging import Commit
from .state import load_sketch, sketch_diagnostics


class LayerMemory(Memory):
    """A sketch of the inputs and one of the output sensitivities of every layer, far smaller than gradients.

    By default weights are pulled back to where they were when the projector was made (`Pull`), which needs no tuning
    for each problem and one more copy of the weights. `Project` and `Shrink` need no copy; with inputs only,
    `LayerMemory(rank, rule=Shrink(0.0, energy=0.99), outputs=False)` is GPM (Saha et al. 2021), streaming.

    Args:
        rank: rows of each sketch, a number or {layer name or glob: number}. A factor with d <= rank keeps its exact
            second moment.
        rule: `Pull()` (default), `Shrink(ridge)` or `Project()`.
        ridge: short for `rule=Shrink(ridge, energy)`.
        strength: short for `rule=Pull(strength, damping, anchor_dtype)`.
        damping: see `strength`.
        outputs: False keeps inputs only, of single positions, and protects every output direction.
        sketch: the kind of sketch.
        seed: for test matrices and random combinations of logits.
        energy: see `ridge`.
        rest: rank of the sketch of gradients of the parameters that belong to no layer; by default a quarter of the
            rank, between 4 and 64.
        anchor_dtype: see `strength`.
        curvature: "traces" counts how all positions that share a weight change an output together (`PartialTraces`);
            "positions" counts single positions, as version 0.1 did (`SinglePositions`).
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
        sketch: type[Sketch] = ProductSketch,
        seed: int = 0,
        energy: float | None = None,
        rest: int | None = None,
        anchor_dtype: str | None = None,
        curvature: str = "traces",
    ) -> None:
        ranks = rank.values() if isinstance(rank, Mapping) else [rank]
        if not ranks or any(isinstance(r, bool) or not isinstance(r, int) or r < 1 for r in ranks):
            raise ValueError(f"rank is a positive integer, or one for each layer by name or glob; got {rank!r}")
        short = {"ridge": ridge, "strength": strength, "damping": damping, "energy": energy}
        self.rule = rule_from(rule, Pull(), **short, anchor_dtype=anchor_dtype)
        if curvature not in CURVATURES:
            raise ValueError(f"curvature is {' or '.join(map(repr, CURVATURES))}; got {curvature!r}")
        self.curvature = CURVATURES[curvature if outputs else "positions"]()
        self.rank = rank
        self.outputs = outputs
        self.sketch = sketch
        self.seed = seed
        self.rest = rest
        self.tasks = 0
        self.logits = 0

    factors: dict[str, LayerFactors]
    others: OtherParameters | None = None
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
        return plain | ({} if self.curvature.name == "positions" else {"curvature": self.curvature.name})

    def __repr__(self) -> str:
        rank = dict(self.rank) if isinstance(self.rank, Mapping) else self.rank
        said = [f"{rank!r}", f"rule={self.rule!r}"]
        said += [] if self.outputs else ["outputs=False"]
        said += [] if self.sketch is ProductSketch else [f"sketch={self.sketch.__name__}"]
        said += [f"seed={self.seed}"] if self.seed else []
        said += ['curvature="positions"'] if self.outputs and self.curvature.name == "positions" else []
        said += [] if self.rest is None else [f"rest={self.rest}"]
        return f"LayerMemory({', '.join(said)})"

    # ---------------------------------------------------------------- structure

    @property
    def _layout(self) -> Layout:
        return Layout(self.rank, self.outputs, self.sketch, self.seed, self.rest)

    def cost(self, parameters: ProtectedParameters) -> int:
        """See `Memory`."""
        return self._layout.cost(parameters)

    def _bind(self, parameters: ProtectedParameters, output: Output | None) -> None:
        """See `Memory`; the default output is every logit."""
        self.output = output or every_logit
        self.factors = self._layout.factors(parameters)
        found = self._layout.of_no_layer(parameters)
        self.others = None if found is None else OtherParameters(*found, self._output_of_others)

    def _output_of_others(self, output: Any, target: Any) -> Tensor:
        """The scalar whose gradient is sketched where a parameter has no layer; target: signs for `every_logit`."""
        return (logits_of(output) * target).sum() if self.output is every_logit else self.output(output, target)

    # ---------------------------------------------------------------- observing

    def stage(self, inputs: Any, targets: Any, ahead: int = 0) -> Commit:
        """See `Memory`. One forward pass and, for the sensitivities, one backward pass per logit.

        An example counts with the mean over its logits, in units of the first example's: where heads differ in size,
        the sensitivities of later ones are scaled by the root of first over own number of logits.
        """
        layers = [factors.layer for factors in self.factors.values()]
        seed = derive_seed(self.seed, "signs", self.examples + ahead)
        reading = Reading(self.parameters.model, layers, inputs, targets, self.output, seed)
        logits, scalars = 1, targets
        if self.output is every_logit:
            logits = reading.logits[0].numel()
            scalars = next(sign_rows(reading.logits.detach(), 1, derive_seed(seed, "rest")))
        if self.examples == 0:
            self._warn_of_unseen(reading)
        first = self.logits if self.logits and self.outputs else logits
        scale = (first / logits) ** 0.5
        if scale != 1.0 and self.output is every_logit:
            scalars = scalars * scale
        commits = [self.curvature.stage(self.factors, reading, scale)]
        if self.others is not None:
            commits.insert(0, self.others.stage(inputs, scalars))

        def commit() -> None:
            for each in commits:
                each()
            self.logits = first
            self.examples += batch_size(inputs)

        return commit

    def _warn_of_unseen(self, reading: Reading) -> None:
        """Warn of layers whose weights move the outputs, but not by a call that was recorded."""
        used = {use.layer.name for use in reading.uses}
        unseen = [factors.layer for name, factors in self.factors.items() if name not in used]
        if not unseen or not reading.outputs.requires_grad:
            return
        signs = next(sign_rows(reading.outputs.detach(), 1, self.seed))
        weights = [layer.weight for layer in unseen]
        found = torch.autograd.grad(reading.outputs, weights, signs, retain_graph=True, allow_unused=True)
        names = [layer.name for layer, g in zip(unseen, found, strict=True) if g is not None and bool((g != 0).any())]
        if names:
            warnings.warn(
                f"outputs depend on the weights of {', '.join(map(repr, names))}, which are not used as they are (they "
                "are masked, scaled or otherwise transformed first), so a layer memory sees nothing of them: they are "
                "NOT PROTECTED. Use a parametrization (torch.nn.utils.parametrize), whose parameters get a sketch of "
                "their gradients, or memory=so.ProductSketch(rank)",
                ProtectionWarning,
                stacklevel=5,
            )

    def coverage(self) -> Iterator[Covered]:
        """See `Memory`."""
        for name, factors in self.factors.items():
            seen = factors.trace > 0
            for tensor in (factors.layer.weight, factors.layer.bias):
                if tensor is not None:
                    yield Covered(tensor, f"layer {name!r}, {self.curvature.name}", seen)
        if self.others is not None:
            for tensor in self.others.parameters.tensors:
                yield Covered(tensor, f"gradients, {self.others.sketch!r}", self.others.sketch.count > 0)

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
            yield "rest", self.others.sketch

    def counts(self) -> Iterator[tuple[str, Tensor]]:
        """The token counts of embeddings, by name."""
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
                if not isinstance(sketch, ProductSketch | SecondMoment):
                    raise ValueError(
                        f"some examples have {logits} logits and others {self.logits}, which sketches of kind "
                        f"{type(sketch).__name__} cannot weigh against each other; use sketch=so.ProductSketch"
                    )
                if traces or not name.endswith(".inputs"):
                    sketch.scale(logits / self.logits)
            for _, counts in self.counts():
                counts *= logits / self.logits if traces else 1.0
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
            places[name] = LayerPlace(index[id(layer.weight)], bias, layer.kind in TRANSPOSED)
            if spectra is not None:
                layers[name] = self.rule.on_layer(spectra, self.weight)
        others = None if self.others is None else self.others.projector(self.rule, self.weight)
        indices = () if self.others is None else self.others.indices(tensors)
        return LayersProjector(self.parameters, layers, places, others, indices, self.rule.anchor)

    @property
    def weight(self) -> float:
        """What a square change of one logit of one example weighs: tasks over (logits · examples).

        The mean square change of a task's logits then weighs 1 where all tasks have equally many examples; otherwise
        each task has the share of its examples. Where no task was ever ended, all examples are one.
        """
        logits = max(1, self.logits) if self.outputs else 1  # of inputs alone no logit enters
        return max(1, self.tasks) / (logits * max(1, self.examples))

    def sensitivity(self) -> None:
        """None: `theory.layer_change_bound` is in terms of what the optimizer proposed, and counts unseen pairs."""

    # ---------------------------------------------------------------- bytes and state

    def merge(self, other: "LayerMemory") -> None:
        """See `Memory`."""
        self.require_same_model(other)
        if other.settings() != self.settings() or list(other.factors) != list(self.factors):
            raise ValueError(f"{other!r} cannot be merged into {self!r}: settings and layers must be equal")
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
            yield Held(name, "how often each token was seen", counts)

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
        names = [name for name, _ in self.sketches()]
        trial = self.from_meta(meta)
        if trial.settings() != self.settings() or list(meta["sketches"]) != names:
            raise StorageError(f"the state is of a layer memory with {meta['settings']} on {list(meta['sketches'])}")
        trial.bind(self.parameters, self.output)
        for name, sketch in trial.sketches():
            load_sketch(sketch, meta["sketches"][name], tensors, name)
        for name, counts in trial.counts():
            found = tensors.get(name)
            if found is None or found.shape != counts.shape:
                raise StorageError(f"{name!r}, the counts of an embedding, are missing or of another size")
            counts.copy_(found)
        self.factors, self.others = trial.factors, trial.others
        self.examples, self.tasks, self.logits = (int(meta[key]) for key in ("examples", "tasks", "logits"))

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> "LayerMemory":
        """See `Memory`."""
        settings = dict(meta["settings"])
        short = {key: settings.pop(key, None) for key in _USUAL}
        if short["ridge"] is None:
            short["energy"] = None  # files have it with a pull too, where it says nothing
        else:
            short["damping"] = None  # and this with a ridge
        rule = rule_from(None, Pull(), **short)
        settings.setdefault("curvature", "positions")  # files of version 0.1 do not say
        return cls(settings.pop("rank"), rule=rule, **{**settings, "sketch": SKETCHES[settings["sketch"]]})


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

_PURPOSES = {
    "rows": "sketch, or its eigenvectors in the same place",
    "matrix": "second moment, or its eigenvectors in the same place",
    "factor": "restores the sketch from its eigenvectors",
    "values": "eigenvalues",
}
