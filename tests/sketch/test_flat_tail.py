"""What a flat tail does to a sketch of a second moment, and what is gained by knowing of it."""

import pytest
import torch

import sketchogd as so
from sketchogd.sketch import FlatTailSketch
from sketchogd.sketch.flat_tail import flat_tail


def moment(values: torch.Tensor, seed: int) -> torch.Tensor:
    """A symmetric matrix (d, d) with these eigenvalues, in float64."""
    generator = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator, dtype=torch.float64))[0]
    return (Q * values.double()) @ Q.T


def rows_of(M: torch.Tensor) -> torch.Tensor:
    """Rows whose second moment is M."""
    values, V = torch.linalg.eigh(M)
    return values.clamp_min(0).sqrt()[:, None] * V.T


def estimate(sketch: so.sketch.Sketch) -> torch.Tensor:
    """M̂ of what a projector makes of a sketch: its eigenpairs, and the mean of what is left elsewhere."""
    values, B = sketch.spectrum()
    B = B.double()
    tail = (sketch.energy - float(values.sum())) / (sketch.d - len(values)) if len(values) < sketch.d else 0.0
    return B.T @ ((values - tail)[:, None] * B) + tail * torch.eye(sketch.d, dtype=torch.float64)


def sketched(kind: type, k: int, M: torch.Tensor, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    sketch = kind(k, seed=seed).bind(len(M), dtype)
    sketch.observe(rows_of(M))
    return estimate(sketch)


def kept_at(M: torch.Tensor, estimated: torch.Tensor, free: float) -> float:
    """The energy of M that (I + c M̂)⁻¹ lets through, for the c at which its trace is `free` of d."""
    values, Q = torch.linalg.eigh(estimated)
    own = ((Q.T @ M) * Q.T).sum(1)
    low, high = 1e-9, 1e12
    for _ in range(100):
        c = (low * high) ** 0.5
        low, high = (c, high) if float((1 / (1 + c * values)).mean()) > free else (low, c)
    return float((own / (1 + low * values) ** 2).sum() / M.trace())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tail", [0.0, 0.01, 1.0])
def test_a_low_rank_and_a_flat_tail_are_found_exactly(tail, dtype):
    """Where Nyström of the same bytes is off by a large part of the tail, which hides what is small beside it."""
    M = moment(torch.cat([torch.tensor([50.0, 20.0, 10.0, 5.0]), torch.zeros(76)]) + tail, 1)
    scale = float(M.norm())
    assert float((sketched(FlatTailSketch, 12, M, dtype=dtype) - M).norm()) < 1e-4 * scale
    if tail == 1.0:
        assert float((sketched(so.ProductSketch, 12, M, dtype=dtype) - M).norm()) > 0.05 * scale


@pytest.mark.parametrize("power", [0.5, 1.0, 1.5])
def test_on_falling_spectra_less_leaks_at_the_same_freedom(power):
    """Over ten draws, 6 to 18 % less; the bound asks for half of the least."""
    M = moment(torch.arange(1, 201).double() ** -power, 2)
    for free in (0.5, 0.2):
        exact = kept_at(M, M, free)
        mean = {}
        for kind in (FlatTailSketch, so.ProductSketch):
            mean[kind] = sum(kept_at(M, sketched(kind, 40, M, seed), free) / exact for seed in range(10)) / 10
        assert mean[FlatTailSketch] < 0.97 * mean[so.ProductSketch]


def test_nothing_missing_is_nystrom():
    """Fewer directions than rows: no tail, and the same eigenpairs."""
    M = moment(torch.cat([torch.logspace(0, -3, 8), torch.zeros(52)]), 3)
    assert float((sketched(FlatTailSketch, 16, M) - sketched(so.ProductSketch, 16, M)).norm()) < 1e-6


def test_the_trace_is_that_of_what_was_observed():
    M = moment(torch.arange(1, 101).double() ** -0.7, 4)
    sketch = FlatTailSketch(20).bind(100, torch.float64)
    sketch.observe(rows_of(M))
    values, _ = sketch.spectrum()
    assert float(estimate(sketch).trace()) == pytest.approx(float(M.trace()), rel=1e-9)
    # What is left for the directions outside is the tail that was taken off, and no value is below it.
    outside = (sketch.energy - float(values.sum())) / (100 - len(values))
    assert outside == pytest.approx(sketch.tail * 4.0**sketch.exponent, rel=1e-6)
    assert float(values.min()) >= outside * (1 - 1e-9)


def test_the_formula_against_dense_matrices():
    """The trace of τ I + (Y − τΩᵀ)ᵀ ((Y − τΩᵀ) Ω)⁺ (Y − τΩᵀ), by a search over τ with pseudo-inverses."""
    M = moment(torch.arange(1, 31).double() ** -1.0, 5)
    sketch = FlatTailSketch(8, seed=2).bind(30, torch.float64)
    sketch.observe(rows_of(M))
    omega = sketch.omega.dense(torch.float64, torch.device("cpu"))
    found = estimate(sketch)
    Y = omega.T @ M

    def dense(tau: float) -> torch.Tensor:
        S = Y - tau * omega.T
        return tau * torch.eye(30, dtype=torch.float64) + S.T @ torch.linalg.pinv(S @ omega, hermitian=True) @ S

    L = torch.linalg.cholesky(omega.T @ omega)
    ritz = torch.linalg.eigvalsh(torch.linalg.solve(L, torch.linalg.solve(L, (Y @ omega).T).T))
    low, high = 0.0, float(ritz.min())
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if float(dense(middle).trace()) > float(M.trace()) else (middle, high)
    assert float((found - dense(low)).norm()) < 1e-6 * float(M.norm())


def test_batches_files_and_merging_leave_the_estimate_as_it_is():
    """Also after the basis was asked for between two batches, when rows are restored with their tail."""
    M = moment(torch.arange(1, 61).double() ** -0.7, 6)
    rows = rows_of(M)
    whole = FlatTailSketch(16).bind(60, torch.float64)
    whole.observe(rows)
    expected = estimate(whole)
    parts = FlatTailSketch(16).bind(60, torch.float64)
    for part in rows.split(7):
        parts.observe(part)
        parts.spectrum()
    assert float((estimate(parts) - expected).norm()) < 1e-9
    first, second = (FlatTailSketch(16).bind(60, torch.float64) for _ in range(2))
    first.observe(rows[:20])
    second.observe(rows[20:])
    first.spectrum()
    second.spectrum()
    first.merge(second)
    assert float((estimate(first) - expected).norm()) < 1e-9
    loaded = FlatTailSketch(16).bind(60, torch.float64)
    loaded.load_state_dict(whole.state_dict())
    loaded.observe(rows)
    whole.observe(rows)
    assert torch.equal(loaded.spectrum()[0], whole.spectrum()[0])
    assert float((estimate(loaded) - 2 * expected).norm()) < 1e-8


def test_large_and_small_rows_are_scaled():
    M = moment(torch.arange(1, 41).double() ** -0.7, 7)
    for factor in (1e-18, 1e18):
        sketch = FlatTailSketch(10).bind(40)
        sketch.observe((rows_of(M) * factor).float())
        assert torch.isfinite(sketch.spectrum()[0]).all()
        assert float((estimate(sketch) / factor**2 - sketched(FlatTailSketch, 10, M)).norm()) < 1e-3 * float(M.norm())


def test_every_coordinate_is_seen():
    """Entries of a coordinate that coincide may cancel; apart they cannot."""
    for seed in range(50):
        sketch = FlatTailSketch(4, seed=seed).bind(30)
        assert bool(sketch.omega.dense(torch.float32, torch.device("cpu")).any(1).all())


def test_no_tail_where_everything_is_explained():
    assert flat_tail([3.0, 1.0], [9.0, 1.0], 4.0, 10) == 0.0
    assert flat_tail([], [], 0.0, 10) == 0.0
