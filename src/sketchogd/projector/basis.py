"""Projectors on the basis of a sketch of gradients, for all parameters together or one block of them at a time."""

from dataclasses import dataclass

from torch import Tensor

from ..linalg import coefficients, combination
from ..sketch.columns import UNSPLIT, Columns
from .base import Projector, soft_share


@dataclass(eq=False)
class BasisProjector(Projector):
    """A = Bᵀ diag(α) B for a basis B (r, p) of orthonormal rows; α = 1 (hard) unless weights are given.

    A basis kept in bfloat16 is no longer orthonormal to float32 precision; `gram_inverse` = (B Bᵀ)⁻¹ makes A the exact
    projector on the span of the rounded rows. With `columns` the basis has only these of its columns in this process.

    With `pull`, weight · λ of each row, it is anchored, and α is as `Pull` has it; directions outside of the basis are
    then shrunk as a row with the pull `elsewhere` would be.
    """

    basis: Tensor
    alpha: Tensor | None = None
    gram_inverse: Tensor | None = None
    columns: Columns = UNSPLIT
    pull: Tensor | None = None
    elsewhere: float = 0.0

    def __post_init__(self) -> None:
        self.anchored = self.pull is not None

    @property
    def empty(self) -> bool:
        """Whether the basis has no rows."""
        return len(self.basis) == 0

    @property
    def hard(self) -> bool:
        """Whether no direction is only shrunk."""
        return self.alpha is None and self.pull is None

    def protected_part_(self, v: Tensor) -> Tensor:
        """Bᵀ (α ∘ (B v)), and with α₀ for all other directions Bᵀ ((α − α₀) ∘ (B v)) + α₀ v."""
        mine = self.columns.of(v)
        c = self.columns.total(coefficients(self.basis, mine))
        if self.gram_inverse is not None:
            c = self.gram_inverse @ c
        alpha, outside = self.alpha, 0.0
        if self.pull is not None:
            outside = self.travelled * self.elsewhere / (1 + self.travelled * self.elsewhere)
            alpha = soft_share(self.travelled * self.pull) - outside
        if alpha is not None:
            c = c * alpha
        spread = mine * outside if outside else None
        combination(self.basis, c, out=mine)
        if spread is not None:
            mine += spread
        return self.columns.complete_(v)


@dataclass(eq=False)
class BlocksProjector(Projector):
    """A with one block for each stretch of the parameters: every block of v is projected by itself."""

    blocks: list[tuple[slice, BasisProjector]]

    def __post_init__(self) -> None:
        self.anchored = any(projector.anchored for _, projector in self.blocks)

    @property
    def empty(self) -> bool:
        """Whether no block has a basis."""
        return all(projector.empty for _, projector in self.blocks)

    @property
    def hard(self) -> bool:
        """Whether no direction of any block is only shrunk."""
        return all(projector.hard for _, projector in self.blocks)

    def protected_part_(self, v: Tensor) -> Tensor:
        """A_j v_j for every block j."""
        for place, projector in self.blocks:
            projector.travelled = self.travelled
            projector.protected_part_(v[place])
        return v
