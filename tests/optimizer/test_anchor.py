"""What was promised for old outputs still holds after attaching, observing, refreshing and refused batches."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import sketchogd as so
from sketchogd.cli.merge import merged
from sketchogd.optimizer.anchor import Held, tension


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


def data(seed, n=40, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=g).to(dtype), torch.randint(0, 3, (n,), generator=g)


def train(model, optimizer, steps, before_step=None):
    x, y = data(2)
    for i in range(steps):
        if before_step is not None:
            before_step(i)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def forgotten(before_step=None, make=lambda p: torch.optim.Adam(p, lr=0.01), steps=120):
    """Mean square change of old outputs; `before_step(protection, i)` may do things to the protection."""
    model = network()
    x, y = data(1)
    optimizer = make(model.parameters())
    protection = so.protect(model, optimizer, memory=so.LayerMemory(50, rule=so.Pull(1.0)))
    protection.remember([(x, y)])
    before = model(x).detach()
    train(model, optimizer, steps, None if before_step is None else lambda i: before_step(protection, i))
    return float((model(x).detach() - before).square().mean())


def plain(steps=120):
    model = network()
    x, _ = data(1)
    before = model(x).detach()
    train(model, torch.optim.Adam(model.parameters(), lr=0.01), steps)
    return float((model(x).detach() - before).square().mean())


def test_attaching_again_and_again_moves_no_anchor():
    def attach(protection, i):
        if i % 5 == 0:
            protection.attach(protection._projection.optimizer)

    assert forgotten(attach) == pytest.approx(forgotten(), rel=1e-6)


def test_detaching_and_attaching_goes_on_with_the_same_pull():
    def pause(protection, i):
        if i == 60:
            optimizer = protection._projection.optimizer
            protection.detach()
            protection.attach(optimizer)

    assert forgotten(pause) == pytest.approx(forgotten(), rel=1e-6)


def test_refreshing_moves_no_anchor():
    assert forgotten(lambda protection, i: protection.refresh()) == pytest.approx(forgotten(), rel=1e-6)


def test_a_refused_batch_moves_no_anchor():
    def refused(protection, i):
        if i % 20 == 10:
            with pytest.raises(so.NonFiniteError):
                protection.observe(torch.full((4, 6), float("nan")), torch.zeros(4, dtype=torch.int64))

    assert forgotten(refused) < 1.1 * forgotten()
    assert forgotten() < 0.3 * plain()


def test_a_remember_that_breaks_off_moves_no_anchor_away():
    x, y = data(1)
    bad = torch.full((4, 6), float("nan")), torch.zeros(4, dtype=torch.int64)

    def broken(protection, i):
        if i % 20 == 10:
            with pytest.raises(so.NonFiniteError):
                protection.remember([(x[:4], y[:4]), bad])

    assert forgotten(broken) < 1.5 * forgotten()


def test_observing_old_examples_again_keeps_the_old_pull():
    """Without tasks: the weights a batch is observed at must not become what everything is pulled back to."""
    x, y = data(1)
    assert forgotten(lambda protection, i: protection.observe(x[:4], y[:4]) if i % 10 == 5 else None) < 0.3 * plain()


def linear(memory, lr):
    """A model of one output, which the memory protects as it is."""
    torch.manual_seed(0)
    model = nn.Linear(6, 1, bias=False).double()
    kept = so.LayerMemory(20, rule=so.Pull(2.0, damping=0.0))
    if memory == "gradients":
        kept = so.GradientMemory(so.ProductSketch(6), rule=so.Pull(2.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return model, optimizer, so.protect(model, optimizer, memory=kept, output=lambda output, target: output.sum())


@pytest.mark.parametrize("memory", ["layers", "gradients"])
def test_two_penalties_add_up_to_one(memory):
    """A linear model, for which H is exact: by the eigenvectors of both penalties together, in float64."""
    model, optimizer, protection = linear(memory, lr=0.1)
    first, second = data(1, 30, torch.float64)[0], data(3, 20, torch.float64)[0]
    protection.observe(first, torch.zeros(30))
    optimizer.zero_grad()
    mse_loss(model(second), torch.zeros(20, 1, dtype=torch.float64)).backward()
    optimizer.step()  # makes the projector, whose anchor is where the weights were
    start = protection._projection.reference[0].numbers.clone()
    for _ in range(30):
        optimizer.zero_grad()
        mse_loss(model(second), torch.ones(20, 1, dtype=torch.float64)).backward()
        optimizer.step()
    now = model.weight.detach().clone()
    protection.observe(second, torch.zeros(20))
    protection.refresh()
    H_old, H_more = first.T @ first, second.T @ second
    values, V = torch.linalg.eigh(H_old + H_more)
    y, d = (now - start) @ H_old @ V / values, (now - start) @ V
    expected = now - torch.minimum(torch.maximum(y, d.clamp_max(0)), d.clamp_min(0)) @ V.T
    tolerance = 1e-5 * float((now - start).abs().max())
    torch.testing.assert_close(protection._projection.reference[0].numbers, expected, rtol=0, atol=tolerance)
    exact = torch.linalg.solve(H_old + H_more, (start @ H_old + now @ H_more).T).T
    assert (expected - exact).norm() < 0.2 * (start - exact).norm()


@pytest.mark.parametrize("memory", ["layers", "gradients"])
def test_two_penalties_with_the_same_eigenvectors_add_up_exactly(memory):
    """And what is lost, which is what both say at their common minimum, is what both say there by a dense solve."""
    model, optimizer, protection = linear(memory, lr=0.01)
    axes = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    first = axes * torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0, 0.5]).double()[:, None]
    second = axes * torch.tensor([0.6, 1.1, 1.9, 2.8, 3.9, 5.5]).double()[:, None]
    protection.observe(first, torch.zeros(6))
    start = model.weight.detach().clone()
    for _ in range(30):
        optimizer.zero_grad()
        mse_loss(model(second), torch.ones(6, 1, dtype=torch.float64)).backward()
        optimizer.step()
    now = model.weight.detach().clone()
    protection.observe(second, torch.zeros(6))
    protection.refresh()
    H_old, H_more = first.T @ first, second.T @ second
    expected = torch.linalg.solve(H_old + H_more, (start @ H_old + now @ H_more).T).T
    reference = protection._projection.reference[0].numbers
    torch.testing.assert_close(reference, expected, rtol=0, atol=1e-6 * float((now - start).abs().max()))
    both = [((expected - a) @ H).flatten() @ (expected - a).flatten() for a, H in ((start, H_old), (now, H_more))]
    unit = protection.memory.weight * 2.0
    assert protection._projection.lost == pytest.approx(unit * float(sum(both)), rel=1e-5)


def test_tension_and_relaxation_are_products_with_h_and_its_inverse():
    model = network(torch.float64)
    memory = so.LayerMemory(50, rule=so.Pull(3.0, damping=0.1))
    protection = so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=memory)
    protection.remember([data(1, dtype=torch.float64)])
    projector = protection.projector
    p = protection.parameters.p
    H = torch.stack([tension(projector, e) for e in torch.eye(p, dtype=torch.float64)])
    torch.testing.assert_close(H, H.T, atol=1e-9, rtol=1e-6)
    A = torch.stack([projector.protected_part_(e, 0.7) for e in torch.eye(p, dtype=torch.float64)])
    torch.testing.assert_close(A, torch.linalg.solve(torch.eye(p, dtype=torch.float64) + 0.7 * H, 0.7 * H))
    D = torch.randn(p, dtype=torch.float64)
    y = H @ D
    found, lost = Held(y.clone(), D.clone(), 0.0).relaxed(projector, 1.0)
    assert (H @ found - y).norm() < 1e-6 * y.norm()
    assert lost < 1e-9 * float(D @ y)
    nothing = torch.zeros(p, dtype=torch.float64)
    assert torch.equal(projector.relaxed_(nothing.clone(), D.clone()), nothing)
    half, lost = Held(y.clone(), D.clone(), 3.0).relaxed(projector, 0.5)
    torch.testing.assert_close(half, found / 2)
    assert lost == pytest.approx(0.5 * (3.0 + float(D @ y)) - 0.25 * float(D @ y))


def test_observing_a_new_stream_at_every_step_keeps_the_old_promise():
    z, labels = data(2)

    def observe(protection, i):
        rows = slice((i * 4) % 40, (i * 4) % 40 + 4)
        protection.observe(z[rows], labels[rows])

    assert forgotten(observe) < 2 * forgotten() < 0.3 * plain()  # old examples have a falling share of all


def six_tasks(optimizer):
    """How much the logits of the first of six tasks change from its end to that of the last; and the prediction."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3))
    steps = optimizer(model.parameters())
    protection = so.protect(model, steps, memory=so.LayerMemory(50, rule=so.Pull(5.0)))
    for task in range(6):
        x, y = data(task)
        for _ in range(100):
            steps.zero_grad()
            cross_entropy(model(x), y).backward()
            steps.step()
        protection.remember([(x, y)])
        if task == 0:
            before = model(x).detach()
    found, x = protection.forgetting(), data(0)[0]
    spread = before - before.mean(1, keepdim=True)
    change = model(x).detach() - before
    change -= change.mean(1, keepdim=True)
    return float(change.norm() / spread.norm()), found


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_outputs_are_held_to_what_they_were_when_their_task_ended(name, monkeypatch):
    make = {"sgd": lambda p: torch.optim.SGD(p, lr=0.1), "adam": lambda p: torch.optim.Adam(p, lr=0.01)}[name]
    held, predicted = six_tasks(make)
    assert 0.15 < predicted / held < 5
    monkeypatch.setattr(so.LayerMemory, "promises", False)
    anew, nothing = six_tasks(make)
    assert nothing == 0.0
    assert held < 0.9 * anew


def test_what_is_lost_goes_into_files(tmp_path):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    protection = so.protect(model, optimizer, memory=so.LayerMemory(50, rule=so.Pull(1.0)))
    protection.remember([data(1)])
    protection.save(tmp_path / "first.safetensors")
    train(model, optimizer, 40)
    protection.remember([data(2)])
    train(model, optimizer, 5)
    protection.save(tmp_path / "memory.safetensors")
    predicted = protection.forgetting()
    protection.detach()
    other = so.protect(model, torch.optim.SGD(model.parameters(), 0.1), memory=so.LayerMemory(50, rule=so.Pull(1.0)))
    other.load(tmp_path / "memory.safetensors")
    assert protection._projection.lost > 0
    assert other.forgetting() == pytest.approx(predicted, rel=1e-5)
    other.load(tmp_path / "first.safetensors")
    with pytest.warns(so.ProtectionWarning, match="weights"):
        assert other.forgetting() == 0.0


def test_merged_files_count_from_no_anchor(tmp_path):
    states = []
    for seed in (1, 3):
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        protection = so.protect(model, optimizer, memory=so.LayerMemory(50, rule=so.Pull(1.0)))
        for task in (seed, 2):
            protection.remember([data(task)])
            train(model, optimizer, 20)
        state = protection.state_dict()
        assert state["meta"]["lost"] > 0
        states.append((str(seed), (state["meta"], state["tensors"])))
    assert "lost" not in merged(states)[0]
