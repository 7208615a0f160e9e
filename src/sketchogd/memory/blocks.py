"""A block of a gradient memory: some of the parameters, the sketch of their part of the gradients, and its projector.

Letters as in `gradients`: p parameters, J blocks, λ eigenvalues.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..ledger import Held
from ..linalg.dense import gram
from ..model.parameters import ProtectedParameters
from ..projector.base import Projector
from ..projector.rules import BasisSpectra, Rule
from ..sketch import Sketch
from ..sketch.columns import Columns, Whole

_PURPOSES = {
    "rows": "sketch, or its basis in the same place",
    "factor": "restores the sketch from its basis",
    "values": "estimated eigenvalues",
}


def places(parameters: ProtectedParameters, J: int) -> list[slice]:
    """J blocks of nearly equal size, in the order of the parameters."""
    p = parameters.p
    if J == 1:
        return [slice(0, p)]
    if p < J:
        raise ValueError(f"{p:,} parameters cannot be cut into {J:,} blocks")
    if not isinstance(parameters.columns, Whole):
        raise ValueError(
            "blocks= is for sketches that every process has in full; here they are split (shard=True or FSDP2), so "
            "leave it out"
        )
    return [slice(p * i // J, p * (i + 1) // J) for i in range(J)]


@dataclass(eq=False)
class Block:
    """The parameters at `place` and their sketch.

    A basis of its own, with the inverse of its Gram matrix, lets training go on while the sketch observes more.
    """

    name: str
    place: slice
    sketch: Sketch
    basis: Tensor | None = None
    gram_inverse: Tensor | None = None

    def copy_basis(self, dtype: torch.dtype | None, parameters: ProtectedParameters, columns: Columns) -> None:
        """Keep a basis of its own on the device of the parameters; one in fewer bits needs its Gram matrix."""
        B = self.sketch.basis()
        self.basis = B.to(device=parameters.device, dtype=dtype or B.dtype, copy=True)
        if self.basis.dtype != parameters.dtype:
            K = columns.total(gram(self.basis))
            self.gram_inverse = torch.linalg.inv(K).to(parameters.dtype)

    def projector(self, columns: Columns, rule: Rule, weight: float) -> Projector:
        """The projector by a rule; `weight` is what a square change of an output weighs."""
        values, B = self.sketch.spectrum()
        basis = B if self.basis is None else self.basis
        d, energy = self.sketch.d, self.sketch.energy
        left = max(0.0, energy - float(values.sum())) / (d - len(values)) if d > len(values) else 0.0
        spectra = BasisSpectra(basis, values, energy / d, left, B.dtype, self.gram_inverse, columns)
        return rule.on_basis(spectra, weight)

    def held(self, split: str) -> Iterator[Held]:
        """Every tensor kept; `split` says which columns this process holds."""
        own = self.name.removeprefix("sketch")
        for name, tensor in self.sketch.tensors().items():
            purpose = _PURPOSES.get(name, "stored by the sketch") + (split if name == "rows" else "")
            yield Held(f"{self.name}.{name}", purpose, tensor)
        if self.basis is not None:
            yield Held("basis" + own, "orthonormal rows that updates are projected on", self.basis)
        if self.gram_inverse is not None:
            yield Held("gram_inverse" + own, "corrects the rounding of the basis", self.gram_inverse)
