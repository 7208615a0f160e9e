"""What a projection removes from updates, and what it measures on the way: how much leaks, how far the weights move.

Letters: v an update, A v its protected part, which is removed.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..projector.base import Projector
from .finite import FiniteCheck

_EVERY = 100
_TWICE_ABOVE = 3e-7


@dataclass
class Meter:
    """Numbers about the updates projected since the last refresh.

    Args:
        leak: the largest ‖A v'‖ / ‖v'‖ measured, v' being what was left of an update v.
        moved: Σ ‖v − A v‖, or where there is an anchor the last ‖v − A v‖; a tensor, since reading it makes a GPU wait.
        projections: how many updates were projected.
        twice: whether a second pass is needed, because rounding leaves too much behind.
    """

    leak: float = 0.0
    moved: Tensor | float = 0.0
    projections: int = 0
    twice: bool = False

    @staticmethod
    def of(state: Mapping[str, Any] | None) -> "Meter":
        """A meter that goes on from `state`, or begins anew."""
        return Meter(**(state or {}))

    def state(self) -> dict[str, Any]:
        """Plain data for a file. When the next measurement is due, and the second pass, follow from it."""
        moved = float(self.moved)
        return {
            "leak": self.leak,
            "moved": moved if math.isfinite(moved) else 0.0,
            "projections": self.projections,
            "twice": self.twice,
        }

    def remove(
        self,
        projector: Projector,
        v: Tensor,
        subtract: Callable[[Tensor], None],
        travelled: float,
        scale: float,
        check: FiniteCheck,
    ) -> None:
        """Subtract A v from weights or gradients. At steps 1, 2, 4, … and every 100th the leak is measured.

        Rounding leaves a small part of A v behind. If the leak shows that this is a large part of what remains, because
        most of v was protected, a second pass A (v − A v) removes it, from then on at every step.

        The norm of what is left costs no copy of v: A² <= A for every projector, so ‖v − A v‖² = ‖v‖² − 2 vᵀA v +
        ‖A v‖² <= ‖v‖² − ‖A v‖², with equality for a hard one.

        Args:
            projector: gives A.
            v: the update (p,); overwritten.
            subtract: subtracts a vector from the weights or gradients.
            travelled: see `Projector.protected_part_`.
            scale: by how much the weights move for what is left of v.
            check: where v is not finite, nothing is subtracted.
        """
        self.projections += 1
        n = self.projections
        measured = (n & (n - 1) == 0 or n % _EVERY == 0) and not _capturing(v)
        remainder = v.clone() if measured or self.twice else None
        before = v.norm().double()
        part = projector.protected_part_(v, travelled)
        after = part.norm().double()
        left = projector.columns.vector_total(before.square() - after.square())  # no number if v is none anywhere
        finite = check.of(left)
        part = finite.or_zero(part)
        left = finite.or_zero(left)
        self.moved = (self.moved if projector.anchor is None else 0.0) + scale * left.clamp_min(0).sqrt()
        subtract(part)
        if remainder is None:
            return
        remainder -= part
        leak = projector.leak(remainder, travelled) if measured else 0.0
        if projector.hard and leak > _TWICE_ABOVE:
            self.twice = True
        if self.twice:
            part = finite.or_zero(projector.protected_part_(v.copy_(remainder), travelled))
            subtract(part)
            leak = projector.leak(remainder.sub_(part), travelled) if measured else 0.0
        self.leak = max(self.leak, leak)


def _capturing(v: Tensor) -> bool:
    """Whether a CUDA graph is being captured, in which numbers cannot be read."""
    return v.is_cuda and torch.cuda.is_current_stream_capturing()
