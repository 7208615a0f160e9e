"""Attacks: closed forms for their scores, success where a memory leaks, the bound where there is a guarantee."""

import math

import pytest
import torch
from torch import nn

import sketchogd as so
from sketchogd.privacy.audit import allowed, allowed_area, membership, reconstruction

pytest.importorskip("dp_accounting")
from sketchogd.privacy.audit.scores import Attack, likelihood_ratios


def test_areas_rates_and_advantages():
    """Two normal distributions one apart: the area is Φ(1/√2), the best difference of rates 2Φ(½) − 1."""
    generator = torch.Generator().manual_seed(0)
    members, others = torch.randn(40_000, generator=generator) + 1, torch.randn(40_000, generator=generator)
    found = Attack.of("shift", members, others)
    phi = lambda t: 0.5 * math.erfc(-t / math.sqrt(2))  # noqa: E731
    assert found.area == pytest.approx(phi(1 / math.sqrt(2)), abs=4 * found.error)
    assert found.advantage == pytest.approx(2 * phi(0.5) - 1, abs=0.015)
    assert found.rates[0.01] == pytest.approx(phi(1 - 2.326), abs=0.015)
    ties = Attack.of("constant", torch.zeros(50), torch.zeros(70))
    assert (ties.area, ties.advantage) == (0.5, 0.0)
    assert ties.error == pytest.approx(math.sqrt(121 / (12 * 50 * 70)))


def test_likelihood_ratios_are_not_fitted_to_those_they_judge():
    generator = torch.Generator().manual_seed(1)
    same = torch.randn(60, 12, generator=generator), torch.randn(60, 12, generator=generator)
    found = Attack.of("noise", *likelihood_ratios(*same))
    assert abs(found.area - 0.5) < 4 * found.error
    wide = torch.randn(2000, 3, generator=generator), 2 * torch.randn(2000, 3, generator=generator)
    assert Attack.of("wide", *likelihood_ratios(*wide)).area > 0.75  # equal means: a ratio of densities sees it


def test_what_a_guarantee_allows():
    """The curve of the Gaussian mechanism lies below the bound of its (ε, δ), and touches it for the best δ."""
    for epsilon in (0.5, 2.0):
        assert allowed(epsilon, 0.0, 0.01) == pytest.approx(math.exp(epsilon) * 0.01)
        assert allowed(epsilon, 0.0, 1.0) == 1.0
    assert allowed_area(0.0, 0.0) == 0.5
    normal = torch.distributions.Normal(0.0, 1.0)
    z = so.Privacy(1.0, 1e-5).noise
    for rate in (0.001, 0.01, 0.3, 0.9):
        best = float(normal.cdf(normal.icdf(torch.tensor(rate)) + 1 / z))
        assert best <= allowed(1.0, 1e-5, rate)


class Net(nn.Sequential):
    def __init__(self, d=30):
        super().__init__(nn.Linear(d, 20), nn.ReLU(), nn.Linear(20, 3))


def examples(n, seed, d=30):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def remembered(memory, privacy=None, n=120, seed=0):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    protection = so.protect(model, optimizer, memory=memory, privacy=privacy)
    protection.remember([examples(n, seed)])
    return protection


@pytest.mark.parametrize("memory", [lambda: so.LayerMemory(60), lambda: so.ProductSketch(60), lambda: so.AllRows()])
def test_members_of_a_memory_without_a_guarantee_are_found_out(memory):
    found = so.privacy.audit(remembered(memory()), [examples(120, 0)], [examples(120, 1)])
    by_name = {attack.name: attack for attack in found.attacks}
    assert by_name["memory"].area > 0.5 + 5 * by_name["memory"].error
    assert abs(by_name["weights alone"].area - 0.5) < 4 * by_name["weights alone"].error  # which saw nobody
    assert found.bound() is None
    assert "weights alone" in str(found)


@pytest.mark.filterwarnings("ignore:.*noise hides")
@pytest.mark.parametrize(
    "memory", [lambda: so.LayerMemory(60), lambda: so.ProductSketch(60), lambda: so.GradientSketch(60)]
)
def test_attacks_on_a_private_memory_stay_below_the_bound(memory):
    privacy = so.Privacy(0.5, 1e-5)
    found = so.privacy.audit(remembered(memory(), privacy, n=600), [examples(600, 0)], [examples(600, 1)])
    bound = found.bound()
    for attack in found.attacks:
        assert attack.area <= bound["area"] + 4 * attack.error
        for rate, tpr in attack.rates.items():
            most = bound[f"tpr at {rate:g}"]
            assert tpr <= most + 4 * math.sqrt(most * (1 - most) / 600) + 4 * math.sqrt(rate / 600)
    assert bound["area"] == pytest.approx(allowed_area(found.guarantee.epsilon, 1e-5))


def test_leverage_of_a_member_is_that_without_it_over_one_more():
    """Sherman and Morrison: for M of the others and v, vᵀ (M + v vᵀ)⁻¹ v = h / (1 + h) with h = vᵀ M⁻¹ v."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(20, 6, generator=generator, dtype=torch.float64)

    def leverage(rows, v):
        values, vectors = torch.linalg.eigh(rows.T @ rows)
        return membership.of_spectrum(v[None], values, vectors.T, float(values.sum()))[0, 2].exp()

    h = leverage(rows[1:], rows[0])
    assert float(leverage(rows, rows[0])) == pytest.approx(float(h / (1 + h)), rel=0.02)


def test_inputs_are_read_off_a_span_of_gradients():
    """Five gradients of rank one, mixed at random: all five right factors are found."""
    generator = torch.Generator().manual_seed(0)
    u, v, mix = (torch.randn(*shape, generator=generator).double() for shape in ((5, 8, 1), (5, 1, 40), (5, 5)))
    found = reconstruction.rank_one(torch.einsum("kr,row->kow", mix, u * v), 40)
    judged = reconstruction.judged("span", found, v[:, 0], torch.randn(5, 40).double())
    assert judged.share > 0.8
    assert len(judged.nearest[judged.members > 0.99].unique()) >= 4
    nothing = reconstruction.rank_one(torch.randn(5, 8, 40, generator=generator).double(), 10)
    assert float(reconstruction.judged("noise", nothing, v[:, 0], v[:, 0]).members.max()) < 0.9


def test_a_gradient_sketch_of_few_examples_gives_their_inputs_away_and_a_private_one_does_not(tmp_path):
    few = remembered(so.GradientSketch(16), n=10)
    found = so.privacy.audit(few, [examples(10, 0)], [examples(10, 1)])
    of_memory, of_weights = found.reconstructions
    assert of_memory.share > 0.5
    assert of_weights.share < 0.2
    with pytest.warns(so.ProtectionWarning, match="noise hides"):
        private = remembered(so.GradientSketch(16), so.Privacy(1.0, 1e-5), n=10)
    found = so.privacy.audit(private, [examples(10, 0)], [examples(10, 1)])
    assert all(each.share < 0.2 for each in found.reconstructions)


def test_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 2))
    protection = so.protect(model, torch.optim.SGD(model.parameters(), 0.1), memory=so.LayerMemory(40))
    images = torch.rand(6, 1, 6, 6), torch.zeros(6).long()
    protection.remember([images])
    found = so.privacy.audit(protection, [images], [(torch.rand(6, 1, 6, 6), torch.zeros(6).long())])
    found.figure(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000
    with pytest.raises(ValueError, match="no pictures"):
        so.privacy.audit(remembered(so.LayerMemory(8)), [examples(9, 0)], [examples(9, 1)]).figure(tmp_path / "b.png")


def test_an_audit_changes_nothing():
    protection = remembered(so.LayerMemory(16))
    before = {name: t.clone() for name, t in protection.state_dict()["tensors"].items()}
    so.privacy.audit(protection, [examples(40, 0)], [examples(40, 1)])
    after = protection.state_dict()["tensors"]
    assert all(torch.equal(before[name], after[name]) for name in before)
