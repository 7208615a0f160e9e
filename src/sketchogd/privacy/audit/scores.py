"""How well an attack tells members from others: areas, rates, the likelihood ratio, and what (ε, δ) allows at most.

Letters: n examples, f numbers (features) that an attack reads off each.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

RATES = (0.001, 0.01, 0.1)
"""False-positive rates at which true-positive rates are given: what matters is whom an attack is sure of."""

SHRINKAGE = 0.1
"""The share of the diagonal in an estimated covariance."""


def allowed(epsilon: float, delta: float, rate: float) -> float:
    """The largest true-positive rate of any attack at a false-positive rate, against (ε, δ)-differential privacy.

    Kairouz, Oh, Viswanath 2015: both TPR ≤ e^ε FPR + δ and 1 − FPR ≤ e^ε (1 − TPR) + δ.

    >>> round(allowed(1.0, 0.0, 0.1), 3), round(allowed(1.0, 0.0, 0.9), 3), allowed(50.0, 1e-5, 0.5)
    (0.272, 0.963, 1.0)
    """
    low = math.exp(min(epsilon, 700.0)) * rate + delta
    return max(0.0, min(1.0, low, 1.0 - math.exp(-epsilon) * (1.0 - rate - delta)))


def allowed_area(epsilon: float, delta: float, points: int = 20_000) -> float:
    """The largest area under the curve of any attack, by the trapezoidal rule.

    >>> allowed_area(0.0, 0.0), 0.7 < allowed_area(1.0, 1e-5) < 0.75
    (0.5, True)
    """
    rates = [i / points for i in range(points + 1)]
    tops = [allowed(epsilon, delta, rate) for rate in rates]
    return round(sum((a + b) / 2 for a, b in pairwise(tops)) / points, 6)


@dataclass(frozen=True)
class Attack:
    """What an attack achieves.

    Args:
        name: of the attack.
        area: under the curve, the chance that a member has a higher score than another example; ½ for a guess.
        error: the standard error of `area` for attacks that are no better than a guess.
        rates: {false-positive rate: true-positive rate}; equal for a guess.
        advantage: the largest difference of the two rates.
    """

    name: str
    area: float
    error: float
    rates: dict[float, float]
    advantage: float

    @staticmethod
    def of(name: str, members: Tensor, others: Tensor) -> "Attack":
        """From the scores of members (n,) and of others (m,); higher means more likely a member."""
        n, m = len(members), len(others)
        scores = torch.cat([members, others]).double()
        is_member = torch.cat([torch.ones(n), torch.zeros(m)]).double()
        values, inverse = scores.unique(return_inverse=True)  # ties are one point of the curve
        hits = torch.zeros(len(values), dtype=torch.float64).index_add_(0, inverse, is_member).flip(0).cumsum(0) / n
        false = (
            torch.zeros(len(values), dtype=torch.float64).index_add_(0, inverse, 1 - is_member).flip(0).cumsum(0) / m
        )
        zero = torch.zeros(1, dtype=torch.float64)
        hits, false = torch.cat([zero, hits]), torch.cat([zero, false])
        area = float(torch.trapezoid(hits, false))
        rates = {rate: float(hits[false <= rate].max()) for rate in RATES}
        return Attack(name, area, ((n + m + 1) / (12 * n * m)) ** 0.5, rates, float((hits - false).max()))


def likelihood_ratios(members: Tensor, others: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """log N(x; members) − log N(x; others) of every example, each half judged by densities of the other half.

    Args:
        members: features (n, f).
        others: features (m, f).
        seed: of the halves.
    """
    generator = torch.Generator().manual_seed(seed)
    whole = torch.cat([members, others]).double()
    mean, scale = whole.mean(0), whole.std(0)
    members, others = ((x.double() - mean) / torch.where(scale > 0, scale, 1.0) for x in (members, others))
    halves = [torch.randperm(len(x), generator=generator) % 2 for x in (members, others)]
    found = [torch.zeros(len(x), dtype=torch.float64) for x in (members, others)]
    for fold in (0, 1):
        densities = [_normal(x[half != fold]) for x, half in zip((members, others), halves, strict=True)]
        for x, half, out in zip((members, others), halves, found, strict=True):
            rows = x[half == fold]
            out[half == fold] = densities[0].log_prob(rows) - densities[1].log_prob(rows)
    return found[0], found[1]


def _normal(x: Tensor) -> torch.distributions.MultivariateNormal:
    centred = x - x.mean(0)
    covariance = centred.T @ centred / max(1, len(x) - 1)
    diagonal = covariance.diagonal().clamp_min(1e-3).diag()
    return torch.distributions.MultivariateNormal(x.mean(0), (1 - SHRINKAGE) * covariance + SHRINKAGE * diagonal)
