"""The interface of a projector: what training applies to an update, Δw ← Δw − A Δw.

A vector is flat, (p,), in the order of the protected parameters.
"""

from abc import ABC, abstractmethod

from torch import Tensor

from ..sketch.columns import UNSPLIT, Columns


class Projector(ABC):
    """Δw ← Δw − A Δw."""

    columns: Columns = UNSPLIT
    """Where a vector is split over processes: how numbers computed from its parts add up."""
    anchored: bool = False
    """Whether it is applied to the whole displacement since it was made, not to that of the last steps only."""
    rounded: bool = False
    """Whether that displacement is counted from a copy of the weights with one byte a number."""
    travelled: float = 1.0
    """Σ step sizes of the steps that an anchored projector is applied to next."""

    @abstractmethod
    def protected_part_(self, v: Tensor) -> Tensor:
        """A v (p,) in the place of v."""

    @property
    @abstractmethod
    def empty(self) -> bool:
        """Whether A is zero, so that nothing needs to be done."""

    @property
    @abstractmethod
    def hard(self) -> bool:
        """Whether A² = A: what is left of a vector has no protected part."""

    def project_(self, v: Tensor) -> Tensor:
        """v − A v in the place of v (with one more vector for A v)."""
        return v.sub_(self.protected_part_(v.clone()))

    def leak(self, v: Tensor) -> float:
        """‖A v‖ / ‖v‖: for a hard projector the share of a displacement v that lies in protected directions."""
        size = self._norm(v)
        return self._norm(self.protected_part_(v.clone())) / size if size else 0.0

    def _norm(self, v: Tensor) -> float:
        return float(self.columns.vector_total(v.norm().double().square()).sqrt())


def soft_share(x: Tensor) -> Tensor:
    """x / (1 + x)."""
    return x / (1 + x)
