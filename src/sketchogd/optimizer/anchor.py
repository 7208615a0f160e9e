"""Where a new projector pulls to, so that what an older one was protecting stays protected.

Old outputs were promised their values at an anchor a, with the penalty ½ (w − a)ᵀ H (w − a). When a memory observes
more without a task having ended, the new outputs are promised their values at the present weights w: the penalty ΔH
about w is added, and

    ½ (w' − a)ᵀ H (w' − a) + ½ (w' − w)ᵀ ΔH (w' − w)

is, up to a constant, one penalty H_new = H + ΔH about w − H_new⁻¹ H (w − a). What is needed of the old projector is the
tension H (w − a), taken before its basis is overwritten. (At the end of a task the tension is balanced by the gradient
of the task's own loss, and the anchor is w itself.)
"""

import torch
from torch import Tensor

from ..projector.base import Projector

TINY = 1e-12
"""A travelled distance at which a projector's A is proportional to H."""

SOFT = 1e-3
"""Directions that are softer than this share of the tension's own stiffness are left where they are."""


@torch.no_grad()
def tension(projector: Projector, displacement: Tensor) -> Tensor:
    """H D (p,) for the displacement D from the anchor, which is overwritten."""
    return projector.protected_part_(displacement, TINY).div_(TINY)


@torch.no_grad()
def penalty(projector: Projector, displacement: Tensor) -> float:
    """Dᵀ H D for the displacement D from the anchor."""
    return float(projector.columns.vector_total(displacement @ tension(projector, displacement.clone())))


@torch.no_grad()
def relaxed(projector: Projector, tension: Tensor) -> Tensor:
    """(H + ε)⁻¹ y (p,) for a tension y: by how much the weights are from where the pull has no tension.

    With A = s H (I + s H)⁻¹ it is s (y − A y) for s = 1/ε. ε is a small share of the stiffness ‖H y‖ / ‖y‖ along y.
    """
    size = projector.norm(tension)
    stiffness = projector.norm(projector.protected_part_(tension.clone(), TINY)) / TINY / size if size else 0.0
    if not stiffness > 0:
        return torch.zeros_like(tension)
    s = 1 / (SOFT * stiffness)
    return (tension - projector.protected_part_(tension.clone(), s)).mul_(s)
