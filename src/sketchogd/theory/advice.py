"""Which sketch to choose for a given memory, from the spectrum of the gradients.

The candidates are the paper's methods 1, 2 and 3, each with the largest rank that fits. Their expected errors are
functions of the singular values alone (`bounds`). If test matrices are not stored, method 2 has the same rank as
method 1 and therefore the smaller error. If they are stored, as in the paper, it has half the rank, and the spectrum
decides: a strong head over a flat tail favours method 2, a flat or evenly decreasing spectrum method 1. Method 3 with
k = l has the span of method 2 with k + l rows, in the same memory.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..sketch import GradientSketch, ProductSketch, Sketch, SymmetricSketch
from ..sketch.testmatrix import TestMatrix, named_test_matrix
from .bounds import (
    Bound,
    bound_gradient_sketch,
    bound_product_sketch,
    expected_gradient_sketch,
    expected_product_sketch,
)
from .metric import singular_values as singular_values_of
from .metric import stable_rank

NEGLIGIBLE = 1e-6
"""Errors below this share of the energy count as equal, since training would not show the difference."""


@dataclass(frozen=True)
class Candidate:
    """A sketch that fits, with the share of the energy it is expected to leave out and a bound on that share."""

    kind: str
    """Name in the registry of sketches: "gradient", "product" or "symmetric"."""
    rank: int
    """k; the corank of a symmetric sketch is the same."""
    expected_error: float
    """Estimate of E[E_G(B)] / ‖G‖²."""
    bound: float
    """Upper bound on the same for Gaussian test matrices."""
    gamma: int
    """The split of the spectrum at which the bound is attained."""


@dataclass(frozen=True)
class Recommendation:
    """The best candidate, the reason in words, and the other candidates."""

    kind: str
    rank: int
    expected_error: float
    """Estimate of E[E_G(B)] / ‖G‖²."""
    bound: float
    """Upper bound on the same for Gaussian test matrices."""
    reason: str
    candidates: tuple[Candidate, ...]
    """All candidates that fit, best first."""
    test_matrix: TestMatrix

    def sketch(self, seed: int = 0) -> Sketch:
        """Return the recommended sketch, unbound."""
        if self.kind == "gradient":
            return GradientSketch(self.rank, seed=seed)
        if self.kind == "product":
            return ProductSketch(self.rank, seed=seed, test_matrix=self.test_matrix)
        return SymmetricSketch(self.rank, self.rank, seed=seed, test_matrix=self.test_matrix)


def recommend(
    spectrum: Tensor,
    nbytes: int | None = None,
    *,
    vectors: int | None = None,
    d: int | None = None,
    test_matrix: str | TestMatrix = "sparse",
) -> Recommendation:
    """Recommend the sketch with the smallest expected error within a budget in bytes or in vectors.

    Args:
        spectrum: Singular values (m,), or gradients (n, d) from which they are computed.
        nbytes: Budget in bytes, counted as by `Sketch.cost`; needs d.
        vectors: Budget in vectors of length d. As in the paper, only sketch rows and stored test matrices count.
        d: Length of a gradient; taken from `spectrum` if that has gradients.
        test_matrix: As for `ProductSketch`; `so.Gaussian(stored=True)` reproduces the paper's accounting.

    Returns:
        The recommendation. Ties go to the product sketch.

    Raises:
        ValueError: not exactly one budget is given, or not even a sketch of rank 1 fits.

    >>> import torch
    >>> from sketchogd import Gaussian
    >>> flat, step = torch.ones(110), torch.tensor([10.0] * 10 + [1.4] * 100)
    >>> recommend(flat, vectors=30).kind, recommend(step, vectors=30).kind
    ('product', 'product')
    >>> paper = Gaussian(stored=True)
    >>> recommend(flat, vectors=30, test_matrix=paper).kind, recommend(step, vectors=30, test_matrix=paper).kind
    ('gradient', 'product')
    """
    if spectrum.ndim == 2:
        if d is not None and d != spectrum.shape[1]:
            raise ValueError(f"the gradients have length {spectrum.shape[1]}, but d={d} was given")
        d = spectrum.shape[1]
        spectrum = singular_values_of(spectrum)
    if (nbytes is None) == (vectors is None):
        raise ValueError(f"give exactly one of nbytes and vectors; got nbytes={nbytes}, vectors={vectors}")
    matrix = named_test_matrix(test_matrix)
    ranks = _ranks_in_vectors(vectors, d, matrix) if vectors is not None else _ranks_in_bytes(nbytes, d, matrix)
    # Ties go to the method with the lowest number.
    order = {"product": 0, "gradient": 1, "symmetric": 2}
    found = sorted(
        (_candidate(kind, rank, spectrum) for kind, rank in ranks.items()),
        key=lambda c: (float(f"{max(c.expected_error, NEGLIGIBLE):.6g}"), order[c.kind]),
    )
    best = found[0]
    return Recommendation(
        best.kind, best.rank, best.expected_error, best.bound, _reason(found, spectrum), tuple(found), matrix
    )


def typical_spectrum(directions: int = 2000) -> Tensor:
    """Return σ_j = j^-0.58 (directions,) in float64: a guess at the spectrum of gradients before any was observed.

    Measured on 2,000 gradients of an MLP on MNIST: σ_1/σ_100 = 12 and σ_1/σ_1000 = 62. The exponent is that of the
    least-squares line through the origin in logarithms, which gives 14 and 55. A power law describes the decay better
    than the head: its stable rank is 5, the measured one was 9.5.

    >>> s = typical_spectrum()
    >>> round(float(s[0] / s[99])), round(float(s[0] / s[999]))
    (14, 55)
    """
    return torch.arange(1, directions + 1, dtype=torch.float64) ** -0.58


def completed_spectrum(values: Tensor, energy: float, directions: int) -> Tensor:
    """Complete the spectrum of a sketch: √λ̂, followed by the missing energy, spread evenly over further directions.

    An even spread is the most pessimistic guess at a tail: a few directions can capture little of it.

    Args:
        values: Eigenvalues λ̂ (r,) of a sketch.
        energy: Σ λ, the `energy` of the sketch.
        directions: Number of singular values in all, min(n, d).

    >>> completed_spectrum(torch.tensor([4.0]), 6.0, 3)
    tensor([2., 1., 1.], dtype=torch.float64)
    """
    known = values.detach().double().clamp_min(0).cpu()
    further, lacking = directions - len(known), energy - float(known.sum())
    if further <= 0 or lacking <= 0:
        return known.sqrt()
    return torch.cat([known, known.new_full((further,), lacking / further)]).sqrt()


# ---------------------------------------------------------------- sizes


def _ranks_in_vectors(vectors: int, d: int | None, matrix: TestMatrix) -> dict[str, int]:
    """Return the largest rank of each kind when every sketch row and every stored test vector counts as one vector."""
    if vectors < 1:
        raise ValueError(f"a sketch needs at least one vector; got {vectors}")
    stored = 1 + (matrix.cost(1, 1, 1) > 0)
    sizes = {"gradient": vectors, "product": vectors // stored, "symmetric": vectors // (2 * stored)}
    return {kind: rank if d is None else min(rank, d) for kind, rank in sizes.items() if rank}


def _ranks_in_bytes(nbytes: int | None, d: int | None, matrix: TestMatrix) -> dict[str, int]:
    """Return the largest rank of each kind by `Sketch.from_budget`; kinds that do not fit are left out."""
    if d is None or nbytes is None:
        raise ValueError("a budget in bytes needs d, the length of a gradient")
    makers: dict[str, tuple[Any, dict[str, Any]]] = {
        "gradient": (GradientSketch, {}),
        "product": (ProductSketch, {"test_matrix": matrix}),
        "symmetric": (SymmetricSketch, {"test_matrix": matrix}),
    }
    ranks, smallest = {}, []
    for kind, (maker, settings) in makers.items():
        try:
            ranks[kind] = maker.from_budget(nbytes, d, **settings).rank
        except ValueError as error:
            smallest.append(str(error))
    if not ranks:
        raise ValueError(smallest[0])
    return ranks


# ---------------------------------------------------------------- errors and words


def _candidate(kind: str, rank: int, spectrum: Tensor) -> Candidate:
    # With k = l the symmetric basis spans the rows of Y and W: it is that of a product sketch of rank 2k.
    energy = float(spectrum.double().square().sum())
    if kind == "gradient":
        expected, bound = expected_gradient_sketch(spectrum, rank), bound_gradient_sketch(spectrum, rank)
    else:
        k = rank if kind == "product" else 2 * rank
        expected = expected_product_sketch(spectrum, k)
        # Both bounds hold for a product sketch; see bound_nystrom.
        bound = min(bound_product_sketch(spectrum, k), bound_gradient_sketch(spectrum, k), key=_value)
    if energy == 0.0:
        return Candidate(kind, rank, 0.0, 0.0, bound.gamma)
    return Candidate(kind, rank, expected / energy, bound.value / energy, bound.gamma)


def _value(bound: Bound) -> float:
    return bound.value


def _reason(found: list[Candidate], spectrum: Tensor) -> str:
    best = found[0]
    positive = int((spectrum > 0).sum())
    words = [
        f"A {best.kind} sketch of rank {best.rank} should leave out {_percent(best.expected_error)} of the energy of "
        f"the gradients, at most {_percent(best.bound)} on average (the bound splits the spectrum after {best.gamma}).",
        f"The gradients have {positive} directions and a stable rank of {stable_rank(spectrum):.1f}.",
    ]
    for other in found[1:]:
        words.append(f"A {other.kind} sketch would have rank {other.rank} and leave {_percent(other.expected_error)}.")
    ranks = {c.kind: c.rank for c in found}
    if best.kind == "gradient" and ranks.get("product") == best.rank:
        words.append(
            "Squares of this spectrum span more orders than float32 holds, so a product sketch loses its tail."
        )
    elif best.kind == "gradient":
        words.append("For this spectrum its larger rank is worth more than the sharper view of a product sketch.")
    elif best.kind == "product" and ranks.get("gradient") == best.rank:
        words.append(
            "At the same rank a product sketch is never worse on average: it sees the squares of the spectrum."
        )
    elif best.kind == "product":
        words.append("The head of this spectrum stands out from its tail, which makes up for the smaller rank.")
    return " ".join(words)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
