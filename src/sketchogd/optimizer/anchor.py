"""Where a new projector pulls to, so that what an older one was protecting stays protected.

Old outputs were promised their values at an anchor a, with the penalty ½ (w − a)ᵀ H (w − a). When a memory observes
more, the new outputs are promised their values at the present weights w: the penalty ΔH about w is added, and

    ½ (w' − a)ᵀ H (w' − a) + ½ (w' − w)ᵀ ΔH (w' − w)

is, up to a constant, one penalty H_new = H + ΔH about w − H_new⁻¹ H (w − a). What is needed of the old projector is the
tension y = H (w − a), taken before its basis is overwritten. A pull that began anew at w would take what old outputs
had changed by then for what they were promised, and what tasks change would add up.

Where H and ΔH have the same eigenvectors, H_new⁻¹ y lies between 0 and w − a in each of them. A memory of fixed size
rotates what it holds, and its H_new is not always the larger of the two, so that y may be divided by next to nothing.
So coordinates are kept between these two (`Projector.relaxed_`): no weight is pulled from farther than it has come.

The constant is what is lost already, because tasks do not agree: `Held.lost`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..projector.base import Projector

TINY = 1e-12
"""A travelled distance at which a projector's A is proportional to H."""


@dataclass(eq=False)
class Held:
    """What a pull was holding, when more is to be remembered.

    Args:
        tension: y (p,).
        moved: w − a (p,).
        lost: Dᵀ H D that no weights can take back.
    """

    tension: Tensor
    moved: Tensor
    lost: float

    @torch.no_grad()
    def relaxed(self, projector: Projector, weight: float) -> tuple[Tensor, float]:
        """By how much the weights are from the new anchor (p,), and what is lost, under a new projector.

        `weight` is by how much more the old penalty now counts. What is held is overwritten.
        """
        total = projector.columns.vector_total
        before = self.lost + float(total(self.tension @ self.moved))
        moved = projector.relaxed_(self.tension.mul_(weight), self.moved)
        return moved, max(0.0, weight * before - penalty(projector, moved.clone()))


@torch.no_grad()
def tension(projector: Projector, displacement: Tensor) -> Tensor:
    """H D (p,) for the displacement D from the anchor, which is overwritten."""
    return projector.protected_part_(displacement, TINY).div_(TINY)


@torch.no_grad()
def penalty(projector: Projector, displacement: Tensor) -> float:
    """Dᵀ H D for the displacement D from the anchor."""
    return float(projector.columns.vector_total(displacement @ tension(projector, displacement.clone())))
