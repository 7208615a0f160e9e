"""Noise-aware spectra: nearer to the truth than what was released, and empty where there is only noise."""

import math

import pytest
import torch

import sketchogd as so
from sketchogd.memory.estimates import MomentEstimate
from sketchogd.privacy.mechanism import histogram, noise, spectra
from sketchogd.privacy.mechanism.sums import Noisy

pytest.importorskip("dp_accounting")
from sketchogd.privacy.rows import units


def spiked(d, values, seed=0):
    """A second moment with these eigenvalues and zeros, and its eigenvectors."""
    generator = torch.Generator().manual_seed(seed)
    V = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))[0][: len(values)]
    return V.T @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ V, V


def dense(estimate):
    return estimate.product(None)


@pytest.mark.parametrize("spread", [True, False])
def test_a_shrunk_moment_is_nearer_than_the_released_one(spread):
    d, sigma = 200, 3.0
    M, V = spiked(d, [400.0, 200.0, 90.0])
    M = M + 310.0 / d * torch.eye(d)  # and energy without a direction
    released = Noisy(M + noise.symmetric(d, sigma), sigma)
    found = spectra.of_moment(released, 1000, spread)
    raw, shrunk = (float(torch.linalg.matrix_norm(each - M)) for each in (released.value, dense(found)))
    assert shrunk < (0.6 if spread else 0.75) * raw
    assert len(found.values) == 3  # how many directions there are follows from the noise
    assert float(found.values[0]) == pytest.approx(400, rel=0.1)
    assert float((found.vectors[0] @ V[0]).abs()) > 0.95
    assert found.energy == pytest.approx(1000 if spread else float(found.values.sum()))
    assert torch.linalg.eigvalsh(dense(found)).min() > -1e-9


def test_the_shrinkage_is_the_best_of_all_multiples():
    """No other common factor of the eigenvalues found is nearer by more than a little: √(λ² − 4s²) is the optimum."""
    d, sigma, errors = 300, 2.0, {}
    for seed in range(6):
        M, _ = spiked(d, [120.0], seed)
        found = spectra.of_moment(Noisy(M + noise.symmetric(d, sigma), sigma), 10_000, False)
        for factor in (0.8, 1.0, 1.25):
            error = float(torch.linalg.matrix_norm(dense(found.scaled(factor)) - M)) ** 2
            errors[factor] = errors.get(factor, 0.0) + error
    assert errors[1.0] < errors[0.8]
    assert errors[1.0] < errors[1.25]


def test_of_noise_alone_no_direction_is_seen():
    for seed in range(20):
        d = 60 + seed
        assert not len(spectra.of_moment(Noisy(noise.symmetric(d, 1.0), 1.0), 500, False).values), d
        assert not spectra.of_rows(Noisy(noise.normal((12, 10 * d), 1.0), 1.0), 500).seen


def test_a_released_product_gives_the_moment():
    d, k, sigma = 3000, 60, 1.0
    sketch = so.ProductSketch(k, seed=3).bind(d, torch.float64)
    generator = torch.Generator().manual_seed(0)
    V = torch.linalg.qr(torch.randn(d, 2, generator=generator, dtype=torch.float64))[0].T
    M = V.T @ torch.diag(torch.tensor([900.0, 500.0], dtype=torch.float64)) @ V
    Y = sketch.omega.apply(M).T
    found = spectra.of_product(Noisy(Y + noise.normal((k, d), sigma), sigma), 1400, sketch.omega.apply, 1.0)
    assert len(found.values) == 2
    torch.testing.assert_close(found.values, torch.tensor([900.0, 500.0], dtype=torch.float64), rtol=0.15, atol=0.0)
    overlap = torch.linalg.svdvals(found.vectors @ V.T)
    assert float(overlap.min()) > 0.9
    told = so.ProductSketch(k, seed=3).bind(d, torch.float64)
    found.add_to(told)
    values, rows = told.spectrum()
    torch.testing.assert_close(values, found.values, rtol=1e-6, atol=1e-6)
    assert float(torch.linalg.svdvals(rows @ found.vectors.T).min()) > 1 - 1e-6


def test_sketches_are_told_as_if_they_had_observed_rows():
    estimate = MomentEstimate(
        torch.tensor([9.0, 4.0], dtype=torch.float64), torch.eye(6, dtype=torch.float64)[:2], 0.5, 30
    )
    rows = torch.diag(torch.tensor([9.0, 4.0, 0.5, 0.5, 0.5, 0.5]).sqrt())
    for make in (so.SecondMoment, lambda: so.ProductSketch(4)):
        told, observed = make().bind(6), make().bind(6)
        estimate.add_to(told)
        observed.observe(rows)
        torch.testing.assert_close(told.summand(), observed.summand() * 4.0 ** (observed.exponent - told.exponent))
        assert told.energy == pytest.approx(observed.energy)
    with pytest.raises(TypeError, match="needs rows"):
        estimate.add_to(so.RandomRows(3).bind(6))


def test_diagonals_keep_their_sum():
    values = torch.zeros(5000, dtype=torch.float64)
    values[:10] = 100.0
    found = spectra.of_diagonal(Noisy(values + noise.normal((5000,), 5.0), 5.0), 2000)
    assert float(found.sum()) == pytest.approx(2000)
    assert float(found[:10].mean()) == pytest.approx(100, abs=8)
    assert bool((found > 0).all())


def test_a_histogram_knows_the_scale_of_anything():
    for scale in (1e-9, 1.0, 3e7):
        numbers = scale * (1 + 2 * torch.rand(3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
        counts = histogram.counts_of(numbers, torch.ones(3000))
        assert float(torch.linalg.vector_norm(histogram.counts_of(numbers[:1], torch.ones(1)))) == 1.0
        mean, square = histogram.moments(counts + noise.normal(counts.shape, 20.0), 20.0)
        assert mean == pytest.approx(float(numbers.mean()), rel=0.1)
        assert square == pytest.approx(float(numbers.square().mean()), rel=0.2)
    signed = torch.cat([-5.0 * torch.ones(900), 7.0 * torch.ones(2100)])
    mean, square = histogram.moments(histogram.counts_of(signed, torch.ones(3000), signed=True), 1.0)
    assert mean == pytest.approx(3.4, rel=0.25)
    assert histogram.moments(noise.normal((histogram.BINS,), 5.0), 5.0) == (0.0, 0.0)
    assert math.isclose(float(histogram.counts_of(torch.zeros(4), torch.ones(4)).sum()), 0.0)
    with pytest.raises(ValueError, match="not negative"):
        histogram.counts_of(torch.tensor([-1.0]), torch.ones(1))


def test_rows_of_any_size_become_units():
    rows, squares = units(torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-20, 0.0], [0.0, 1e18]]))
    torch.testing.assert_close(rows.norm(dim=1), torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64))
    assert float(squares[0]) == 25.0


def test_a_private_memory_of_many_examples_is_that_without_a_guarantee():
    """With all examples of one size and hardly any noise the projector's eigenvalues are those of the plain memory."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 10), torch.nn.Tanh(), torch.nn.Linear(10, 4))
    inputs, targets = torch.randn(3000, 12) * torch.linspace(3, 0.2, 12), torch.zeros(3000).long()
    found = {}
    for name, privacy in (("plain", None), ("private", so.Privacy(300.0, 1e-5))):
        protection = so.protect(
            model, torch.optim.SGD(model.parameters(), 0.1), memory=so.LayerMemory(12), privacy=privacy
        )
        protection.remember([(inputs, targets)])
        found[name] = protection.memory
        protection.detach()
    plain, private = found["plain"], found["private"]
    assert private.examples == pytest.approx(3000, rel=0.01)
    assert private.weight == pytest.approx(plain.weight, rel=0.15)
    for name, factors in plain.factors.items():
        assert private.factors[name].trace == pytest.approx(factors.trace, rel=0.15)
        for (_, mine), (_, theirs) in zip(factors.sketches(), private.factors[name].sketches(), strict=True):
            assert float(theirs.spectrum()[0][0] / mine.spectrum()[0][0]) == pytest.approx(1.0, rel=0.35)
            values, vectors = mine.spectrum()  # the first direction found must be one of the largest
            energy = float((values * (vectors.double() @ theirs.spectrum()[1][0].double()).square()).sum())
            assert energy > 0.6 * float(values[0])


def test_how_many_examples_are_needed_shows_in_what_is_found():
    """With half as many again as advised most of a direction is right; with a tenth nothing is seen."""
    torch.manual_seed(0)
    model = torch.nn.Linear(60, 1, bias=False)
    privacy = so.Privacy(2.0, 1e-5)
    protection = so.protect(model, torch.optim.SGD(model.parameters(), 0.1), memory=so.LayerMemory(60), privacy=privacy)
    needed = so.privacy.examples_needed(protection.memory, privacy, share=0.5)[".inputs"]
    protection.detach()
    overlaps = {1.5: [], 0.1: []}  # cos² = 1 − 1/(2 · 1.5²) = 0.78, and nothing
    for share, overlap in overlaps.items():
        for _ in range(5):
            n = int(needed * share)
            x = torch.randn(n, 60) / 60**0.5
            x[: n // 2] = torch.eye(60)[0] * torch.randn(n // 2, 1)
            x = x / x.norm(dim=1, keepdim=True)
            M = (x.T @ x).double()
            sums = so.privacy.account.Account(privacy).begin(protection.memory).sums
            sigma = privacy.noise / sums.shares()[".inputs"] ** 0.5
            found = spectra.of_moment(Noisy(M + noise.symmetric(60, sigma), sigma), n, False)
            overlap.append(float(found.vectors[0, 0] ** 2) if len(found.values) else 0.0)
    assert 0.5 < sum(overlaps[1.5]) / 5 < 0.95
    assert sum(overlaps[0.1]) / 5 < 0.1
    with pytest.raises(ValueError, match="share"):
        so.privacy.examples_needed(protection.memory, privacy, share=0.0)
