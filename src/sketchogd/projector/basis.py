"""Projectors on the basis of a sketch of gradients, for all parameters together or for one block of them at a time.

Letters: B (r, p) a basis of orthonormal rows, α (r,) the share of each row that is removed from an update.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..linalg.dense import coefficients, combination
from ..sketch.columns import UNSPLIT, Columns
from .base import Anchor, Projector, between, soft_share


@dataclass(eq=False)
class BasisProjector(Projector):
    """A = Bᵀ diag(α) B, hard (α = 1) unless shares are given.

    Args:
        basis: B (r, p), or the columns of it that this process holds.
        alpha: α (r,), 0 <= α < 1; None projects hard.
        gram_inverse: (B Bᵀ)⁻¹ for a basis kept in fewer bits, which is no longer orthonormal to float32 precision: A is
            then the exact projector on the span of the rounded rows.
        columns: which columns this process holds.
    """

    basis: Tensor
    alpha: Tensor | None = None
    gram_inverse: Tensor | None = None
    columns: Columns = UNSPLIT

    @property
    def empty(self) -> bool:
        """Whether the basis has no rows."""
        return len(self.basis) == 0

    @property
    def hard(self) -> bool:
        """Whether no direction is only shrunk."""
        return self.alpha is None

    def protected_part_(self, v: Tensor, travelled: float = 1.0) -> Tensor:
        """Bᵀ (α ∘ (B v))."""
        mine = self.columns.of(v)
        c = _coordinates(self.basis, self.gram_inverse, self.columns, mine)
        combination(self.basis, c if self.alpha is None else c * self.alpha, out=mine)
        return self.columns.complete_(v)


@dataclass(eq=False)
class PullingBasis(Projector):
    """A = Bᵀ diag(α − α₀) B + α₀ I with α = x / (1 + x), x = travelled · pull: back to the anchor, as `Pull` says.

    Args:
        basis: B (r, p), or the columns of it that this process holds.
        pull: weight of a square displacement along each row (r,).
        elsewhere: the same for all directions outside of the span of B, from which α₀ follows.
        anchor: how the weights that are pulled back to are stored.
        gram_inverse: see `BasisProjector`.
        columns: see `BasisProjector`.
    """

    basis: Tensor
    pull: Tensor
    elsewhere: float = 0.0
    anchor: Anchor | None = None
    gram_inverse: Tensor | None = None
    columns: Columns = UNSPLIT

    @property
    def empty(self) -> bool:
        """Whether the basis has no rows."""
        return len(self.basis) == 0

    @property
    def hard(self) -> bool:
        """False: a pull shrinks."""
        return False

    def protected_part_(self, v: Tensor, travelled: float = 1.0) -> Tensor:
        """Bᵀ ((α − α₀) ∘ (B v)) + α₀ v."""
        mine = self.columns.of(v)
        c = _coordinates(self.basis, self.gram_inverse, self.columns, mine)
        outside = travelled * self.elsewhere / (1 + travelled * self.elsewhere)
        c = c * (soft_share(travelled * self.pull) - outside)
        spread = mine * outside if outside else None
        combination(self.basis, c, out=mine)
        if spread is not None:
            mine += spread
        return self.columns.complete_(v)

    def relaxed_(self, tension: Tensor, moved: Tensor) -> Tensor:
        """See `Projector`; outside of the span of B, where all has one stiffness, y's part along D counts."""
        y, d = self.columns.of(tension), self.columns.of(moved)
        inside = [_coordinates(self.basis, self.gram_inverse, self.columns, v) for v in (y, d)]
        for v, c in zip((y, d), inside, strict=True):
            v -= combination(self.basis, c, out=torch.empty_like(v))
        largest, square = self.pull.max(), self.columns.total((d @ d)[None])
        along = between(
            self.columns.total((y @ d)[None]), self.elsewhere * square, torch.ones_like(square), largest * square
        )
        y.copy_(d * along)
        y += combination(self.basis, between(inside[0], self.pull, inside[1], largest), out=d)
        return self.columns.complete_(tension)


def _coordinates(B: Tensor, gram_inverse: Tensor | None, columns: Columns, v: Tensor) -> Tensor:
    """Coordinates (r,) in the rows of B of the part of v in their span."""
    c = columns.total(coefficients(B, v))
    return c if gram_inverse is None else gram_inverse @ c


@dataclass(eq=False)
class BlocksProjector(Projector):
    """A block-diagonal A: every block of parameters has a projector of its own."""

    blocks: list[tuple[slice, Projector]]

    def __post_init__(self) -> None:
        self.anchor = self.blocks[0][1].anchor if self.blocks else None

    @property
    def empty(self) -> bool:
        """Whether no block has a basis."""
        return all(projector.empty for _, projector in self.blocks)

    @property
    def hard(self) -> bool:
        """Whether no direction of any block is only shrunk."""
        return all(projector.hard for _, projector in self.blocks)

    def protected_part_(self, v: Tensor, travelled: float = 1.0) -> Tensor:
        """A_j v_j for every block j."""
        for place, projector in self.blocks:
            projector.protected_part_(v[place], travelled)
        return v

    def relaxed_(self, tension: Tensor, moved: Tensor) -> Tensor:
        """See `Projector`."""
        for place, projector in self.blocks:
            projector.relaxed_(tension[place], moved[place])
        return tension
