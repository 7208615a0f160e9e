"""Scaling of sums of squares: Y is stored as Y · 4^(-e), e being the binary exponent of the largest entry seen.

Squares of entries beyond 1e19 overflow float32; scaling by powers of two is exact. The exponent is None until a
non-zero entry has been seen.
"""

import math

import torch
from torch import Tensor


def rescale_(Y: Tensor, exponent: int | None, largest: float) -> int | None:
    """Rescale Y in place before rows with largest absolute entry `largest` are added; returns the new exponent."""
    if largest == 0.0:
        return exponent
    here = math.frexp(largest)[1]
    if exponent is None or here <= exponent:
        return here if exponent is None else exponent
    Y.mul_(4.0 ** max(exponent - here, -500))
    return here


def scaled(H: Tensor, exponent: int | None, power: int = 2) -> Tensor:
    """Return H · 2^(-power · exponent), exact even where that power of two is beyond the range of float32."""
    return torch.ldexp(H, torch.tensor(-power * (exponent or 0), device=H.device))


def added_scaled_(Y: Tensor, exponent: int | None, other: Tensor, other_exponent: int | None) -> int | None:
    """Add two scaled sums into Y, in place; returns the exponent of the result, the larger of the two.

    Args:
        Y: First sum, stored as Y · 4^(-exponent).
        exponent: Exponent of Y; None if Y is zero.
        other: Second sum, stored in the same way.
        other_exponent: Exponent of the second sum; None if it is zero.
    """
    if other_exponent is None:
        return exponent
    if exponent is None:
        exponent = other_exponent
    if other_exponent > exponent:
        Y.mul_(4.0 ** max(exponent - other_exponent, -500))
        exponent = other_exponent
    Y.add_(other.to(Y.device), alpha=4.0 ** max(other_exponent - exponent, -500))
    return exponent


def unscaled(values: Tensor, exponent: int | None) -> Tensor:
    """Return values · 4^exponent, undoing `scaled` for sums of squares."""
    return values * 4.0 ** (exponent or 0)
