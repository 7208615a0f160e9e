"""What an accuracy matrix says about learning and forgetting, and how to compare two methods over seeds.

A (T × T): A[i, j] is the test accuracy on task j after training on task i, tasks counted from 0. Entries above the
diagonal (tasks not yet trained) are needed by forward transfer only. a₀ (T): accuracies before any training.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

EXACT_SIGN_FLIPS = 20
"""Up to this number n of pairs all 2ⁿ sign patterns are counted; for more pairs, a sample of them."""


@dataclass(frozen=True)
class Summary:
    """Five metrics of one run; `forward_transfer` is NaN without initial accuracies or with a single task."""

    average_accuracy: float
    learning_accuracy: float
    forgetting: float
    backward_transfer: float
    forward_transfer: float


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (with n − 1 in the denominator; 0 for one value) of a number over n seeds."""

    mean: float
    std: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3f}±{self.std:.3f}"


@dataclass(frozen=True)
class PairedTest:
    """Two methods on the same n seeds: mean difference first − second, Student's t, and two two-sided p values."""

    difference: float
    t: float
    p_t: float
    p_sign_flip: float
    n: int


def average_accuracy(A: ArrayLike) -> float:
    """Mean accuracy over all tasks after the last one was trained: (1/T) Σⱼ A[T−1, j]."""
    return float(_matrix(A)[-1].mean())


def learning_accuracy(A: ArrayLike) -> float:
    """Mean accuracy on each task right after it was trained: (1/T) Σⱼ A[j, j]."""
    return float(np.diagonal(_matrix(A)).mean())


def forgetting(A: ArrayLike) -> float:
    """Mean fall from the best accuracy on a task to the final one.

    1/(T−1) Σ_{j<T−1} (max_{j≤i<T−1} A[i, j] − A[T−1, j]). The last task cannot have been forgotten and is left out.
    0 for a single task; negative if later training improved the tasks.
    """
    A = _matrix(A)
    T = len(A)
    falls = [A[j : T - 1, j].max() - A[T - 1, j] for j in range(T - 1)]
    return float(np.mean(falls)) if falls else 0.0


def backward_transfer(A: ArrayLike) -> float:
    """Mean change by later training: 1/(T−1) Σ_{j<T−1} (A[T−1, j] − A[j, j]); 0 for a single task."""
    A = _matrix(A)
    changes = (A[-1] - np.diagonal(A))[:-1]
    return float(changes.mean()) if len(changes) else 0.0


def forward_transfer(A: ArrayLike, initial: ArrayLike) -> float:
    """Mean gain on a task from earlier tasks, before it is trained: 1/(T−1) Σ_{j≥1} (A[j−1, j] − a₀[j]).

    Args:
        A: accuracy matrix (T × T), evaluated on tasks to come as well.
        initial: a₀ (T), accuracies before any training.

    Returns:
        The mean gain; NaN for a single task.

    Raises:
        ValueError: the shapes differ, or an accuracy that is needed is missing (NaN).
    """
    A = _matrix(A)
    start = np.asarray(initial, dtype=float)
    if start.shape != (len(A),):
        raise ValueError(f"expected {len(A)} initial accuracies, found shape {start.shape}")
    gains = np.diagonal(A, offset=1) - start[1:]
    if np.isnan(gains).any():
        raise ValueError("forward transfer needs A[j−1, j] and a₀[j] for every task j ≥ 1; some are missing (NaN)")
    return float(gains.mean()) if len(gains) else math.nan


def summary(A: ArrayLike, initial: ArrayLike | None = None) -> Summary:
    """All five metrics of one run."""
    return Summary(
        average_accuracy=average_accuracy(A),
        learning_accuracy=learning_accuracy(A),
        forgetting=forgetting(A),
        backward_transfer=backward_transfer(A),
        forward_transfer=math.nan if initial is None else forward_transfer(A, initial),
    )


def spread(values: Sequence[float]) -> Spread:
    """Mean ± sample standard deviation over seeds.

    Raises:
        ValueError: no values, or one that is not finite.
    """
    x = np.asarray(values, dtype=float)
    if x.ndim != 1 or not len(x) or not np.isfinite(x).all():
        raise ValueError(f"expected at least one finite number, found {list(values)}")
    return Spread(mean=float(x.mean()), std=float(x.std(ddof=1)) if len(x) > 1 else 0.0, n=len(x))


def spreads(matrices: Iterable[ArrayLike]) -> dict[str, Spread]:
    """The columns of a table from the accuracy matrices of several seeds.

    Accuracy, forgetting, learning, and `backward`, the backward transfer.
    """
    seeds = list(matrices)
    columns = {"accuracy": average_accuracy, "forgetting": forgetting, "learning": learning_accuracy}
    columns["backward"] = backward_transfer
    return {name: spread([metric(A) for A in seeds]) for name, metric in columns.items()}


def paired_test(first: Sequence[float], second: Sequence[float], *, seed: int = 0) -> PairedTest:
    """Test whether `first` is better than `second` on the same n seeds, with d = first − second.

    Student's test: t = mean(d) / (std(d) / √n) with n − 1 degrees of freedom. Sign-flip test, which assumes only that d
    is symmetric: p is the share of the 2ⁿ sign patterns s with |Σ sᵢ dᵢ| ≥ |Σ dᵢ|. That p is at least 2/2ⁿ, which is
    1/16 for five seeds. For more than 20 pairs a sample of 100,000 patterns is drawn from `seed`.

    Raises:
        ValueError: different lengths, fewer than two pairs, or numbers that are not finite.
    """
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if a.shape != b.shape or a.ndim != 1 or len(a) < 2:
        raise ValueError(f"expected at least two pairs, found shapes {a.shape} and {b.shape}")
    d = a - b
    if not np.isfinite(d).all():
        raise ValueError("the numbers to compare must be finite")
    n, mean, error = len(d), float(d.mean()), float(d.std(ddof=1)) / math.sqrt(len(d))
    # Differences that are equal up to rounding have no measurable error.
    if error <= 1e-12 * abs(mean):
        error = 0.0
    t = mean / error if error else math.copysign(math.inf, mean) if mean else 0.0
    return PairedTest(mean, t, student_p(t, n - 1), _sign_flip_p(d, seed), n)


def welch_p(first: Spread, second: Spread) -> float:
    """Two-sided p value of Welch's test that two means over independent seeds are equal.

    t = (m₁ − m₂) / √(v₁ + v₂) with v = s²/n, and (v₁ + v₂)² / (v₁²/(n₁ − 1) + v₂²/(n₂ − 1)) degrees of freedom, rounded
    down.

    >>> round(welch_p(Spread(0.777, 0.038, 5), Spread(0.734, 0.019, 5)), 2)
    0.07

    Raises:
        ValueError: fewer than two seeds on one side, or no spread on both sides.
    """
    if min(first.n, second.n) < 2 or not first.std + second.std:
        raise ValueError(f"two seeds a side and some spread are needed, found {first} and {second}")
    v = [side.std**2 / side.n for side in (first, second)]
    degrees = sum(v) ** 2 / sum(x * x / (side.n - 1) for x, side in zip(v, (first, second), strict=True))
    return student_p((first.mean - second.mean) / math.sqrt(sum(v)), math.floor(degrees + 1e-9))


def student_p(t: float, degrees: int) -> float:
    """Two-sided p value P(|T| ≥ |t|) of Student's distribution, by its finite series for ν degrees of freedom.

    With θ = atan(|t|/√ν): ν odd, P(<) = 2/π (θ + sin θ (cos θ + 2/3 cos³θ + … )); ν even, P(<) = sin θ (1 + 1/2 cos²θ +
    1·3/(2·4) cos⁴θ + …), both up to cos^(ν−2) (Abramowitz and Stegun 26.7.3, 26.7.4). Absolute error about 1e-15.
    """
    if degrees < 1:
        raise ValueError(f"at least one degree of freedom is needed, got {degrees}")
    theta = math.atan2(abs(t), math.sqrt(degrees)) if math.isfinite(t) else math.pi / 2
    cosine = math.cos(theta)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    inside = 2 / math.pi * (theta + math.sin(theta) * total) if odd else math.sin(theta) * total
    return min(1.0, max(0.0, 1.0 - inside))


def _sign_flip_p(d: np.ndarray, seed: int) -> float:
    observed = abs(d.sum())
    slack = 1e-12 * np.abs(d).sum()
    if len(d) <= EXACT_SIGN_FLIPS:
        sums = np.zeros(1)
        for value in d:
            sums = np.concatenate([sums + value, sums - value])
        return float(np.mean(np.abs(sums) >= observed - slack))
    signs = np.random.default_rng(seed).integers(0, 2, size=(100_000, len(d)), dtype=np.int8) * 2 - 1
    return float((1 + np.count_nonzero(np.abs(signs @ d) >= observed - slack)) / (1 + len(signs)))


def _matrix(A: ArrayLike) -> np.ndarray:
    """A as a float array, checked: square, and finite on and below the diagonal."""
    matrix = np.asarray(A, dtype=float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise ValueError(f"an accuracy matrix is square and not empty, this has shape {matrix.shape}")
    if not np.isfinite(matrix[np.tril_indices(len(matrix))]).all():
        raise ValueError("the accuracy matrix has missing entries on or below the diagonal: is the run finished?")
    return matrix
