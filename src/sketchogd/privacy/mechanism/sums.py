"""Sums that are released once, with noise: what a unit may add to each, and how the noise is divided among them.

To each of R sums Sᵢ one unit adds a vector of norm at most 1 (`SENSITIVITY`), the Frobenius norm for matrices. With
shares ωᵢ that sum to 1, the vector (√ω₁ S₁, …, √ω_R S_R) changes by at most √(Σ ωᵢ) = 1. Noise of standard deviation z
in all of its coordinates is one Gaussian mechanism of noise multiplier z; Sᵢ itself then has noise of standard
deviation σᵢ = z / √ωᵢ. Of a symmetric matrix the coordinates are its diagonal and √2 times what is above it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...errors import ProtectionError
from .noise import normal, symmetric

SENSITIVITY = 1.0
"""The most that one unit adds to a sum, in norm."""

SMALL = 0.1
"""The share of all sums that are not matrices: they are few numbers, which little noise spoils."""


@dataclass(eq=False)
class Sum:
    """A sum over examples, in float64 on the device of the model; without noise until it is released.

    Args:
        name: of the sum.
        value: what was added up so far.
        symmetric: whether it is a symmetric matrix (d, d).
        size: the length of its rows, from which its share follows; 0 for a small sum.
    """

    name: str
    value: Tensor
    symmetric: bool = False
    size: int = 0


@dataclass(frozen=True)
class Noisy:
    """A released sum, and the standard deviation σ of its noise; a symmetric one has σ/√2 off its diagonal."""

    value: Tensor
    sigma: float


@dataclass(eq=False)
class Sums:
    """All sums of one release.

    Args:
        sums: the sums, each with contributions of norm at most 1 per unit.
    """

    sums: Sequence[Sum]
    _by_name: dict[str, Sum] = field(init=False)
    _released: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._by_name = {each.name: each for each in self.sums}

    def __getitem__(self, name: str) -> Tensor:
        """The sum of this name, to be added to."""
        return self._by_name[name].value

    def shares(self) -> dict[str, float]:
        """ωᵢ by name. Matrices have a share in proportion to √size: that minimises Σ σᵢ² · size, sizes of noise."""
        large = sum(each.size**0.5 for each in self.sums)
        small = sum(each.size == 0 for each in self.sums)
        left = 1.0 - (SMALL if small and large else 0.0)
        return {
            each.name: left * each.size**0.5 / large if each.size else (SMALL if large else 1.0) / small
            for each in self.sums
        }

    def released(self, noise: float) -> dict[str, Noisy]:
        """Add noise, once, and forget the sums without it.

        Args:
            noise: the noise multiplier z.

        Raises:
            ProtectionError: they were released before.
        """
        if self._released:
            raise ProtectionError("these sums were released already; noise is added once, for what was observed then")
        self._released = True
        found = {}
        for name, share in self.shares().items():
            each, sigma = self._by_name[name], SENSITIVITY * noise / share**0.5
            shape = tuple(each.value.shape)
            drawn = symmetric(shape[0], sigma) if each.symmetric else normal(shape, sigma)
            found[name] = Noisy(each.value + drawn.to(each.value.device), sigma)
            each.value = torch.zeros(0, dtype=torch.float64)
        return found
