"""The parameters that belong to no layer, module by module: each module's are a layer with one output.

A module's parameters, one after the other, are a ΔW (1, p), and what is kept of their gradients are its inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..linalg.stacks import alike
from ..sketch.columns import UNSPLIT, Columns
from .base import Projector
from .kronecker import WHOLE, LayerProjector, LayerStack, Part
from .layer_parts import Compute, LayerPlace, Stacks, replace


@dataclass(eq=False)
class ModulesProjector(Projector):
    """A `LayerProjector` per module; parameters of no module here have A = 0.

    Args:
        places: where the parameters of each module are.
        layers: their projectors.
        columns: where vectors are split over processes, each has all entries here, and zeros for those of others.
    """

    places: list[slice]
    layers: list[LayerProjector]
    columns: Columns = UNSPLIT
    _stacks: dict[bool, list[tuple[LayerStack, list[LayerPlace]]]] = field(default_factory=dict, repr=False)

    @property
    def empty(self) -> bool:
        """Whether there are no modules."""
        return not self.layers

    @property
    def hard(self) -> bool:
        """Whether every part is hard."""
        return all(layer.hard for layer in self.layers)

    def protected_part_(self, v: Tensor, travelled: float = 1.0) -> Tensor:
        """See `Projector`."""

        def compute(stack: LayerStack, Ms: list[Tensor], totals: list[Tensor | None]) -> Tensor:
            return stack.protected_part(Ms[0], travelled, totals[0])

        pieces = self._pieces(v)
        stacks = self._stacked(self.columns is not UNSPLIT)
        replace(stacks, [pieces], compute if self.columns is UNSPLIT else self._summed(stacks, pieces, compute))
        return self._without_others_(v)

    def relaxed_(self, tension: Tensor, moved: Tensor) -> Tensor:
        """See `Projector`; in all processes of whole vectors."""
        vectors = [self._pieces(self.columns.total(v)) for v in (tension, moved)]
        replace(self._stacked(False), vectors, lambda stack, Ms, totals: stack.relaxed(Ms[0], Ms[1]))
        return self._without_others_(tension)

    def _pieces(self, v: Tensor) -> list[Tensor]:
        return [v[place][None] for place in self.places]

    def _stacked(self, split: bool) -> list[tuple[LayerStack, list[LayerPlace]]]:
        """Modules with equally many parameters together, of all or of the entries here."""
        if split not in self._stacks:
            sizes = [place.stop - place.start for place in self.places]
            keys = [(layer.kind, size) for layer, size in zip(self.layers, sizes, strict=True)]
            values = self.layers[0].spectra.input_values
            self._stacks[split] = [
                (
                    self.layers[some[0]].stack(
                        [self.layers[i] for i in some], Part(columns=slice(0, sizes[some[0]])) if split else WHOLE
                    ),
                    [LayerPlace(i, None, False) for i in some],
                )
                for some in alike(keys, [values.itemsize * size for size in sizes], values.device)
            ]
        return self._stacks[split]

    def _summed(self, stacks: Stacks, pieces: Sequence[Tensor], compute: Compute) -> Compute:
        """`compute` with the totals over all processes, which are summed at once."""
        here = [stack.summand(torch.stack([pieces[place.weight] for place in places])) for stack, places in stacks]
        sums = [t for t in here if t is not None]
        totals = self.columns.total(torch.cat([t.flatten() for t in sums])).split([t.numel() for t in sums])
        found = iter([total.view(t.shape) for total, t in zip(totals, sums, strict=True)])
        return lambda stack, Ms, _: compute(stack, Ms, [next(found)])

    def _without_others_(self, v: Tensor) -> Tensor:
        """Zero what lies between modules, of which nothing is remembered."""
        ends, starts = [0, *(place.stop for place in self.places)], [place.start for place in self.places]
        for end, start in zip(ends, [*starts, len(v)], strict=True):
            if end < start:
                v[end:start].zero_()
        return v
