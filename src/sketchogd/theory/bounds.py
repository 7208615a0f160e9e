"""What a sketch of rank k leaves out, from the singular values alone: upper bounds, and close estimates.

Letters: σ_1 >= σ_2 >= … singular values of G (n, d), λ = σ²; γ splits them into Σ₁ = diag(λ_1 … λ_γ) and
Σ₂ = diag(λ_γ+1 …), so that Tr Σ₂ is the energy left out by the best basis of rank γ; Σ is both together. Ω (d, k) is
the test matrix; E_G(B) the error of a basis B, as in `metric.reconstruction_error`.

Bounds in expectation hold for Gaussian test matrices. γ may be 0 … k − 2. γ = 0 is allowed for k = 1, too: with an
empty Σ₁, Tr(Σ₁⁻¹) = 0 and the bound is Tr Σ, which no projection exceeds.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..linalg.dense import RELATIVE_RANK


class Bound(NamedTuple):
    """An upper bound on an error, in units of Σ σ², and the split γ at which it is attained."""

    value: float
    gamma: int


def bound_gradient_sketch(singular_values: Tensor, k: int) -> Bound:
    """Bound the expected error of a `GradientSketch` of rank k (Theorem 1, after Halko et al.).

    E[E_G(B)] <= min_γ (1 + γ/(k−γ−1)) Tr Σ₂. The minimum is at γ = 0 for a flat spectrum, at the largest γ for a steep
    one:

    >>> bound_gradient_sketch(torch.ones(10), 4)
    Bound(value=10.0, gamma=0)
    >>> bound_gradient_sketch(torch.tensor([9.0, 0.0, 0.0]), 3)
    Bound(value=0.0, gamma=1)
    """
    squares = _eigenvalues(singular_values)
    gamma = _splits(len(squares), k)
    factor = 1 + gamma / (k - gamma - 1).clamp_min(1)
    return _least(factor * _tails(squares)[: len(gamma)])


def bound_product_sketch(singular_values: Tensor, k: int, tight: bool = True) -> Bound:
    """Bound the expected error of a `ProductSketch` of rank k (Theorem 3).

    E[E_G(B)] <= min_γ c(γ) Tr(Σ₂²) Tr(Σ₁⁻¹) + Tr Σ₂, where c = 1/(k−γ−1) if `tight`, else c = γ/(k−γ−1), as printed
    in the paper. Both hold; the smaller one follows from the paper's own proof. Given Ω, the error is at most
    ‖Σ₂ Ω₂ Ω₁⁺ Σ₁^(-1/2)‖_F² + Tr Σ₂ (`bound_product_sketch_given`), with independent Gaussian Ω₁ (γ, k) and Ω₂. In
    expectation over Ω₂, E‖A Ω₂ C‖_F² = ‖A‖_F² ‖C‖_F² turns the first term into Tr(Σ₂²) ‖Ω₁⁺ Σ₁^(-1/2)‖_F². Since
    (Ω₁⁺)ᵀ Ω₁⁺ = (Ω₁ Ω₁ᵀ)⁻¹, and Ω₁ Ω₁ᵀ is a Wishart matrix of size γ with k degrees of freedom,
    E(Ω₁ Ω₁ᵀ)⁻¹ = I/(k−γ−1), so that E‖Ω₁⁺ Σ₁^(-1/2)‖_F² = Tr(Σ₁⁻¹)/(k−γ−1). The trace already counts the γ
    directions; the γ in the printed numerator counts them twice, which only enlarges the bound.

    If γ reaches the rank of G, the tail is empty and the bound is 0, whatever Σ₁⁻¹ is.

    >>> step = torch.tensor([100.0] * 10 + [2.0] * 100).double().sqrt()
    >>> bound = bound_product_sketch(step, 12)                     # 400 · 0.1 / 1 + 200
    >>> round(bound.value, 6), bound.gamma
    (240.0, 10)
    """
    squares = _eigenvalues(singular_values)
    gamma = _splits(len(squares), k)
    tails = _tails(squares)[: len(gamma)]
    logs = squares.log()
    # In logarithms, because Tr(Σ₁⁻¹) overflows and Tr(Σ₂²) underflows long before their product does either.
    inverse = torch.cat([logs.new_full((1,), -math.inf), (-logs).logcumsumexp(0)])[: len(gamma)]
    square = torch.cat([(2 * logs).flip(0).logcumsumexp(0).flip(0), logs.new_full((1,), -math.inf)])[: len(gamma)]
    factor = (1.0 if tight else gamma) / (k - gamma - 1).clamp_min(1)
    values = factor * (inverse + square).exp() + tails
    return _least(torch.where(tails > 0, values, 0.0))


def bound_product_sketch_given(U: Tensor, singular_values: Tensor, omega: Tensor, gamma: int | None = None) -> Bound:
    """Bound the error of the `ProductSketch` made with a given test matrix Ω (Theorem 2).

    E_G(B) <= ‖Σ₂ Ω₂ Ω₁⁺ Σ₁^(-1/2)‖_F² + Tr Σ₂ with Ω₁ = U[:γ] Ω and Ω₂ = U[γ:] Ω. Nothing is random: it holds for any
    Ω, Gaussian or not. Where Ω₁ lacks full rank γ, the bound is infinite.

    Args:
        U: Right singular vectors of G (n, d) as rows (m, d), at least those of non-zero singular values (Vh of
            `torch.linalg.svd`).
        singular_values: Singular values (m,) in the order of U, decreasing.
        omega: Test matrix (d, k).
        gamma: The split; by default the best one in 0 … min(k, m).

    Raises:
        ValueError: the shapes do not fit, singular values increase, or `gamma` is out of range.

    >>> U, omega = torch.eye(3), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> bound_product_sketch_given(U, torch.tensor([2.0, 1.0, 1.0]), omega, gamma=2)    # (1 · 1 · 1/2)² + 1
    Bound(value=1.25, gamma=2)
    """
    squares = _eigenvalues(singular_values)
    if not bool((singular_values[1:] <= singular_values[:-1]).all()):
        raise ValueError("singular values must be in decreasing order, like the rows of U")
    if U.ndim != 2 or omega.ndim != 2 or U.shape != (len(squares), len(omega)):
        raise ValueError(
            f"expected U ({len(squares)}, d) and omega (d, k), got {tuple(U.shape)} and {tuple(omega.shape)}"
        )
    most = min(omega.shape[1], len(squares))
    if gamma is not None and not 0 <= gamma <= most:
        raise ValueError(f"the split γ must lie in 0 … min(k, m) = {most}; got {gamma}")
    Z = U.double() @ omega.double()
    splits = range(most + 1) if gamma is None else [gamma]
    bounds = [Bound(_given(squares, Z, split), split) for split in splits]
    return min(bounds, key=lambda bound: bound.value)


def bound_nystrom(singular_values: Tensor, k: int) -> Bound:
    """Bound what the Nyström spectrum of a `ProductSketch` of rank k lacks, in expectation.

    E[Tr(M − M̂)] <= min_γ (1 + γ/(k−γ−1)) Tr Σ₂, where M = GᵀG and M̂ = Yᵀ(YΩ)⁺Y with Y = ΩᵀM. Let P be the projector
    onto the range of M^(1/2) Ω. Then M̂ = M^(1/2) P M^(1/2), hence 0 <= M̂ <= M, and Tr(M − M̂) = ‖(I − P) M^(1/2)‖_F²,
    which has the distribution of the error of a *gradient* sketch of the same rank. It follows that

    * no eigenvalue is overestimated: 0 <= λ_j − λ̂_j, and these differences add up to Tr(M − M̂), which `nystrom_error`
      computes from a sketch;
    * since the range of M̂ is the span of Y, the basis of the product sketch has
      E_G(B) = Tr((I − BᵀB)(M − M̂)) <= Tr(M − M̂);
    * in expectation a product sketch is therefore never worse than a gradient sketch of the same rank, and this bound
      holds for its error, too.
    """
    return bound_gradient_sketch(singular_values, k)


def nystrom_error(values: Tensor, energy: float) -> float:
    """Return Tr(M − M̂) = energy − Σ λ̂: what the Nyström eigenvalues of a sketch lack, computed from the sketch alone.

    Pass `values, _ = sketch.spectrum()` and `sketch.energy` = Tr M. The result bounds ‖M − M̂‖, every λ_j − λ̂_j, and the
    error E_G(B) of the sketch's basis, for any test matrix.

    >>> nystrom_error(torch.tensor([4.0, 1.0]), 5.5)
    0.5
    """
    return max(0.0, energy - float(values.double().sum()))


def expected_gradient_sketch(singular_values: Tensor, k: int, relative_rank: float = RELATIVE_RANK) -> float:
    """Estimate (not bound) E[E_G(B)] for a `GradientSketch` of rank k by Σ λ_j / (1 + ζ λ_j).

    ζ solves Σ ζλ_j/(1 + ζλ_j) = k. This is the first-order expression for E[I − P], where P projects onto the range of
    a matrix times a Gaussian one (Dereziński, Liang, Liao, Mahoney 2020); from k = 10 it is accurate to a few per cent.
    Directions with σ below `relative_rank` times the largest are lost to rounding and count in full.
    """
    squares = _eigenvalues(singular_values)
    return _expected(squares, squares, k, relative_rank)


def expected_product_sketch(singular_values: Tensor, k: int, relative_rank: float = RELATIVE_RANK) -> float:
    """Estimate (not bound) E[E_G(B)] for a `ProductSketch` of rank k by Σ λ_j / (1 + ζ λ_j²).

    Like `expected_gradient_sketch`, with the spectrum of GᵀG instead of that of G: ζ solves Σ ζλ_j²/(1 + ζλ_j²) = k.

    >>> step = torch.tensor([100.0] * 10 + [2.0] * 100).double().sqrt()
    >>> round(expected_product_sketch(step, 20)), round(expected_gradient_sketch(step, 20))
    (184, 312)
    """
    squares = _eigenvalues(singular_values)
    return _expected(squares, squares.square(), k, relative_rank)


# ---------------------------------------------------------------- kernels


def _eigenvalues(singular_values: Tensor) -> Tensor:
    """Return λ = σ² in float64, decreasing."""
    if singular_values.ndim != 1:
        raise ValueError(f"singular values are a vector, got shape {tuple(singular_values.shape)}")
    values = singular_values.detach().double().sort(descending=True).values
    if not bool(values.isfinite().all()) or bool((values < 0).any()):
        raise ValueError("singular values must be finite and not negative")
    return values.square()


def _splits(n: int, k: int) -> Tensor:
    """Return the splits γ = 0 … min(max(k − 2, 0), n)."""
    if k < 1:
        raise ValueError(f"a sketch has a rank of at least 1; got k={k}")
    return torch.arange(min(max(k - 2, 0), n) + 1, dtype=torch.float64)


def _tails(squares: Tensor) -> Tensor:
    """Return Tr Σ₂ for γ = 0 … n."""
    return torch.cat([squares.flip(0).cumsum(0).flip(0), squares.new_zeros(1)])


def _least(values: Tensor) -> Bound:
    gamma = int(values.argmin())
    return Bound(float(values[gamma]), gamma)


def _given(squares: Tensor, Z: Tensor, gamma: int) -> float:
    """Return the bound of Theorem 2 for Z = U Ω (m, k) and one γ; of Ω₁ only rows with a non-zero σ count."""
    tail = float(squares[gamma:].sum())
    rank = int((squares > 0).sum())
    first = min(gamma, rank)
    if first == 0:
        return tail
    if int(torch.linalg.matrix_rank(Z[:first])) < first:
        return math.inf
    F = (Z[gamma:] @ torch.linalg.pinv(Z[:first])) * squares[gamma:, None] / squares[:first].sqrt()
    return float(F.square().sum()) + tail


def _expected(squares: Tensor, weights: Tensor, k: int, relative_rank: float) -> float:
    """Return Σ λ / (1 + ζ w), where ζ solves Σ ζw/(1 + ζw) = k, for weights w that decrease with λ."""
    _splits(len(squares), k)
    if len(squares) == 0 or float(squares[0]) == 0.0:
        return 0.0
    relative = weights / weights[0]
    lost = relative.sqrt() <= relative_rank
    x = relative[~lost]
    floor = float(squares[lost].sum())
    r = len(x)
    if k >= r:
        return floor
    # Bracket for bisection: Σ ζx/(1+ζx) <= ζ Σx, and every term is at least that of the smallest x.
    low, high = math.log(k / float(x.sum())), math.log(k / ((r - k) * float(x[-1])))
    for _ in range(100):
        middle = (low + high) / 2
        scaled = math.exp(middle) * x
        low, high = (middle, high) if float((scaled / (1 + scaled)).sum()) < k else (low, middle)
    return floor + float((squares[~lost] / (1 + math.exp(high) * x)).sum())
