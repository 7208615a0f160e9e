"""What is known of a second moment in place of the rows it is of: a few eigenpairs, and one value for all the rest.

A memory with a privacy guarantee sees no examples, only such estimates. Letters: d row length, r directions, λ values,
V (r, d) directions, τ the value of all others.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..sketch import GradientSketch, SecondMoment, Sketch, SketchedMoment


@dataclass(frozen=True)
class MomentEstimate:
    """M ≈ Vᵀ diag(λ) V + τ (I − VᵀV), positive semidefinite.

    Args:
        values: λ (r,).
        vectors: V (r, d), orthonormal rows.
        tail: τ ≥ 0.
        count: about how many rows M is the second moment of.
        rest: energy that is known to be there, but in no direction.
    """

    values: Tensor
    vectors: Tensor
    tail: float
    count: int
    rest: float = 0.0

    @property
    def energy(self) -> float:
        """Tr M, with the rest."""
        r, d = self.vectors.shape
        return float(self.values.sum()) + self.tail * (d - r) + self.rest

    @property
    def seen(self) -> bool:
        """Whether there is a direction in it."""
        return bool((self.values > 0).any())

    def scaled(self, factor: float) -> "MomentEstimate":
        """The same of rows that are √factor times as long."""
        return MomentEstimate(self.values * factor, self.vectors, self.tail * factor, self.count, self.rest * factor)

    def product(self, omega: Tensor | None) -> Tensor:
        """Ωᵀ M for Ω (d, k), in its precision; M itself for None."""
        V = self.vectors
        left = V.T if omega is None else omega.T.to(V.dtype) @ V.T
        found = (left * (self.values - self.tail)) @ V
        if self.tail:
            found += self.tail * (torch.eye(V.shape[1], dtype=V.dtype, device=V.device) if omega is None else omega.T)
        return found

    def add_to(self, sketch: Sketch) -> None:
        """Let a sketch know of it, as if it had observed rows with this second moment.

        Raises TypeError for a sketch that is given rows only.
        """
        if self.energy <= 0:
            return
        if isinstance(sketch, SketchedMoment):
            omega = sketch.omega.dense(torch.float64, sketch.device)
            sketch.add_product(self.product(omega).to(sketch.dtype), self.count, self.energy)
        elif isinstance(sketch, SecondMoment):
            sketch.add_product(self.product(None).to(sketch.dtype), self.count, self.energy)
        else:
            raise TypeError(f"a {type(sketch).__name__} needs rows, and cannot be given a second moment")


@dataclass(frozen=True)
class RowsEstimate:
    """Ωᵀ G (k, d) for a `GradientSketch`, of about `count` rows with this energy."""

    rows: Tensor
    count: int
    energy: float

    @property
    def seen(self) -> bool:
        """Whether there is a direction in it."""
        return bool(self.rows.any())

    def scaled(self, factor: float) -> "RowsEstimate":
        """The same of rows that are √factor times as long."""
        return RowsEstimate(self.rows * factor**0.5, self.count, self.energy * factor)

    def add_to(self, sketch: Sketch) -> None:
        """Let a sketch know of it. Raises TypeError for one that is no `GradientSketch`."""
        if not isinstance(sketch, GradientSketch):
            raise TypeError(f"sums of rows are for a GradientSketch; this is a {type(sketch).__name__}")
        sketch.summand().add_(self.rows.to(sketch.dtype))
        sketch.summed(sketch.count + self.count, sketch.energy + self.energy)


Estimate = MomentEstimate | RowsEstimate
"""What a sketch can be told in place of rows."""
