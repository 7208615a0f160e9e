"""Noise-aware spectra: what a noisy sum says of a second moment, with what is only noise taken off.

Noise of known size adds to every eigenvalue and turns every eigenvector; below an edge nothing of the signal is seen at
all. The shrinkage is the one that is best in mean square for large matrices (Gavish, Donoho 2017; for symmetric noise
Capitaine, Donati-Martin, Féral 2009): an eigenvalue λ of M + E, where E has its edge at 2s, becomes √(λ² − 4s²), and 0
below the edge. How many directions are kept follows from the noise, not from the rank of a sketch. All of this sees
released sums only, so that it costs no privacy. Letters as in `memory.estimates`; σ the noise of a sum.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ...memory.estimates import MomentEstimate, RowsEstimate
from .sums import Noisy

QUANTILE = 3.5
"""What the largest eigenvalue of noise hardly ever exceeds: the law of Tracy and Widom has 0.1 % beyond."""


def largest_of_symmetric(d: int) -> float:
    """How far above its edge the largest eigenvalue of symmetric noise (d, d) can be, as a factor."""
    return 1 + QUANTILE / 2 * d ** (-2 / 3)


def largest_of_rectangle(k: int, d: int) -> float:
    """The same for the largest singular value of noise (k, d) and the edge √k + √d (Johnstone 2001)."""
    return 1 + QUANTILE / 2 * (k**-0.5 + d**-0.5) ** (1 / 3) / (k**0.5 + d**0.5)


def of_moment(found: Noisy, count: int, spread: bool) -> MomentEstimate:
    """The estimate of M from a released M + E (d, d), for M of trace `count`.

    Args:
        found: symmetric; E has σ/√2 off its diagonal, hence its edge at √2 σ √d.
        count: about how many examples there were; each has a contribution of trace 1.
        spread: whether energy without a direction is spread over the other directions; otherwise it is left out.
    """
    d = len(found.value)
    values, vectors = torch.linalg.eigh(found.value)
    edge = (2 * d) ** 0.5 * found.sigma
    kept = values > largest_of_symmetric(d) * edge
    values, vectors = (values[kept].square() - edge**2).sqrt().flip(0), vectors[:, kept].flip(1).T
    if float(values.sum()) > count > 0:
        values = values * (count / float(values.sum()))
    r = len(values)
    left = max(0.0, count - float(values.sum()))
    tail = left / (d - r) if spread and d > r else 0.0
    return MomentEstimate(values, vectors.contiguous(), tail, count)


def of_diagonal(found: Noisy, count: int) -> Tensor:
    """The estimate of positive numbers (V,) that sum to `count`: small ones are set to the mean of what is left."""
    kept = found.value > found.sigma * (2 * torch.tensor(float(len(found.value))).log()) ** 0.5
    values = torch.where(kept, found.value, 0.0)
    if float(values.sum()) > count:
        return values * (count / float(values.sum()))
    return torch.where(kept, values, (count - float(values.sum())) / max(1, int((~kept).sum())))


def _shrunk(found: Noisy) -> tuple[Tensor, Tensor, Tensor]:
    """(U (k, r), s (r,), V (r, d)) of a released Y + E (k, d): the best singular values in mean square."""
    Y, sigma = found.value, found.sigma
    (k, d), wide = Y.shape, max(Y.shape)
    beta = min(k, d) / wide
    squares, U = torch.linalg.eigh(Y @ Y.T)
    squares, U = squares.flip(0).clamp_min(0.0), U.flip(1)
    y = squares.sqrt() / (sigma * wide**0.5)
    kept = y > largest_of_rectangle(k, d) * (1 + beta**0.5)
    y, U = y[kept], U[:, kept]
    V = (U.T @ Y) / squares[kept].sqrt()[:, None]
    return U, ((y.square() - beta - 1).square() - 4 * beta).sqrt() / y * (sigma * wide**0.5), V


def of_product(found: Noisy, count: int, omega: Callable[[Tensor], Tensor], norm: float) -> MomentEstimate:
    """The estimate of M from a released Ωᵀ M' + E (k, d), where M' counts an example as 1/‖Ωᵀ g‖ of what M counts it.

    With V the rows that are seen, M = Vᵀ T V fits Ωᵀ M best for T = (ΩᵀVᵀ)⁺ Y Vᵀ, whose negative part is noise.

    Args:
        found: not symmetric.
        count: about how many examples there were.
        omega: multiplies rows (n, d) by Ω.
        norm: about ‖Ωᵀ g‖ for a vector g of length 1.
    """
    U, s, V = _shrunk(found)
    T = torch.linalg.pinv(omega(V).T) @ (U * s) * norm
    values, turn = torch.linalg.eigh((T + T.T) / 2)
    kept = values > 0
    values, vectors = values[kept].flip(0), (turn[:, kept].flip(1).T @ V)
    if float(values.sum()) > count > 0:
        values = values * (count / float(values.sum()))
    return MomentEstimate(values, vectors, 0.0, count, max(0.0, count - float(values.sum())))


def of_rows(found: Noisy, count: int) -> RowsEstimate:
    """The estimate of Ωᵀ G from a released one, where rows of Ω have norm 1; those of a sketch have √k."""
    U, s, V = _shrunk(found)
    return RowsEstimate((U * s) @ V * len(found.value) ** 0.5, count, float(count))
