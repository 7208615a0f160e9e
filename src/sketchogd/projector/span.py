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

from ..linalg.stacks import stacked, unstacked

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
        return coordinates([self], [t])[0]

    def within(self, X: Tensor, shape: torch.Size) -> Tensor:
        """The parameter (of this shape) that has these coordinates and nothing outside of the directions."""
        return within([self], [X], [shape])[0]

    def matrix(self, t: Tensor) -> Tensor:
        """M."""
        return t.flatten(1).T if self.transposed else t.flatten(1)

    @cached_property
    def axis(self) -> tuple[Tensor, Tensor] | None:
        """b̂ and γ b̂."""
        if self.bias is None:
            return None
        square = float(self.bias.double().square().sum())
        if square < EMPTY**2:
            return None
        axis = self.bias / square**0.5
        return axis, axis * ((1 - square) ** -0.5 - 1 if 1 - square > EMPTY else -1.0)


def coordinates(spans: Sequence[Span], tensors: Sequence[Tensor]) -> list[Tensor]:
    """X (m, r) of parameters whose matrices M have one shape."""
    M = stacked([span.matrix(t).to(span.basis.dtype) for span, t in zip(spans, tensors, strict=True)])
    X = _turned(spans, M @ stacked([span.basis for span in spans]).mT)
    return unstacked(X, [(X.shape[1], len(span.basis)) for span in spans])


def within(spans: Sequence[Span], numbers: Sequence[Tensor] | Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """The parameters of these shapes that have these coordinates, a list or a stack, with matrices of one shape."""
    X = numbers if isinstance(numbers, Tensor) else stacked(numbers)
    X, B = _turned(spans, X.to(spans[0].basis.dtype)), stacked([span.basis for span in spans])
    found = B.mT @ X.mT if spans[0].transposed else X @ B
    return [M.reshape(shape) for M, shape in zip(found.unbind(), shapes, strict=True)]


def add_within_(span: Span, X: Tensor, t: Tensor) -> None:
    """Add to a contiguous parameter the one that has coordinates X, without writing it down."""
    X = _turned([span], X[None].to(span.basis.dtype))[0]
    span.matrix(t).addmm_(X, span.basis)


def _turned(spans: Sequence[Span], X: Tensor) -> Tensor:
    """X (I + γ b̂ b̂ᵀ) for a stack X (L, m, r)."""
    axes = [span.axis for span in spans]
    if not any(axes):
        return X
    b, scaled = (stacked([_axis(X, span, axis, i) for span, axis in zip(spans, axes, strict=True)]) for i in (0, 1))
    return torch.baddbmm(X, X @ b[:, :, None], scaled[:, None, :])


def _axis(X: Tensor, span: Span, axis: tuple[Tensor, Tensor] | None, which: int) -> Tensor:
    return X.new_zeros(len(span.basis)) if axis is None else axis[which]
