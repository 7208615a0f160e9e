"""Sums of squares at a scale of their own: Y is kept as Y · 4^(-e), e the exponent of the largest entry seen.

Squares of rows beyond 1e19 overflow float32; scaling by powers of two is exact. An exponent is None until something
other than zero was seen.
"""

import math

import torch
from torch import Tensor


def rescale_(Y: Tensor, exponent: int | None, largest: float) -> int | None:
    """Bring Y to the scale of the largest entry seen, which may be in the rows to come; returns its exponent."""
    if largest == 0.0:
        return exponent
    here = math.frexp(largest)[1]
    if exponent is None or here <= exponent:
        return here if exponent is None else exponent
    Y.mul_(4.0 ** max(exponent - here, -500))
    return here


def scaled(H: Tensor, exponent: int | None, power: int = 2) -> Tensor:
    """H · 2^(-power · exponent), exact also where that power of two is beyond float32 itself."""
    return torch.ldexp(H, torch.tensor(-power * (exponent or 0), device=H.device))


def added_scaled_(Y: Tensor, exponent: int | None, other: Tensor, other_exponent: int | None) -> int | None:
    """Y · 4^exponent + other · 4^other_exponent, at the larger scale, in place of Y."""
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
    """values · 4^exponent."""
    return values * 4.0 ** (exponent or 0)
