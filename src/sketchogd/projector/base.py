"""The interface of a projector: what training applies to an update, Δw ← Δw − A Δw.

Letters: v an update as a flat vector (p,) in the order of the protected parameters, A v its protected part, H the
curvature of a pull, for which A = s H (I + s H)⁻¹.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ..sketch.columns import UNSPLIT, Columns
from .span import Span


@dataclass(frozen=True)
class Anchor:
    """A copy of the weights, made with a projector, that the projector pulls back to.

    Args:
        dtype: "int8" for one byte per weight, None for the dtype of the weights; "span" for coordinates in the
            directions that examples were seen in (`Span`), in half precision.
    """

    dtype: str | None = None

    @property
    def in_span(self) -> bool:
        """Whether coordinates are kept in place of weights."""
        return self.dtype == "span"


class Projector(ABC):
    """Δw ← Δw − A Δw."""

    columns: Columns = UNSPLIT
    """Where a vector is split over processes: how numbers computed from its parts add up."""
    anchor: Anchor | None = None
    """Where an update is counted from: the anchor or, without one, the weights before the last steps."""

    def span(self, index: int) -> Span | None:
        """The directions in which a protected parameter is pulled, where the anchor has coordinates; None for all."""
        return None

    @abstractmethod
    def protected_part_(self, v: Tensor, travelled: float = 1.0) -> Tensor:
        """Overwrite v (p,) by A v, and return it.

        `travelled` is the sum of the step sizes of the steps that led to v; A depends on it where there is an anchor.
        """

    def relaxed_(self, tension: Tensor, moved: Tensor) -> Tensor:
        """Overwrite a tension y (p,) by H⁻¹ y, coordinate by coordinate of the eigenvectors of a pull's H; return it.

        Each coordinate is kept between zero and that of `moved` (p,), which is overwritten too. By default, and where
        nothing is pulled, it is zero.
        """
        return tension.zero_()

    @property
    @abstractmethod
    def empty(self) -> bool:
        """Whether A is zero, so that nothing needs to be done."""

    @property
    @abstractmethod
    def hard(self) -> bool:
        """Whether A² = A, so that v − A v has no protected part."""

    def leak(self, v: Tensor, travelled: float = 1.0) -> float:
        """‖A v‖ / ‖v‖: for a hard projector the share of an update v that lies in protected directions."""
        size = self.norm(v)
        return self.norm(self.protected_part_(v.clone(), travelled)) / size if size else 0.0

    def norm(self, v: Tensor) -> float:
        """‖v‖, where v is split that of all its parts."""
        return float(self.columns.vector_total(v.norm().double().square()).sqrt())


def soft_share(x: Tensor) -> Tensor:
    """x / (1 + x)."""
    return x / (1 + x)


ROUNDING = 1e-7
"""Smaller shares of the largest stiffness are rounding: what is divided by them says nothing."""


def between(y: Tensor, stiffness: Tensor, d: Tensor, largest: Tensor) -> Tensor:
    """y / stiffness, kept between 0 and d; 0 where the stiffness is 0 but for rounding.

    >>> y, stiffness = torch.tensor([1.0, 4.0, -1.0, 1.0]), torch.tensor([2.0, 2.0, 2.0, 0.0])
    >>> between(y, stiffness, torch.ones(4), stiffness.max())
    tensor([0.5000, 1.0000, 0.0000, 0.0000])
    """
    found = torch.where(stiffness > ROUNDING * largest, y / stiffness, 0.0)
    return torch.minimum(torch.maximum(found, d.clamp_max(0.0)), d.clamp_min(0.0))
