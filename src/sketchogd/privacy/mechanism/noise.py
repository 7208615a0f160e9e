"""Normal noise from the operating system's random numbers: never seeded, never stored, computed in double precision.

A generator such as torch's can be run backwards from its output or seeded twice; `os.urandom` can be neither. Normal
numbers come from the Box-Muller transform. A single one lies on a grid that an exact attacker could look for (Mironov
2012); each number returned is the sum of four over 2, as Holohan and Braghin (2021) propose, which leaves no such grid
to see in practice, but is no proof: what a guarantee means on real numbers holds here up to floating point.
"""

import math
import os

import torch
from torch import Tensor

TERMS = 4
"""Normal numbers that are summed for each one that is returned."""

_BLOCK = 1 << 22
"""About so many numbers are drawn at once."""


def uniform(n: int) -> Tensor:
    """Return n numbers in (0, 1) with 53 random bits each, from `os.urandom`."""
    bits = torch.frombuffer(bytearray(os.urandom(8 * n)), dtype=torch.int64)
    return ((bits >> 11).bitwise_and((1 << 53) - 1).double() + 0.5) * 2.0**-53


def normal(shape: tuple[int, ...], sigma: float = 1.0) -> Tensor:
    """Return independent normal numbers of this standard deviation, in float64 on the CPU."""
    n = math.prod(shape)
    out = torch.zeros(n, dtype=torch.float64)
    for start in range(0, n, _BLOCK):
        part = out[start : start + _BLOCK]
        for _ in range(TERMS):
            half = (len(part) + 1) // 2
            radius, angle = (-2 * uniform(half).log()).sqrt(), uniform(half) * (2 * math.pi)
            part += torch.cat([radius * angle.cos(), radius * angle.sin()])[: len(part)]
    return out.mul_(sigma / TERMS**0.5).view(shape)


def symmetric(d: int, sigma: float) -> Tensor:
    """Return symmetric noise (d, d) for a symmetric matrix whose Frobenius norm is what a unit may change.

    In coordinates in which that norm is Euclidean, the diagonal and √2 times what is above it, every number has the
    standard deviation σ; what is above the diagonal has σ/√2.
    """
    upper = normal((d, d), sigma / 2**0.5).triu_(1)
    noise = upper + upper.T
    noise.diagonal().copy_(normal((d,), sigma))
    return noise
