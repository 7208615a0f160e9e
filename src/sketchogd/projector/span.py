"""A parameter by its coordinates in the directions that examples were seen in, in place of all its numbers.

A pull needs a displacement only where it is not zero. Where nothing is pulled outside of the remembered directions, the
anchor's coordinates in these are enough, and kept corrections have no others. Letters: M (m, n) a parameter as a
matrix, B (r, n) directions as rows, X = M Bᵀ (m, r) coordinates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..linalg.stacks import stacked

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
        return Spans([self]).coordinates([t])[0]

    def within(self, X: Tensor, shape: torch.Size) -> Tensor:
        """The parameter (of this shape) that has these coordinates and nothing outside of the directions."""
        return Spans([self]).within(X[None], [shape])[0]

    def matrix(self, t: Tensor) -> Tensor:
        """M."""
        return t.flatten(1).T if self.transposed else t.flatten(1)


@dataclass(eq=False)
class Spans:
    """The directions of several parameters whose matrices M have one shape, and which are all transposed or none.

    Coordinates are a stack (L, m, r) with zeros up to the largest r, in memory as (L, r, m).
    """

    spans: Sequence[Span]

    def coordinates(self, tensors: Sequence[Tensor]) -> Tensor:
        """X (L, m, r) of parameters."""
        dtype = self.spans[0].basis.dtype
        M = stacked([t.flatten(1) for t in tensors]).to(dtype)
        return self._turned(self._bases @ (M if self.spans[0].transposed else M.mT)).mT

    def within(self, X: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
        """The parameters of these shapes that have these coordinates and nothing outside of the directions."""
        B = self._bases
        X = self._turned(X.mT.to(B.dtype))
        found = B.mT @ X if self.spans[0].transposed else X.mT @ B
        return [M.view(shape) for M, shape in zip(found.unbind(), shapes, strict=True)]

    def add_to_(self, t: Tensor, X: Tensor) -> None:
        """Add to a contiguous parameter, the only one, what has these coordinates, without writing it down."""
        X = self._turned(X.mT.to(self.spans[0].basis.dtype))[0]
        self.spans[0].matrix(t).addmm_(X.T, self.spans[0].basis)

    @property
    def _bases(self) -> Tensor:
        """B (L, r, n)."""
        return stacked([span.basis for span in self.spans])

    @cached_property
    def _axes(self) -> tuple[Tensor, Tensor] | None:
        """b̂ (L, 1, r) and γ b̂ (L, r, 1), which are zero where there is no bias."""
        if all(span.bias is None for span in self.spans):
            return None
        bases = [span.basis for span in self.spans]
        given = [
            basis.new_zeros(len(basis)) if span.bias is None else span.bias
            for span, basis in zip(self.spans, bases, strict=True)
        ]
        b = stacked(given).double()
        square = b.square().sum(1, keepdim=True)
        axis = torch.where(square < EMPTY**2, 0.0, b / square.clamp_min(EMPTY**2).sqrt())
        outside = 1 - square
        gamma = torch.where(outside > EMPTY, outside.clamp_min(EMPTY).rsqrt() - 1, -1.0)
        return axis[:, None, :].to(bases[0].dtype), (axis * gamma)[:, :, None].to(bases[0].dtype)

    def _turned(self, X: Tensor) -> Tensor:
        """(I + γ b̂ b̂ᵀ) X for X (L, r, m)."""
        if self._axes is None:
            return X
        axis, scaled = self._axes
        return torch.baddbmm(X, scaled, axis @ X)
