"""Which sketches a layer memory has, from its settings: two per layer, one per module for parameters of no layer."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby

import torch

from ..model.layers import TRANSPOSED, Layer, find_layers
from ..model.parameters import ProtectedParameters, local
from ..projector.span import Span
from ..seeds import derive_seed
from ..sketch import GradientSketch, ProductSketch, SecondMoment, Sketch, SketchedMoment
from ..sketch.columns import Whole
from .curvature import LayerFactors
from .state import Planned

Rank = int | Mapping[str, int]

REST = "rest"
"""Begins the names of the sketches of parameters of no layer; that of the module, if it has one, follows a colon."""


@dataclass(frozen=True, eq=False)
class OfNoLayer:
    """Some of the parameters that belong to no layer: where they are among all of these, and their sketch."""

    name: str
    place: slice
    sketch: Sketch

    @property
    def p(self) -> int:
        """How many numbers they are."""
        return int(self.place.stop - self.place.start)


@dataclass(frozen=True)
class Layout:
    """The settings from which the sketches of a layer memory follow.

    Args:
        rank: rows of each sketch, for all layers or by "layer.inputs" and "layer.outputs", layer name, or glob.
        outputs: whether sensitivities are sketched.
        sketch: the kind of sketch for factors longer than their rank; shorter ones keep their exact second moment.
        seed: for test matrices.
        rest: rank of the sketches of gradients of the parameters that belong to no layer.
        tied: whether an embedding that is an output layer too is a layer.
        apart: whether each module has a sketch of its own for these, or all of them have one.
    """

    rank: Rank
    outputs: bool
    sketch: type[Sketch]
    seed: int
    rest: int | None
    tied: bool = True
    apart: bool = True

    def layers(self, parameters: ProtectedParameters) -> Iterator[tuple[Layer, Sketch | None, Sketch | None]]:
        """Each layer with the unbound sketches of its inputs (an embedding has counts instead) and of its outputs."""
        for layer in find_layers(parameters, self.tied):
            inputs = None if layer.kind == "embedding" else self._sketch(layer.name, "inputs", layer.width)
            yield layer, inputs, self._sketch(layer.name, "outputs", layer.fan_out) if self.outputs else None

    def factors(self, parameters: ProtectedParameters) -> dict[str, LayerFactors]:
        """The factors of each layer, bound and empty, by its name."""
        dtype, device = parameters.dtype, parameters.device
        found = {}
        for layer, inputs, outputs in self.layers(parameters):
            counts = torch.zeros(layer.fan_in, dtype=torch.float64, device=device) if inputs is None else None
            if inputs is not None:
                inputs.bind(layer.width, dtype, device)
            if outputs is not None:
                outputs.bind(layer.fan_out, dtype, device)
            found[layer.name] = LayerFactors(layer, inputs, counts, outputs)
        return found

    def planned(self, parameters: ProtectedParameters) -> tuple[list[Planned], dict[str, int]]:
        """All sketches in the order of files, unbound, and the sizes of the token counts by their names in files."""
        sketches, counts = [], {}
        for layer, inputs, outputs in self.layers(parameters):
            if inputs is None:
                counts[f"{layer.name}.counts"] = layer.fan_in
            else:
                sketches.append(Planned(f"{layer.name}.inputs", inputs, Whole(layer.width)))
            if outputs is not None:
                sketches.append(Planned(f"{layer.name}.outputs", outputs, Whole(layer.fan_out)))
        found = self.of_no_layer(parameters)
        if found is not None:
            sketches += [Planned(each.name, each.sketch, Whole(each.p)) for each in found[1]]
        return sketches, counts

    def spans(self, parameters: ProtectedParameters) -> list[Span | None]:
        """As many directions of each parameter as its sketch can hold; their numbers are not set."""
        found: dict[int, Span] = {}
        for layer in find_layers(parameters, self.tied):
            tokens, width = layer.tokens, layer.width
            n = layer.fan_out if tokens else layer.fan_in
            rows = min(self._rank_of(layer.name, "outputs" if tokens else "inputs"), n if tokens else width)
            basis = local(layer.weight.detach()).new_empty(1, 1).expand(rows, n)
            found[id(layer.weight)] = Span(basis, None, layer.kind in TRANSPOSED and not tokens)
        return [found.get(id(t)) for t in parameters.tensors]

    def of_no_layer(self, parameters: ProtectedParameters) -> tuple[ProtectedParameters, list["OfNoLayer"]] | None:
        """The parameters that belong to no layer, if there are any, and unbound sketches for their gradients."""
        covered = {
            id(t) for layer in find_layers(parameters, self.tied) for t in (layer.weight, layer.bias) if t is not None
        }
        held = {id(t) for t in parameters.tensors if id(t) not in covered}
        if not held:
            return None
        others = ProtectedParameters(parameters.model, lambda _, t: id(t) in held)
        runs: list[tuple[str, int]] = [(REST, others.p)]
        if self.apart:
            sizes = zip(others.names, others.places, strict=True)
            owned = groupby(sizes, lambda found: found[0].rpartition(".")[0])
            runs = [
                (f"{REST}:{owner}" if owner else REST, sum(place.stop - place.start for _, place in own))
                for owner, own in owned
            ]
        found, start, rank = [], 0, self.rank_of_others
        for name, p in runs:
            sketch = SecondMoment() if p <= rank else ProductSketch(rank, seed=derive_seed(self.seed, name))
            found.append(OfNoLayer(name, slice(start, start + p), sketch))
            start += p
        return others, found

    def cost(self, parameters: ProtectedParameters) -> int:
        """The bytes of all sketches and counts."""
        itemsize = parameters.dtype.itemsize
        found = self.of_no_layer(parameters)
        total = 0 if found is None else sum(each.sketch.cost(each.p, itemsize) for each in found[1])
        for layer, inputs, outputs in self.layers(parameters):
            total += layer.fan_in * 8 if inputs is None else inputs.cost(layer.width, itemsize)
            total += 0 if outputs is None else outputs.cost(layer.fan_out, itemsize)
        return total

    def _sketch(self, name: str, part: str, d: int) -> Sketch:
        rank = self._rank_of(name, part)
        if d <= rank:
            return SecondMoment()
        if issubclass(self.sketch, (SketchedMoment, GradientSketch)):
            return self.sketch(rank, seed=derive_seed(self.seed, name, part))
        return self.sketch(rank)  # type: ignore[call-arg]

    def _rank_of(self, name: str, part: str) -> int:
        if not isinstance(self.rank, Mapping):
            return self.rank
        for exact in (f"{name}.{part}", name):
            if exact in self.rank:
                return self.rank[exact]
        for glob, rank in self.rank.items():
            if fnmatchcase(name, glob):
                return rank
        raise ValueError(f'rank has no entry for layer {name!r}; add one, or a glob such as "*"')

    @property
    def rank_of_others(self) -> int:
        """That of the sketches of gradients of the parameters that belong to no layer."""
        if self.rest is not None:
            return self.rest
        ranks = self.rank.values() if isinstance(self.rank, Mapping) else [self.rank]
        return min(64, max(4, max(ranks) // 4))
