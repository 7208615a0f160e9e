"""The accountant's figures are the library's own, budgets end, files carry guarantees, merging composes them."""

import json
import math

import pytest
import torch

import sketchogd as so
from sketchogd.privacy.guarantee import Guarantee
from sketchogd.privacy.mechanism import accounting

dp_accounting = pytest.importorskip("dp_accounting")


def analytic_delta(epsilon, z):
    """δ of one Gaussian mechanism of sensitivity 1 (Balle, Wang 2018, theorem 8)."""
    phi = lambda t: 0.5 * math.erfc(-t / math.sqrt(2))  # noqa: E731
    return phi(1 / (2 * z) - epsilon * z) - math.exp(epsilon) * phi(-1 / (2 * z) - epsilon * z)


@pytest.mark.parametrize(("epsilon", "delta", "releases"), [(1.0, 1e-5, 1), (3.0, 1e-5, 5), (8.0, 1e-6, 10)])
def test_the_noise_multiplier_is_the_smallest_that_will_do(epsilon, delta, releases):
    """n Gaussian mechanisms of multiplier z are one of z / √n, whose δ has a closed form."""
    z = so.Privacy(epsilon, delta, releases=releases).noise
    assert analytic_delta(epsilon, z / math.sqrt(releases)) <= delta * (1 + 1e-6)
    assert analytic_delta(epsilon, 0.995 * z / math.sqrt(releases)) > delta
    assert z == pytest.approx(dp_accounting.get_sigma_gaussian(epsilon, delta) * math.sqrt(releases), rel=1e-3)


def test_epsilon_is_that_of_the_library():
    for noise in ([1.0], [2.0, 2.0, 2.0], [0.8, 5.0, 1.7]):
        both = math.sqrt(1 / sum(1 / z**2 for z in noise))
        assert accounting.epsilon_of(noise, 1e-5) == pytest.approx(
            dp_accounting.get_epsilon_gaussian(both, 1e-5), rel=1e-4
        )
        replaced = dp_accounting.get_epsilon_gaussian(both / 2, 1e-5)  # sums of data sets with one replaced differ by 2
        assert accounting.epsilon_of(noise, 1e-5, replace=True) == pytest.approx(replaced, rel=1e-3)
    assert accounting.epsilon_of([], 1e-5) == 0.0


@pytest.mark.filterwarnings("ignore")
def test_opacus_accountant_agrees():
    PRVAccountant = pytest.importorskip("opacus.accountants").PRVAccountant
    accountant = PRVAccountant()
    accountant.history = [(3.0, 1.0, 4)]
    assert accounting.epsilon_of([3.0] * 4, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=0.02)


def protected(privacy, memory=None, seed=0):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return so.protect(model, optimizer, memory=memory or so.LayerMemory(4), privacy=privacy)


def batch(n=1500, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def test_releases_are_counted_and_the_budget_ends():
    protection = protected(so.Privacy(3.0, 1e-5, releases=2))
    assert protection.privacy.epsilon == 0.0
    protection.remember([batch()])
    half = protection.privacy.epsilon
    protection.remember([batch()])
    assert half < protection.privacy.epsilon <= 3.0
    assert protection.privacy.epsilon == pytest.approx(3.0, rel=1e-2)
    before = {name: t.clone() for name, t in protection.state_dict()["tensors"].items()}
    with pytest.raises(so.ProtectionError, match="budget is spent"):
        protection.remember([batch()])
    after = protection.state_dict()["tensors"]
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_disjoint_tasks_have_all_of_epsilon_each():
    protection = protected(so.Privacy(3.0, 1e-5, disjoint=True))
    for seed in range(3):
        protection.remember([batch(seed=seed)])
    assert protection.privacy.releases == 3
    assert 2.97 < protection.privacy.epsilon <= 3.0
    assert "not" not in str(protection.privacy)
    assert "weights" in protection.privacy.not_covered


def test_a_refused_batch_spends_nothing_and_leaves_no_trace():
    protection = protected(so.Privacy(3.0, 1e-5))
    bad = torch.full((4, 6), float("nan"))
    with pytest.raises(so.NonFiniteError):
        protection.remember([batch(), (bad, torch.zeros(4).long())])
    assert protection.privacy.releases == 0
    assert protection.memory.examples == 0
    assert all(not t.any() for t in (item.tensor for item in protection.memory.held()))
    protection.remember([batch()])


def test_observe_is_refused_and_no_probe_sees_the_data():
    protection = protected(so.Privacy(3.0, 1e-5))
    with pytest.raises(so.ProtectionError, match="remember"):
        protection.observe(*batch())
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(60, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    protection = so.protect(model, optimizer, budget="60kB", privacy=so.Privacy(3.0, 1e-5))
    rank = protection.memory.rank
    with pytest.warns(so.ProtectionWarning, match="noise hides"):  # of twenty examples there is nothing to see
        protection.remember([(torch.randn(20, 60), torch.zeros(20).long())])
    assert protection.memory.rank == rank  # ranks that are divided by the spectra of examples would tell of them


@pytest.mark.parametrize(
    "memory", [lambda: so.RandomRows(5), lambda: so.IncrementalPCA(4), lambda: so.LayerMemory(4, curvature="positions")]
)
def test_memories_that_cannot_have_a_guarantee_are_refused(memory):
    with pytest.raises(ValueError, match="privacy="):
        protected(so.Privacy(3.0, 1e-5), memory())


def test_settings_are_checked():
    for wrong in ({"epsilon": 0.0}, {"delta": 0.0}, {"delta": 1.0}, {"releases": 0}, {"disjoint": True, "releases": 2}):
        with pytest.raises(ValueError, match=r"epsilon|delta|releases"):
            so.Privacy(**{"epsilon": 1.0, "delta": 1e-5, **wrong})
    with pytest.raises(ValueError, match="positive"):
        so.privacy.User(0)


def test_files_carry_the_guarantee_and_go_on_spending_it(tmp_path):
    protection = protected(so.Privacy(3.0, 1e-5, releases=2))
    protection.remember([batch()])
    protection.save(tmp_path / "a.safetensors")
    again = protected(so.Privacy(3.0, 1e-5, releases=2))
    again.load(tmp_path / "a.safetensors")
    assert again.privacy == protection.privacy
    again.remember([batch()])
    with pytest.raises(so.ProtectionError, match="spent"):
        again.remember([batch()])
    plain = protected(None)
    plain.load(tmp_path / "a.safetensors")
    assert plain.privacy == protection.privacy
    with pytest.warns(so.ProtectionWarning, match="ends here"):
        plain.remember([batch()])
    assert plain.privacy is None
    plain.save(tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match="no privacy guarantee"):
        protected(so.Privacy(3.0, 1e-5)).load(tmp_path / "b.safetensors")


def test_merging_composes(tmp_path):
    first, second = (protected(so.Privacy(3.0, 1e-5, disjoint=True)) for _ in range(2))
    for protection, seed in ((first, 0), (second, 1)):
        protection.remember([batch(seed=seed)])
        protection.remember([batch(seed=seed + 2)])
    second.save(tmp_path / "b.safetensors")
    z = first.privacy.groups[0][0]
    first.merge(tmp_path / "b.safetensors")
    assert first.privacy.groups == ((z, z), (z, z))
    assert first.privacy.epsilon == pytest.approx(accounting.epsilon_of([z, z], 1e-5))
    assert first.privacy.epsilon > 4.0
    plain = protected(None)
    plain.remember([batch()])
    with pytest.raises(ValueError, match="no privacy guarantee"):
        first.merge(plain)
    with pytest.warns(so.ProtectionWarning, match="together they have none"):
        plain.merge(first)
    assert plain.privacy is None
    assert plain.privacy is None
    users = protected(so.Privacy(3.0, 1e-5, unit=so.privacy.User(2)))
    with pytest.raises(ValueError, match="other units"):
        users.merge(first)


def test_the_command_line_shows_and_merges_guarantees(tmp_path):
    from typer.testing import CliRunner

    from sketchogd.cli import app

    paths = []
    for i in range(2):
        protection = protected(so.Privacy(3.0, 1e-5))
        protection.remember([batch(seed=i)])
        paths.append(str(tmp_path / f"{i}.safetensors"))
        protection.save(paths[-1])
    run = CliRunner()
    shown = run.invoke(app, ["inspect", paths[0]])
    assert shown.exit_code == 0, shown.output
    assert "ε = 3" in shown.output
    assert "not covered" in " ".join(shown.output.split())
    assert run.invoke(app, ["merge", *paths, "-o", str(tmp_path / "both.safetensors")]).exit_code == 0
    meta = json.loads(run.invoke(app, ["inspect", str(tmp_path / "both.safetensors"), "--json"]).output)
    assert len(meta["privacy"]["noise"]) == 2
    assert meta["privacy"]["epsilon"] == pytest.approx(Guarantee.of(meta).epsilon)
    plain = protected(None)
    plain.remember([batch()])
    plain.save(tmp_path / "plain.safetensors")
    failed = run.invoke(app, ["merge", paths[0], str(tmp_path / "plain.safetensors"), "-o", str(tmp_path / "c")])
    assert failed.exit_code != 0
    assert "guarantee" in failed.output


def test_a_guarantee_that_is_damaged_is_refused(tmp_path):
    protection = protected(so.Privacy(3.0, 1e-5))
    protection.remember([batch()])
    state = protection.state_dict()
    for wrong in ({"noise": [[]]}, {"noise": [[-1.0]]}, {"delta": 2.0}, {"unit": "nobody"}):
        meta = {**state["meta"], "privacy": {**state["meta"]["privacy"], **wrong}}
        with pytest.raises(so.StorageError, match="privacy"):
            protected(None).load_state_dict({**state, "meta": meta})


def test_users_come_with_the_batches():
    protection = protected(so.Privacy(5.0, 1e-5, unit=so.privacy.User(examples=4)))
    inputs, targets = batch(1600)
    protection.remember([(inputs, targets, torch.arange(1600) // 4)])
    assert "user" in str(protection.privacy)
    assert 0 < protection.memory.examples < 4000
    with pytest.raises(TypeError, match="says of no user"):
        protected(so.Privacy(5.0, 1e-5, unit=so.privacy.User(examples=4))).remember([batch()])


def test_without_the_accountant_it_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r"sketchogd\[privacy\]"):
        accounting.library()
