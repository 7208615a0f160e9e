"""A refused batch, or Ctrl-C while one is observed, changes nothing: compared tensor by tensor."""

import signal

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sketchogd as so

MEMORIES = {
    "layers": lambda: so.LayerMemory(4, strength=2.0),
    "positions": lambda: so.LayerMemory(4, strength=2.0, curvature="positions"),
    "rows": lambda: so.LayerMemory(4, sketch=so.FrequentDirections, ridge=0.1),
    "gradients": lambda: so.ProductSketch(6),
    "pulled": lambda: so.GradientMemory(so.ProductSketch(6), strength=2.0),
    "blocks": lambda: so.GradientMemory(so.ProductSketch(3), blocks=2),
    "lasting": lambda: so.GradientMemory(so.ProductSketch(6), basis_dtype="float32"),
}


def data(seed=0, n=20):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=g), torch.randint(0, 3, (n,), generator=g)


def training(memory, every=5, steps=3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    protection = so.protect(model, optimizer, memory=MEMORIES[memory](), every=every)
    protection.remember([data()])
    train(model, optimizer, steps)
    return model, optimizer, protection


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(data(1)[0]), data(1)[1]).backward()
        optimizer.step()


def held(protection):
    """Every tensor that is kept, and the weights."""
    own = {item.name: item.tensor.clone() for item in protection.held()}
    return {**own, **{name: p.detach().clone() for name, p in protection.parameters.model.named_parameters()}}


def nan_batch():
    x, y = data(3)
    x[2] = float("nan")
    return x, y


REFUSED = {
    "nan": nan_batch,
    "shape": lambda: (torch.randn(4, 7), torch.zeros(4, dtype=torch.long)),
    "target": lambda: (torch.randn(4, 6), torch.zeros(5, dtype=torch.long)),
}


@pytest.mark.parametrize("call", ["observe", "remember"])
@pytest.mark.parametrize("batch", REFUSED)
@pytest.mark.parametrize("memory", MEMORIES)
def test_a_refused_batch_changes_nothing(memory, batch, call):
    model, optimizer, protection = training(memory)
    before, projector, known = held(protection), protection.projector, protection.memory.state_dict()["meta"]
    bad = REFUSED[batch]()
    with pytest.raises((ValueError, RuntimeError)):
        protection.observe(*bad) if call == "observe" else protection.remember([bad])
    assert protection.projector is projector
    assert protection.pending == 3
    assert protection.memory.state_dict()["meta"] == known
    after = held(protection)
    assert before.keys() == after.keys()
    for name, t in before.items():
        assert torch.equal(t, after[name]), name
    train(model, optimizer, 4)
    other, its_optimizer, _ = training(memory)
    train(other, its_optimizer, 4)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("memory", ["layers", "gradients", "blocks"])
def test_ctrl_c_leaves_all_of_a_batch_or_nothing(memory, monkeypatch):
    """While gradients are computed: nothing; while they are added: everything, and then the interrupt is raised."""
    _, _, protection = training(memory)
    before = held(protection)
    with monkeypatch.context() as patch:
        patch.setattr(nn.LayerNorm, "forward", lambda self, x: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            protection.observe(*data(3))
    assert all(torch.equal(t, held(protection)[name]) for name, t in before.items())
    names = [name for name, _ in protection.memory.sketches()]
    kind = type(next(sketch for _, sketch in protection.memory.sketches()))
    counts = [sketch.count for _, sketch in protection.memory.sketches()]
    added = []
    for method in ("observe", "add_product"):
        if hasattr(kind, method):
            plain = getattr(kind, method)

            def interrupted(self, *args, plain=plain):
                if not added:
                    added.append(signal.raise_signal(signal.SIGINT))
                plain(self, *args)

            monkeypatch.setattr(kind, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        protection.observe(*data(3))
    assert added == [None]
    assert protection.memory.examples == 40
    now = dict(zip(names, [sketch.count for _, sketch in protection.memory.sketches()], strict=True))
    assert all(now[name] == 2 * count for name, count in zip(names, counts, strict=True))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_batch_that_is_refused_after_others_keeps_these():
    _, _, protection = training("layers")
    with pytest.raises(so.NonFiniteError):
        protection.remember([data(2), nan_batch(), data(4)])
    assert protection.memory.examples == 40
    assert protection.memory.tasks == 1
    assert protection.pending == 0
