"""All layers of a layer memory together, each with a projector of its own.

Layers whose weights have one shape are computed with at once (`linalg.stacks`), so that a network of many small layers
does not wait for as many kernels. Where weights are split over processes, what all of their layers need of each other
is summed in one all-reduce, or in several of about SUM_BYTES.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..linalg.stacks import alike
from ..model.parameters import ProtectedParameters
from .base import Anchor, Projector
from .kronecker import WHOLE, LayerProjector, LayerStack, Part
from .layer_parts import Compute, LayerPlace, replace, replace_parts
from .span import Span


@dataclass(eq=False)
class LayersProjector(Projector):
    """A `LayerProjector` per layer, and a projector on a basis for the parameters that belong to no layer.

    Args:
        parameters: the protected parameters.
        layers: projectors by layer; a layer of which nothing is remembered has none.
        places: where each layer's weight and bias are.
        others: the projector of the parameters that belong to no layer, None where there is none.
        other_indices: which parameters these are.
        anchor: how the weights that are pulled back to are stored, None where nothing is pulled.
    """

    parameters: ProtectedParameters
    layers: dict[str, LayerProjector]
    places: dict[str, LayerPlace]
    others: Projector | None
    other_indices: tuple[int, ...]
    anchor: Anchor | None = None

    def __post_init__(self) -> None:
        self.columns = self.parameters.columns

    @property
    def empty(self) -> bool:
        """Whether no layer and no other parameter is protected yet."""
        return not self.layers and (self.others is None or self.others.empty)

    @property
    def hard(self) -> bool:
        """Whether every part is hard."""
        return all(layer.hard for layer in self.layers.values()) and (self.others is None or self.others.hard)

    def span(self, index: int) -> Span | None:
        """See `Projector`: of a layer the directions of its inputs, of an embedding those of its outputs."""
        return self._spans.get(index) if self.anchor is not None and self.anchor.in_span else None

    @cached_property
    def _spans(self) -> dict[int, Span | None]:
        tensors = self.parameters.tensors
        return {place.weight: place.span(self.layers.get(name), tensors) for name, place in self.places.items()}

    @cached_property
    def _stacks(self) -> list[tuple[LayerStack, list[LayerPlace]]]:
        """The layers of which something is remembered, alike ones together."""
        names = [name for name in self.places if name in self.layers]
        places, layers = [self.places[name] for name in names], [self.layers[name] for name in names]
        # Of split weights the shapes of the whole ones, so that stacks are the same in all processes.
        shapes = [self.parameters.shapes[place.weight] for place in places]
        keys = [
            (type(layer), layer.kind, (shape[0], shape[1:].numel()), place.transposed, place.bias is None)
            for layer, place, shape in zip(layers, places, shapes, strict=True)
        ]
        sizes = [self.parameters.dtype.itemsize * shape.numel() for shape in shapes]
        return [
            (layers[i].stack([layers[j] for j in found], self._part(places[i])), [places[j] for j in found])
            for i, *more in alike(keys, sizes, self.parameters.device)
            for found in [[i, *more]]
        ]

    def _part(self, place: LayerPlace) -> Part:
        """What is here of a layer's ΔW."""
        if not self.parameters.split:
            return WHOLE
        rows = self.parameters.rows(place.weight)
        return Part(columns=rows) if place.transposed else Part(rows=rows)

    def protected_part_(self, v: Tensor, travelled: float = 1.0) -> Tensor:
        """A v, layer by layer; a layer of which nothing is remembered has A = 0."""
        self._replace(
            [v],
            lambda stack, Ms, totals: stack.protected_part(Ms[0], travelled, totals[0]),
            lambda others, vectors: others.protected_part_(vectors[0], travelled),
        )
        return v

    def relaxed_(self, tension: Tensor, moved: Tensor) -> Tensor:
        """See `Projector`, layer by layer."""
        self._replace(
            [tension, moved],
            lambda stack, Ms, totals: stack.relaxed(Ms[0], Ms[1], totals, self.columns.vector_total),
            lambda others, vectors: others.relaxed_(vectors[0], vectors[1]),
        )
        return tension

    def _replace(
        self, vectors: Sequence[Tensor], of_layers: Compute, of_others: Callable[[Projector, list[Tensor]], Tensor]
    ) -> None:
        """Overwrite the first of these vectors by what is computed from them."""
        pieces = [self.parameters.unflatten(v) for v in vectors]
        if self.parameters.split:
            replace_parts(self.parameters, self._stacks, pieces, of_layers)
        else:
            replace(self._stacks, pieces, of_layers)
        unseen = [place for name, place in self.places.items() if name not in self.layers]
        if unseen:
            indices = [i for place in unseen for i in (place.weight, place.bias) if i is not None]
            torch._foreach_zero_([pieces[0][i] for i in indices])
        if self.other_indices:
            others = [[each[i] for i in self.other_indices] for each in pieces]
            if self.others is None or self.others.empty:
                torch._foreach_zero_(others[0])
            else:
                found = [self._vector_of_others(each) for each in others]
                of_others(self.others, [vector for vector, _ in found])
                torch._foreach_copy_(others[0], found[0][1])

    def _vector_of_others(self, pieces: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The parameters of no layer as one vector, and their places in it; where they are split, the rest is zero."""
        shapes = [self.parameters.shapes[i] for i in self.other_indices]
        vector = pieces[0].new_zeros(sum(shape.numel() for shape in shapes))
        wholes = [t.view(shape) for t, shape in zip(vector.split([s.numel() for s in shapes]), shapes, strict=True)]
        if self.parameters.split:
            wholes = [whole[self.parameters.rows(i)] for whole, i in zip(wholes, self.other_indices, strict=True)]
        torch._foreach_copy_(wholes, pieces)
        return vector, wholes
