"""Private sums for one sketch of gradients: what an example adds is divided by its norm, and its size goes elsewhere.

An example has the gradient g, of length ‖g‖, and u = g / ‖g‖. Added is, with weight 1,
 - for rows of length d up to `WHOLE`: u uᵀ (d, d), of Frobenius norm ‖u‖² = 1;
 - for a product sketch of longer rows: (Ωᵀu) uᵀ / ‖Ωᵀu‖ (k, d), of norm 1 as well, Ω being public;
 - for a `GradientSketch`: ω uᵀ with ω = (±1, …, ±1) / √k, whose signs are drawn anew and forgotten;
 - to a histogram: ‖g‖², as a count in one bin.

So a unit never adds more than `sums.SENSITIVITY` to a sum, without a bound on gradients that anyone would have to know.
All examples weigh the same, where without privacy those with large gradients weigh more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..memory.estimates import Estimate, RowsEstimate
from ..sketch import GradientSketch, ProductSketch, SecondMoment, Sketch
from ..sketch.testmatrix import Gaussian
from .mechanism import histogram, spectra
from .mechanism.noise import uniform
from .mechanism.sums import Noisy, Sum, Sums

WHOLE = 2048
"""Second moments of rows up to this length are summed whole."""


def units(G: Tensor) -> tuple[Tensor, Tensor]:
    """(rows of norm 1, squares of their norms) for rows G (b, d), in float64; rows that are zero stay zero."""
    G = G.double()
    norms = torch.linalg.vector_norm(G, dim=1)
    return G / torch.where(norms > 0, norms, 1.0)[:, None], norms.square()


@dataclass(frozen=True)
class RowSums:
    """The sums for one sketch, by the sketch's name.

    Args:
        name: of the sketch.
        sketch: bound; it is not changed.
    """

    name: str
    sketch: Sketch

    @staticmethod
    def possible(sketch: Sketch) -> bool:
        """Whether a sketch is one of sums, to which bounded contributions can be made."""
        return isinstance(sketch, (GradientSketch, ProductSketch, SecondMoment))

    @property
    def whole(self) -> bool:
        """Whether the second moment itself is summed."""
        return not isinstance(self.sketch, GradientSketch) and self.sketch.d <= WHOLE

    @property
    def size(self) -> str:
        """The name of the histogram of ‖g‖²."""
        return f"{self.name}.size"

    def sums(self) -> Sequence[Sum]:
        """The empty sums, but for the histogram."""
        d = self.sketch.d
        k = d if self.whole else (self.sketch.rank_limit or d)
        value = torch.zeros(k, d, dtype=torch.float64, device=self.sketch.device)
        return [Sum(self.name, value, self.whole, d)]

    def add(self, sums: Sums, G: Tensor, weights: Tensor) -> None:
        """Add gradients G (b, d) with weights (b,)."""
        u, squares = units(G)
        sums[self.size].add_(histogram.counts_of(squares, weights))
        sums[self.name].addmm_(self._left(u, weights).T, u)

    def _left(self, u: Tensor, weights: Tensor) -> Tensor:
        """What u (b, d) is multiplied by from the left, (b, k), times the weights."""
        if self.whole:
            return u * weights[:, None]
        if isinstance(self.sketch, GradientSketch):
            k = len(self.sketch.tensors()["rows"])
            signs = torch.where(uniform(len(u) * k) < 0.5, 1.0, -1.0).view(len(u), k).to(u.device)
            return signs.double() * (weights[:, None] / k**0.5)
        assert isinstance(self.sketch, ProductSketch)
        left, _ = units(self.sketch.omega.apply(u))
        return left * weights[:, None]

    def estimate(self, found: dict[str, Noisy], weight: float, most: int, spread: bool) -> Estimate:
        """What the released sums say of the second moment of all gradients, or of their sketch.

        Args:
            found: released sums.
            weight: about the sum of all weights.
            most: how many examples a weight of 1 stands for.
            spread: whether energy without a direction is spread over all directions.
        """
        square, _ = histogram.moments(found[self.size].value, found[self.size].sigma)
        count = max(1, round(weight))
        if isinstance(self.sketch, GradientSketch):
            rows = spectra.of_rows(found[self.name], count)
            root = (square * most) ** 0.5
            return RowsEstimate(rows.rows * root, count * most, rows.energy * square * most)
        if self.whole:
            moment = spectra.of_moment(found[self.name], count, spread)
        else:
            assert isinstance(self.sketch, ProductSketch)
            omega = self.sketch.omega
            norm = float(omega.k) ** 0.5 if isinstance(omega, Gaussian) else 1.0
            moment = spectra.of_product(found[self.name], count, omega.apply, norm)
        return moment.scaled(square * most)
