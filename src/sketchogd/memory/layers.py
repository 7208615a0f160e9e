"""Our memory: for each layer one sketch of its inputs and one of its output sensitivities.

The gradient of an output with respect to a layer's weight is δ aᵀ, so the block of G Gᵀ that belongs to the layer is
E[(δ δᵀ) ⊗ (a aᵀ)], which is approximated by E[δ δᵀ] ⊗ E[a aᵀ], as K-FAC does for curvature. Letters: a input rows,
δ sensitivities (the gradient of every logit with respect to the layer's output), λ eigenvalues, V eigenvectors.
Parameters of no layer (norms, free parameters, recurrent cells) get a small sketch of their gradients.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import StorageError
from ..ledger import Held
from ..model.batches import Output, batch_size, call, evaluating, every_logit, logits_of
from ..model.gradients import GradientSignals
from ..model.layers import Use, record
from ..model.parameters import ProtectedParameters
from ..model.sensitivities import deltas_of, sign_rows
from ..projector import BasisProjector, LayersProjector, soft_weights
from ..seeds import derive_seed
from ..sketch import REGISTRY as SKETCHES
from ..sketch import ProductSketch, Sketch
from .base import Memory
from .factors import LayerPair, require_finite_uses
from .gradients import require_finite
from .layer_products import Product, products_of
from .layout import Layout, Rank
from .state import load_sketch, sketch_diagnostics

STRENGTH, DAMPING = 2.0, 0.05
"""The usual weight of remembered logits against a new task's loss, and of output directions: see `LayerSketch`."""


class LayerSketch(Memory):
    """Layer memory: a sketch of the inputs and one of the output sensitivities of every layer.

    `rank`: rows of each sketch, a number or {layer name or glob: number}; a factor with d <= rank keeps its exact
    second moment. `outputs=False` keeps inputs only and protects every output direction. `rest`: rank of the gradient
    sketch of the parameters that belong to no layer (default: a quarter of the rank, between 4 and 64).

    There are two ways to protect. By default weights are pulled back to where they were when the projector was made
    (their anchor, one more copy of the weights): training then descends on the new loss + `strength`/2 · the mean
    square change of remembered logits, summed over tasks, which is a balance that needs no tuning for each problem.
    `damping` adds that share of the largest sensitivity to every output direction, for what later layers may come to
    read there. `anchor_dtype="int8"` keeps the anchor in one byte a weight (`copies`). With `ridge`, instead, each
    displacement is shrunk once, α = λδλa / (λδλa + ridge · mean): 0 is a hard projection, larger is softer. `energy`
    < 1 drops the smallest products, which hold less than the rest of the energy; with ridge=0, energy=0.99 and
    outputs=False that is GPM, streaming.
    """

    name = "layers"

    def __init__(
        self,
        rank: Rank,
        *,
        ridge: float | None = None,
        strength: float | None = None,
        damping: float | None = None,
        outputs: bool = True,
        sketch: type[Sketch] = ProductSketch,
        seed: int = 0,
        energy: float = 1.0,
        rest: int | None = None,
        anchor_dtype: str | None = None,
    ) -> None:
        ranks = rank.values() if isinstance(rank, Mapping) else [rank]
        if not ranks or any(isinstance(r, bool) or not isinstance(r, int) or r < 1 for r in ranks):
            raise ValueError(f"rank is a positive integer, or one for each layer by name or glob; got {rank!r}")
        if ridge is not None and strength is not None:
            raise ValueError(
                "ridge= is for a fixed soft projection, strength= for a pull to the anchor; give one of them"
            )
        if ridge is not None and not ridge >= 0:
            raise ValueError(f"ridge is a number >= 0 (0 projects hard); got {ridge!r}")
        if not (strength is None or strength > 0) or not (damping is None or damping >= 0):
            raise ValueError(f"strength is a number > 0 and damping one >= 0; got {strength!r} and {damping!r}")
        if not 0 < energy <= 1:
            raise ValueError(f"energy is a share in (0, 1]; got {energy!r}")
        if anchor_dtype not in (None, "int8"):
            raise ValueError(f'anchor_dtype is "int8", or None for that of the weights; got {anchor_dtype!r}')
        if ridge is not None and anchor_dtype is not None:
            raise ValueError("anchor_dtype= is for the anchor, and with ridge= there is none; leave one of them out")
        self.rank = rank
        self.ridge = None if ridge is None else float(ridge)
        self.strength = (STRENGTH if strength is None else float(strength)) if ridge is None else None
        self.damping = DAMPING if damping is None else float(damping)
        self.tasks = 0
        self.logits = 0
        self.outputs = outputs
        self.sketch = sketch
        self.seed = seed
        self.energy = float(energy)
        self.rest = rest
        self.anchor_dtype = anchor_dtype

    pairs: dict[str, LayerPair]
    rest_parameters: ProtectedParameters | None = None
    rest_sketch: Sketch | None = None
    rest_signals: GradientSignals | None = None
    output: Output

    @property
    def separate(self) -> bool:
        """Eigenvectors stand in the place of the sketches."""
        return False

    def settings(self) -> dict[str, Any]:
        """The settings as plain data."""
        rank = dict(self.rank) if isinstance(self.rank, Mapping) else self.rank
        plain: dict[str, Any] = {"rank": rank, "ridge": self.ridge, "strength": self.strength, "damping": self.damping}
        plain |= {"outputs": self.outputs, "sketch": self.sketch.name}
        return {**plain, "seed": self.seed, "energy": self.energy, "rest": self.rest, "anchor_dtype": self.anchor_dtype}

    def __repr__(self) -> str:
        return f"LayerSketch({', '.join(f'{key}={value!r}' for key, value in self.settings().items())})"

    # ---------------------------------------------------------------- structure

    @property
    def _layout(self) -> Layout:
        return Layout(self.rank, self.outputs, self.sketch, self.seed, self.rest)

    def cost(self, parameters: ProtectedParameters) -> int:
        """See `Memory`."""
        return self._layout.cost(parameters)

    def bind(self, parameters: ProtectedParameters, output: Output | None) -> None:
        """See `Memory`; the default output is every logit."""
        self.parameters = parameters
        self.output = output or every_logit
        self.pairs = self._layout.pairs(parameters)
        self.rest_parameters, self.rest_sketch = self._layout.of_no_layer(parameters) or (None, None)
        if self.rest_parameters is not None and self.rest_sketch is not None:
            self.rest_sketch.bind(self.rest_parameters.p, parameters.dtype, parameters.device)
            self.rest_signals = GradientSignals(self.rest_parameters, self._rest_output)

    def _rest_output(self, output: Any, target: Any) -> Tensor:
        """The scalar whose gradient is remembered for the rest: for `every_logit` a random combination of them."""
        return (logits_of(output) * target).sum() if self.output is every_logit else self.output(output, target)

    # ---------------------------------------------------------------- observing

    def observe(self, inputs: Any, targets: Any) -> None:
        """See `Memory`. One forward pass and, for the sensitivities, one backward pass a logit."""
        uses, deltas, rest_targets = self._read(inputs, targets)
        products, seen = None, []
        sketches = {(name, part): sketch for name, pair in self.pairs.items() for part, sketch in pair.sketches()}
        if all(Product.possible(sketch) for sketch in sketches.values()):
            products = products_of(uses, deltas, sketches)
            if products is None:
                uses, deltas, rest_targets = self._read(inputs, targets)
        if products is None:
            # A sketch of another kind, or numbers that are not finite or that float32 cannot square: row by row.
            seen = list(deltas)
            require_finite_uses(uses, seen, inputs)
        if self.rest_signals is not None and self.rest_sketch is not None:
            require_finite(self.rest_signals, inputs, rest_targets)
            # The rest comes first: a single chunk is checked by its sketch, and nothing else has changed by then.
            for rows in self.rest_signals.chunks(inputs, rest_targets):
                self.rest_sketch.observe(rows)
        if products is None:
            self._observe_rows(uses, seen)
        else:
            for product in products:
                product.commit()
        for use in uses:
            counts = self.pairs[use.layer.name].counts
            if counts is not None:
                counts += torch.bincount(use.input.flatten(), minlength=len(counts))
        self.examples += batch_size(inputs)

    def _read(self, inputs: Any, targets: Any) -> tuple[list[Use], Iterator[Sequence[Tensor]], Any]:
        """The uses of the layers, the sensitivities of one scalar after the other, and targets for the rest."""
        model, seed = self.parameters.model, derive_seed(self.seed, "signs", self.examples)
        with evaluating(model):
            result, uses = record([pair.layer for pair in self.pairs.values()], lambda: call(model, inputs))
        deltas: Iterator[Sequence[Tensor]] = iter(())
        if self.outputs and uses:
            deltas = deltas_of(result, targets, [use.edge for use in uses], self.output, seed)
        self.logits = 1
        if self.output is every_logit:
            self.logits = logits_of(result)[0].numel()
            targets = next(sign_rows(logits_of(result).detach(), 1, derive_seed(seed, "rest")))
        return uses, deltas, targets

    def _observe_rows(self, uses: list[Use], deltas: list[Sequence[Tensor]]) -> None:
        """The slow twin of `products_of`, for every kind of sketch."""
        for i, use in enumerate(uses):
            self.pairs[use.layer.name].observe(use, [delta[i] for delta in deltas], self.parameters.dtype)

    def end_task(self) -> None:
        """See `Memory`."""
        self.tasks += 1
        for _, sketch in self._sketches():
            sketch.end_task()

    def sketches(self) -> Iterator[tuple[str, Sketch]]:
        """See `Memory`."""
        return self._sketches()

    def skip(self, examples: int) -> None:
        """See `Memory`; the combinations of logits that are sketched follow the number of the example."""
        self.examples += examples

    def has_logits(self, logits: int) -> None:
        """Say how many logits an example has, for a process that has seen none."""
        self.logits = logits

    def _sketches(self) -> Iterator[tuple[str, Sketch]]:
        for name, pair in self.pairs.items():
            for part, sketch in pair.sketches():
                yield f"{name}.{part}", sketch
        if self.rest_sketch is not None:
            yield "rest", self.rest_sketch

    # ---------------------------------------------------------------- projecting

    def projector(self) -> LayersProjector:
        """See `Memory`."""
        index = {id(t): i for i, t in enumerate(self.parameters.tensors)}
        layers, places = {}, {}
        for name, pair in self.pairs.items():
            layer = pair.layer
            bias = None if layer.bias is None else index[id(layer.bias)]
            places[name] = (index[id(layer.weight)], bias, layer.kind == "embedding")
            if self.ridge is None:
                projector = pair.pulling(self._weight, self.damping)
            else:
                projector = pair.shrinking(self.ridge, self.energy)
            if projector is not None:
                layers[name] = projector
        rest: BasisProjector | None = None
        rest_indices: tuple[int, ...] = ()
        if self.rest_parameters is not None and self.rest_sketch is not None:
            rest_indices = tuple(index[id(t)] for t in self.rest_parameters.tensors)
            values, B = self.rest_sketch.spectrum()
            if len(values):
                if self.ridge is None:
                    rest = BasisProjector(B, pull=(self._weight * values).to(B.dtype))
                else:
                    mean = self.rest_sketch.energy / self.rest_parameters.p
                    alpha = soft_weights(values, self.ridge, mean).to(B.dtype)
                    rest = BasisProjector(B, None if self.ridge == 0 else alpha)
        return LayersProjector(self.parameters, layers, places, rest, rest_indices, self.anchored, self.rounded)

    @property
    def anchored(self) -> bool:
        """See `Memory`."""
        return self.ridge is None

    @property
    def rounded(self) -> bool:
        """See `Memory`."""
        return self.anchor_dtype == "int8"

    @property
    def _weight(self) -> float:
        """What a square change of one logit of one example weighs: strength · tasks over (logits · examples).

        The mean square change of a task's logits then weighs `strength`, and every task as much as any other; where no
        task was ever ended, all examples are one.
        """
        assert self.strength is not None
        return self.strength * max(1, self.tasks) / (max(1, self.logits) * max(1, self.examples))

    def sensitivity(self) -> None:
        """None: `theory.layer_change_bound` is in terms of what the optimizer proposed, and counts unseen pairs."""

    # ---------------------------------------------------------------- bytes and state

    def merge(self, other: "LayerSketch") -> None:
        """See `Memory`."""
        self.require_same_model(other)
        if other.settings() != self.settings() or list(other.pairs) != list(self.pairs):
            raise ValueError(f"{other!r} cannot be merged into {self!r}: settings and layers must be equal")
        sketches = list(zip(self.sketches(), other.sketches(), strict=True))
        for (_, mine), (_, theirs) in sketches:
            mine.require_mergeable(theirs)
        for (_, mine), (_, theirs) in sketches:
            mine.merge(theirs)
        for name, pair in self.pairs.items():
            counts = other.pairs[name].counts
            if pair.counts is not None and counts is not None:
                pair.counts += counts.to(pair.counts.device)
        self.examples += other.examples
        self.tasks += other.tasks
        self.logits = max(self.logits, other.logits)

    def held(self) -> Iterator[Held]:
        """See `Memory`."""
        for name, sketch in self._sketches():
            for part, tensor in sketch.tensors().items():
                yield Held(f"{name}.{part}", _PURPOSES.get(part, "stored by the sketch"), tensor)
        for name, pair in self.pairs.items():
            if pair.counts is not None:
                yield Held(f"{name}.counts", "how often each token was seen", pair.counts)

    def diagnostics(self) -> dict[str, Any]:
        """See `Memory`."""
        return {
            "memory": self.name,
            "ridge": self.ridge,
            "sketches": {name: sketch_diagnostics(sketch) for name, sketch in self._sketches()},
        }

    def state_dict(self) -> dict[str, Any]:
        """See `Memory`."""
        meta: dict[str, Any] = {"memory": self.name, "settings": self.settings()}
        meta |= {"examples": self.examples, "tasks": self.tasks, "logits": self.logits}
        tensors: dict[str, Tensor] = {}
        meta["sketches"] = {}
        for name, sketch in self._sketches():
            state = sketch.state_dict()
            meta["sketches"][name] = state["meta"]
            tensors |= {f"{name}.{k}": t for k, t in state["tensors"].items()}
        for name, pair in self.pairs.items():
            if pair.counts is not None:
                tensors[f"{name}.counts"] = pair.counts
        return {"meta": meta, "tensors": tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Memory`."""
        meta, tensors = state["meta"], state["tensors"]
        names = [name for name, _ in self._sketches()]
        trial = self.from_meta(meta)
        if trial.settings() != self.settings() or list(meta["sketches"]) != names:
            raise StorageError(f"the state is of LayerSketch({meta['settings']}) on {list(meta['sketches'])}")
        trial.bind(self.parameters, self.output)
        for name, sketch in trial._sketches():
            load_sketch(sketch, meta["sketches"][name], tensors, name)
        for name, pair in trial.pairs.items():
            if pair.counts is not None:
                counts = tensors.get(f"{name}.counts")
                if counts is None or counts.shape != pair.counts.shape:
                    raise StorageError(f"the counts of embedding {name!r} are missing or of another size")
                pair.counts.copy_(counts)
        self.pairs, self.rest_sketch = trial.pairs, trial.rest_sketch
        self.examples, self.tasks, self.logits = (int(meta[key]) for key in ("examples", "tasks", "logits"))

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> "LayerSketch":
        """See `Memory`."""
        settings = dict(meta["settings"])
        return cls(settings.pop("rank"), **{**settings, "sketch": SKETCHES[settings["sketch"]]})


_PURPOSES = {
    "rows": "sketch, or its eigenvectors in the same place",
    "matrix": "second moment, or its eigenvectors in the same place",
    "factor": "restores the sketch from its eigenvectors",
    "values": "eigenvalues",
}
