"""Gradient memories that pull weights back to an anchor, whole and in blocks, against closed forms in float64."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import sketchogd as so
from sketchogd.projector import BlocksProjector, PullingBasis
from tests import models
from tests.reference import projected


def total(output, target):
    """The one output of an example."""
    return output.sum()


def problem(seed=0):
    generator = torch.Generator().manual_seed(seed)
    old, new = (torch.randn(n, 6, dtype=torch.float64, generator=generator) for n in (40, 30))
    return old, new, torch.randn(30, 1, dtype=torch.float64, generator=generator)


def start(sketch=None, every=1, lr=0.05, **options):
    torch.manual_seed(0)
    model = nn.Linear(6, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    memory = so.GradientMemory(sketch or so.AllRows(), strength=2.0, **options)
    return model, optimizer, so.protect(model, optimizer, memory=memory, output=total, every=every)


def steps(model, optimizer, count):
    _, new, wanted = problem()
    for _ in range(count):
        optimizer.zero_grad()
        mse_loss(model(new), wanted).backward()
        optimizer.step()


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def with_ones(x):
    return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)


@pytest.mark.parametrize("elsewhere", [0.0, 0.4])
def test_a_pull_is_one_implicit_step(elsewhere):
    """v − A v = (I + s M)⁻¹ v, M having the eigenvalues `pull` in the basis and `elsewhere` outside of it."""
    q, _ = torch.linalg.qr(torch.randn(9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    B, pull = q[:4], torch.linspace(3.0, 0.5, 4, dtype=torch.float64)
    projector = PullingBasis(B, pull, elsewhere)
    assert not projector.hard
    v = torch.randn(9, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    M = B.T @ torch.diag(pull - elsewhere) @ B + elsewhere * torch.eye(9, dtype=torch.float64)
    expected = torch.linalg.solve(torch.eye(9, dtype=torch.float64) + 1.9 * M, v)
    torch.testing.assert_close(projected(projector, v.clone(), 1.9), expected)
    twice = BlocksProjector([(slice(0, 9), projector), (slice(9, 18), PullingBasis(B, 2 * pull))])
    found = projected(twice, torch.cat([v, v]), 1.9)
    torch.testing.assert_close(found[:9], expected)
    M = B.T @ torch.diag(2 * pull) @ B
    torch.testing.assert_close(found[9:], torch.linalg.solve(torch.eye(9, dtype=torch.float64) + 1.9 * M, v))
    assert not twice.hard


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize(("every", "lr", "count"), [(1, 0.02, 3000), (10, 0.003, 12000)])
def test_training_ends_at_the_balance_of_both_losses(blocks, every, lr, count):
    """A linear model: the minimum of new loss + strength/2 · mean square, where blocks are judged one by one."""
    old, new, wanted = problem()
    model, optimizer, protection = start(every=every, lr=lr, blocks=blocks)
    before = flat(model)
    protection.remember([(old, None)])
    steps(model, optimizer, count)
    protection.settle()
    X, Z = with_ones(new), with_ones(old)
    H_new, H_old = X.T @ X * 2 / 30, torch.zeros(7, 7, dtype=torch.float64)
    for j in range(blocks):
        place = slice(7 * j // blocks, 7 * (j + 1) // blocks)
        H_old[place, place] = 2.0 * Z[:, place].T @ Z[:, place] / len(old)
    right = X.T @ wanted[:, 0] * 2 / 30 + H_old @ before
    expected = torch.linalg.solve(H_new + H_old, right)
    torch.testing.assert_close(flat(model), expected, rtol=0, atol=0.02 * float((expected - before).abs().max()))


def test_blocks_bound_what_remembered_outputs_change():
    """Σ_e (g_eᵀΔ)² <= J Σ_j Σ_e (g_ejᵀΔ_j)², with equality where all blocks change each output alike."""
    generator = torch.Generator().manual_seed(0)
    G, D = (torch.randn(n, 12, dtype=torch.float64, generator=generator) for n in (8, 50))
    for J in (1, 2, 3):
        parts = sum(
            (D[:, p] @ G[:, p].T).square().sum(1) for p in (slice(12 * j // J, 12 * (j + 1) // J) for j in range(J))
        )
        assert bool(((D @ G.T).square().sum(1) <= J * parts * (1 + 1e-12)).all())
    alike = torch.ones(1, 12, dtype=torch.float64)
    assert float((alike @ alike.T) ** 2) == 3 * sum(float(4.0**2) for _ in range(3))


def test_a_sketch_without_room_pulls_elsewhere_by_the_mean_of_what_it_lacks():
    old = problem()[0]
    _, _, protection = start(so.ProductSketch(3, seed=1))
    protection.remember([(old, None)])
    projector = protection.projector
    energy = float(with_ones(old).square().sum())
    values = projector.pull * len(old) / 2.0
    assert len(values) == 3
    assert projector.elsewhere * len(old) / 2.0 == pytest.approx((energy - float(values.sum())) / 4)
    full = start()[2]
    full.remember([(old, None)])
    assert full.projector.elsewhere == 0.0


def test_every_task_weighs_as_much():
    """Two tasks of the same examples weigh twice what one does, and merging counts the tasks of both."""
    old = problem()[0]

    def moment(projector):
        return projector.basis.T @ torch.diag(projector.pull) @ projector.basis

    protections = [start()[2] for _ in range(3)]
    for protection, times in zip(protections, (1, 2, 1), strict=True):
        for _ in range(times):
            protection.remember([(old, None)])
    one, two, other = protections
    Z = with_ones(old)
    torch.testing.assert_close(moment(one.projector), 2.0 * Z.T @ Z / len(old))
    torch.testing.assert_close(moment(two.projector), 2 * moment(one.projector))
    one.memory.merge(other.memory)
    one.refresh()
    torch.testing.assert_close(moment(one.projector), moment(two.projector))
    with pytest.raises(ValueError, match="rules"):
        one.memory.merge(_hard())


def _hard():
    model = nn.Linear(6, 1).double()
    return so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=so.AllRows(), output=total).memory


@pytest.mark.parametrize("options", [{}, {"blocks": 3}, {"basis_dtype": "float32", "blocks": 2}])
def test_a_saved_anchor_goes_on_in_the_middle_of_a_task(tmp_path, options):
    model, optimizer, protection = start(so.ProductSketch(2), every=3, **options)
    for batch in (problem()[0], problem(1)[0]):
        protection.remember([(batch, None)])
    steps(model, optimizer, 12)
    protection.save(tmp_path / "memory.safetensors")
    weights = {name: t.clone() for name, t in model.state_dict().items()}
    steps(model, optimizer, 12)

    again, other, unused = start()
    unused.detach()
    again.load_state_dict(weights)
    fresh = so.protect(again, other, memory=so.ProductSketch(1), output=total, every=3)
    fresh.load(tmp_path / "memory.safetensors")
    assert (fresh.memory.rule.strength, fresh.memory.tasks) == (2.0, 2)
    steps(again, other, 12)
    assert torch.equal(again.weight, model.weight)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("kind", ["mlp", "cnn", "transformer"])
def test_a_strong_pull_keeps_outputs_that_plain_training_changes(kind, optimizer):
    def change(strength):
        model, x, y = models.make(kind)
        chosen = optimizer(model.parameters(), lr=1e-3)
        if strength:
            memory = so.GradientMemory(so.AllRows(), blocks=2, strength=strength)
            so.protect(model, chosen, memory=memory).remember([(x, y)])
        model.eval()
        picked = torch.arange(len(y)), y
        before = model(x)[picked].detach()
        for _ in range(10):
            chosen.zero_grad()
            nn.functional.cross_entropy(model(x), y.flip(0)).backward()
            chosen.step()
        return float((model(x)[picked].detach() - before).norm())

    weak, strong = change(1e-3), change(1e4)
    assert strong < 0.3 * change(None)
    assert strong < weak


def test_the_anchor_is_in_the_ledger_and_no_certificate_is_given():
    model, optimizer, protection = start(so.ProductSketch(3), blocks=2)
    assert protection.ledger().nbytes == protection.memory.nbytes + 8 * 7
    protection.remember([(problem()[0], None)])
    steps(model, optimizer, 2)
    assert protection.mode == "update"
    assert protection.ledger().nbytes == protection.memory.nbytes + 8 * 7
    assert protection.memory.sensitivity() is None
    assert protection.diagnostics()["forgetting_estimate"] == protection.forgetting() > 0


@pytest.mark.parametrize("strength", [0.0, -1.0, float("inf"), float("nan")])
def test_a_strength_is_a_positive_number(strength):
    with pytest.raises(ValueError, match="strength is a number > 0"):
        so.GradientMemory(so.AllRows(), strength=strength)


def test_a_memory_says_what_it_is():
    sketch = so.ProductSketch(3)
    told = repr(so.GradientMemory(sketch, blocks=2, strength=4, basis_dtype="bfloat16"))
    assert told == f"GradientMemory({sketch!r}, basis_dtype='bfloat16', blocks=2, strength=4.0)"
    assert repr(so.GradientMemory(sketch)) == f"GradientMemory({sketch!r})"


def test_scaled_gradients_cannot_be_pulled_by():
    with pytest.raises(ValueError, match="power="):
        so.GradientMemory(so.AllRows(), strength=1.0, power=1.0)
