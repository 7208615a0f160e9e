"""A parameter by its coordinates in the directions that examples were seen in, in place of all its numbers.

A pull needs a displacement only where it is not zero. Where nothing is pulled outside of the remembered directions, the
anchor's coordinates in these are enough, and kept corrections have no others. Letters: M (m, n) a parameter as a
matrix, B (r, n) directions as rows, X = M Bᵀ (m, r) coordinates.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

EMPTY = 1e-6
"""What is left of a direction with less than this share of its square length counts as nothing."""


@dataclass(frozen=True, eq=False)
class Span:
    """Directions of one parameter.

    The rows [B b] (r, n + 1) of a layer with a bias are orthonormal, and those of B alone are not: B Bᵀ = I − b bᵀ.
    Coordinates are those in (I + γ b̂ b̂ᵀ) B, which is orthonormal with γ = 1/√(1 − ‖b‖²) − 1.

    Args:
        basis: B; a view, not a copy.
        bias: b (r,), None where the rows of B are orthonormal by themselves.
        transposed: whether M is the transpose of the parameter.
    """

    basis: Tensor
    bias: Tensor | None = None
    transposed: bool = False

    def coordinates(self, t: Tensor) -> Tensor:
        """X (m, r) of a parameter."""
        return self._turned(self.matrix(t).to(self.basis.dtype) @ self.basis.T)

    def within(self, X: Tensor, shape: torch.Size) -> Tensor:
        """The parameter (of this shape) that has these coordinates and nothing outside of the directions."""
        M = self._turned(X.to(self.basis.dtype)) @ self.basis
        return (M.T if self.transposed else M).reshape(shape)

    def matrix(self, t: Tensor) -> Tensor:
        """M."""
        return t.flatten(1).T if self.transposed else t.flatten(1)

    def _turned(self, X: Tensor) -> Tensor:
        return X if self._axis is None else X + torch.outer(X @ self._axis[0], self._axis[1])

    @cached_property
    def _axis(self) -> tuple[Tensor, Tensor] | None:
        """b̂ and γ b̂."""
        if self.bias is None:
            return None
        square = float(self.bias.double().square().sum())
        if square < EMPTY**2:
            return None
        axis = self.bias / square**0.5
        return axis, axis * ((1 - square) ** -0.5 - 1 if 1 - square > EMPTY else -1.0)
