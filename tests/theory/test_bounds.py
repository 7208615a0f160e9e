"""The bounds by the letter: the paper's worked examples, plain loops, and the edges."""

import math

import pytest
import torch
from torch import Tensor

from sketchogd import theory

# ---------------------------------------------------------------- the paper's worked examples


def test_flat_spectrum_splits_at_zero():
    p, level = 50, 3.0
    for k in (2, 10, 49):
        bound = theory.bound_gradient_sketch(torch.full((p,), level**0.5, dtype=torch.float64), k)
        assert bound.gamma == 0
        assert bound.value == pytest.approx(p * level)


@pytest.mark.parametrize(("p", "k"), [(100, 60), (100, 90), (101, 70), (400, 201)])
def test_linear_decay_splits_where_the_remark_says(p: int, k: int):
    """λ_j = (2λ/p)(p − j + ½), whose tails are (λ/p)(p − γ)² exactly, as the remark approximates them."""
    level = 1.7
    eigenvalues = 2 * level / p * (p - torch.arange(p, dtype=torch.float64) - 0.5)
    bound = theory.bound_gradient_sketch(eigenvalues.sqrt(), k)
    assert bound.gamma == 2 * (k - 1) - p
    assert bound.value == pytest.approx(4 * level / p * (k - 1) * (p - k + 1), rel=1e-12)


@pytest.mark.parametrize("k", [12, 13, 30])
def test_step_spectrum_has_40_against_200(k: int):
    s = torch.tensor([100.0] * 10 + [2.0] * 100).double().sqrt()
    assert theory.bound_product_sketch(s, k) == (pytest.approx(40 / (k - 11) + 200, rel=1e-12), 10)
    printed = theory.bound_product_sketch(s, k, tight=False)
    at_10 = 10 * 40 / (k - 11) + 200
    assert printed.value == pytest.approx(at_10, rel=1e-12)
    assert at_10 < (1 + 10 / (k - 11)) * 200  # the remark: 40 <= 200, so Theorem 3 is the tighter at this split


# ---------------------------------------------------------------- the formulas, by the letter


def by_the_letter(s: Tensor, k: int, kind: str) -> tuple[float, int]:
    squares = sorted((float(x) ** 2 for x in s), reverse=True)
    best = (math.inf, -1)
    for gamma in range(min(k - 2, len(squares)) + 1):
        head, tail = squares[:gamma], squares[gamma:]
        if sum(tail) == 0:
            value = 0.0
        elif kind == "gradient":
            value = (1 + gamma / (k - gamma - 1)) * sum(tail)
        else:
            c = (gamma if kind == "printed" else 1) / (k - gamma - 1)
            value = c * sum(x**2 for x in tail) * sum(1 / x for x in head) + sum(tail)
        best = min(best, (value, gamma))
    return best


@pytest.mark.parametrize("kind", ["gradient", "tight", "printed"])
@pytest.mark.parametrize("k", [2, 3, 7, 25, 29, 40])
def test_formulas_against_plain_loops(kind: str, k: int):
    spectra = [torch.rand(27, generator=torch.Generator().manual_seed(k)) ** power for power in (0, 1, 8)]
    for s in [*spectra, torch.tensor([3.0, 1.0, 0.0, 0.0, 0.0]), torch.tensor([1.0])]:
        if kind == "gradient":
            bound = theory.bound_gradient_sketch(s, k)
        else:
            bound = theory.bound_product_sketch(s, k, tight=kind == "tight")
        value, gamma = by_the_letter(s, k, kind)
        assert bound.value == pytest.approx(value, rel=1e-10)
        assert bound.gamma == gamma


def test_edges():
    for bound in (theory.bound_gradient_sketch, theory.bound_product_sketch):
        assert bound(torch.tensor([2.0, 1.0]), 2) == (5.0, 0)  # only γ = 0 is left
        assert bound(torch.tensor([2.0, 1.0]), 1) == (5.0, 0)
        assert bound(torch.tensor([1.0, 2.0]), 4).value == 0.0  # γ = rank, and values in any order
        assert bound(torch.tensor([2.0, 1.0, 0.0, 0.0]), 3).value > 0
        assert bound(torch.tensor([2.0, 1.0, 0.0, 0.0]), 4) == (0.0, 2)
        assert bound(torch.zeros(5), 4).value == 0.0
        assert bound(torch.zeros(0), 4) == (0.0, 0)
        assert math.isfinite(bound(torch.logspace(150, -150, 200, dtype=torch.float64), 100).value)
        with pytest.raises(ValueError, match="rank of at least 1"):
            bound(torch.ones(3), 0)
        with pytest.raises(ValueError, match="not negative"):
            bound(torch.tensor([1.0, -1.0]), 3)
        with pytest.raises(ValueError, match="not negative"):
            bound(torch.tensor([1.0, math.nan]), 3)
        with pytest.raises(ValueError, match="vector"):
            bound(torch.ones(3, 3), 3)


def test_estimates_at_the_edges():
    for estimate in (theory.expected_gradient_sketch, theory.expected_product_sketch):
        assert estimate(torch.tensor([3.0, 1.0]), 2) == 0.0
        assert estimate(torch.zeros(4), 2) == 0.0
        assert estimate(torch.ones(10), 4) == pytest.approx(6.0)
    s = torch.tensor([1.0, 1e-2, 1e-4])
    assert theory.expected_product_sketch(s, 3) == pytest.approx(1e-8)  # 1e-8 of the largest λ is below rounding
    assert theory.expected_gradient_sketch(s, 3) == 0.0


def test_deterministic_bound_at_the_edges():
    U = torch.eye(4, dtype=torch.float64)
    omega = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    given = theory.bound_product_sketch_given
    s = torch.tensor([2.0, 1.0, 0.0, 0.0])
    assert given(U, s, omega, 0) == (5.0, 0)
    assert given(U, s, omega, 2).value == 0.0
    assert given(U, s, omega, 3).value == 0.0
    assert given(U, s, omega).value == 0.0
    deficient = omega.clone()
    deficient[1] = deficient[0]
    assert given(U, torch.ones(4), deficient, 2).value == math.inf
    assert given(U, torch.ones(4), deficient).value < math.inf
    with pytest.raises(ValueError, match="split"):
        given(U, s, omega, 4)
    with pytest.raises(ValueError, match="decreasing"):
        given(U, s.flip(0), omega, 1)
    with pytest.raises(ValueError, match="omega"):
        given(U, s, omega[:3], 1)
