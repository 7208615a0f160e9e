"""Noise: its distribution and its scale, in every sum; and that it is added once, and never the same."""

import math

import pytest
import torch

import sketchogd as so
from sketchogd.privacy.account import Account
from sketchogd.privacy.mechanism import noise

pytest.importorskip("dp_accounting")
from sketchogd.privacy.mechanism.sums import Sum, Sums


def test_numbers_are_normal_and_independent():
    """Four moments and the correlation of neighbours, of 400,000 numbers, to within five standard errors."""
    n = 400_000
    x = noise.normal((n,))
    assert x.dtype == torch.float64
    for power, mean, variance in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        assert abs(float((x**power).mean()) - mean) < 5 * math.sqrt(variance / n)
    assert abs(float((x[1:] * x[:-1]).mean())) < 5 / math.sqrt(n)
    # The distribution function at a few points, against that of the normal distribution.
    for point in (-3.0, -1.0, 0.0, 0.5, 2.0):
        share = 0.5 * (1 + math.erf(point / math.sqrt(2)))
        assert abs(float((x < point).double().mean()) - share) < 5 * math.sqrt(share * (1 - share) / n)


def test_numbers_in_blocks_and_odd_shapes(monkeypatch):
    monkeypatch.setattr(noise, "_BLOCK", 7)
    x = noise.normal((101, 3), 2.0)
    assert x.shape == (101, 3)
    assert len(x.unique()) == 303
    assert 1.6 < float(x.std()) < 2.4


def test_symmetric_noise_has_the_stated_scale_in_the_coordinates_of_the_frobenius_norm():
    x = noise.symmetric(300, 2.0)
    torch.testing.assert_close(x, x.T)
    assert abs(float(x.diagonal().square().mean()) - 4.0) < 5 * 4 * math.sqrt(2 / 300)
    off = x[torch.triu_indices(300, 300, 1).unbind()]
    assert abs(float(off.square().mean()) - 2.0) < 5 * 2 * math.sqrt(2 / len(off))


def test_nothing_seeds_the_noise():
    torch.manual_seed(0)
    first = noise.normal((100,))
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    second = noise.normal((100,))
    assert not torch.equal(first, second)
    assert torch.equal(before, torch.random.get_rng_state())  # and it takes nothing from the user's generator


def some_sums(n=40):
    def zeros(*shape):
        return torch.zeros(*shape, dtype=torch.float64)

    large = [Sum("a", zeros(n, n), True, n), Sum("b", zeros(6, 3 * n), False, 3 * n)]
    return Sums([*large, Sum("c", zeros(50)), Sum("d", zeros(50))])


def test_sums_have_noise_that_is_one_mechanism_of_the_stated_multiplier():
    """Over 60 releases: the variance of each sum's noise times its share is z², so that all sums together have z."""
    z, squares, counts = 1.7, {}, {}
    for _ in range(60):
        for name, found in some_sums().released(z).items():
            scale = 0.5 if name == "a" else 1.0
            off = found.value[torch.triu_indices(40, 40, 1).unbind()] if name == "a" else found.value.flatten()
            squares[name] = squares.get(name, 0.0) + float(off.square().sum()) / scale
            counts[name] = counts.get(name, 0) + len(off)
            assert found.sigma == pytest.approx(z / math.sqrt(some_sums().shares()[name]))
    for name, share in some_sums().shares().items():
        variance = squares[name] / counts[name]
        assert variance * share == pytest.approx(z**2, rel=5 * math.sqrt(2 / counts[name]))
    assert sum(some_sums().shares().values()) == pytest.approx(1.0)


def test_sums_are_released_once():
    sums = some_sums()
    sums.released(1.0)
    with pytest.raises(so.ProtectionError, match="already"):
        sums.released(1.0)
    assert all(each.value.numel() == 0 for each in sums.sums)  # what had no noise is gone


@pytest.mark.parametrize("memory", [lambda: so.LayerMemory(4, rest=4), lambda: so.ProductSketch(4)])
@pytest.mark.filterwarnings("ignore:.*noise hides")
def test_what_remember_adds_is_noise_of_the_multiplier_that_the_accountant_asked_for(memory, monkeypatch):
    """The sums that a protection releases, compared with the same sums without noise, over 40 tasks."""
    from sketchogd.privacy import layers, rows
    from sketchogd.privacy.mechanism import sums

    for module in (layers, rows):  # signs of logits follow from the seed here, so that sums can be compared
        monkeypatch.setattr(module, "uniform", lambda n: torch.full((n,), 0.25, dtype=torch.float64))
    privacy = so.Privacy(2.0, 1e-6, disjoint=True)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 3))
    protection = so.protect(model, torch.optim.SGD(model.parameters(), 0.1), memory=memory(), privacy=privacy)
    inputs, targets = torch.randn(8, 6), torch.zeros(8).long()
    release = Account(privacy).begin(protection.memory)
    release.observe(inputs, targets, None, 8)
    plain = {each.name: each.value.clone() for each in release.sums.sums}
    kinds = {each.name: each.symmetric for each in release.sums.sums}
    noises, shares = {}, release.sums.shares()
    original = sums.Sums.released

    def released(self, z):
        found = original(self, z)
        for name, noisy in found.items():
            noises.setdefault(name, []).append((noisy.value - plain[name]).flatten())
        return found

    monkeypatch.setattr(sums.Sums, "released", released)
    for _ in range(40):
        protection.remember([(inputs, targets)])
    z = privacy.noise
    total = 0.0
    for name, drawn in noises.items():
        n, symmetric = len(drawn[0]), kinds[name]
        side = math.isqrt(n)
        energy = torch.cat(drawn).square().mean()  # of a symmetric matrix (d, d): (d + d(d−1)/2) σ² in d² numbers
        sigma2 = float(energy) / ((side + 1) / (2 * side) if symmetric else 1.0)
        independent = 40 * (side * (side + 1) // 2 if symmetric else n)
        assert sigma2 * shares[name] == pytest.approx(z**2, rel=6 * math.sqrt(2 / independent)), name
        total += shares[name]
    assert total == pytest.approx(1.0)
