"""A refused batch, or Ctrl-C while one is observed, changes nothing: compared tensor by tensor."""

import gc
import itertools
import signal
import sys

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


@pytest.fixture
def _handled():
    """SIGINT raises KeyboardInterrupt, as in a terminal; what a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(function, times):
    """A function that is interrupted in its first call, before it does what it does; `times` counts that."""

    def call(*args):
        if not times:
            times.append(signal.raise_signal(signal.SIGINT))
        return function(*args)

    return call


def interrupt_adding(protection, monkeypatch):
    """Interrupt the first sketch that is given something to add; the list returned is empty until then."""
    times = []
    kind = type(next(sketch for _, sketch in protection.memory.sketches()))
    for method in ("observe", "add_product"):
        if hasattr(kind, method):
            monkeypatch.setattr(kind, method, interrupted(getattr(kind, method), times))
    return times


def state_of(model):
    """What must be as it was: modes, hooks, and which tensors are parameters, of every module."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_pre_hooks")
    return [
        (name, module.training, [list(getattr(module, kind)) for kind in hooks], list(map(id, module.parameters())))
        for name, module in model.named_modules()
    ]


def counts_of(protection):
    return {name: sketch.count for name, sketch in protection.memory.sketches()}


@pytest.mark.usefixtures("_handled")
@pytest.mark.parametrize("memory", ["layers", "gradients", "blocks"])
def test_ctrl_c_leaves_all_of_a_batch_or_nothing(memory, monkeypatch):
    """While gradients are computed: nothing; while they are added: everything. Then the interrupt is raised."""
    model, _, protection = training(memory)
    before, state, times = held(protection), state_of(model), []
    with monkeypatch.context() as patch:
        patch.setattr(nn.LayerNorm, "forward", interrupted(nn.LayerNorm.forward, times))
        with pytest.raises(KeyboardInterrupt):
            protection.observe(*data(3))
    assert times == [None]
    assert all(torch.equal(t, held(protection)[name]) for name, t in before.items())
    assert protection.pending == 3
    assert state_of(model) == state
    counts, times = counts_of(protection), interrupt_adding(protection, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        protection.observe(*data(3))
    assert times == [None]
    assert protection.memory.examples == 40
    assert counts_of(protection) == {name: 2 * count for name, count in counts.items()}
    assert state_of(model) == state
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("_handled")
def test_a_second_ctrl_c_does_not_wait(monkeypatch):
    _, _, protection = training("gradients")
    calls = []

    def twice(self, x):
        calls.append(signal.raise_signal(signal.SIGINT))
        signal.raise_signal(signal.SIGINT)
        calls.append("went on")

    monkeypatch.setattr(nn.LayerNorm, "forward", twice)
    with pytest.raises(KeyboardInterrupt):
        protection.observe(*data(3))
    assert calls == [None]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("_handled")
def test_ctrl_c_that_a_process_ignores_stays_ignored(monkeypatch):
    _, _, protection = training("gradients")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    times = interrupt_adding(protection, monkeypatch)
    protection.observe(*data(3))
    assert times == [None]
    assert protection.memory.examples == 40
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


STRIDE = 29
"""Every so many calls of functions written in C, one is interrupted: 60 to 100 moments, at least two while adding."""


def observe_interrupted(protection, at):
    """Observe a batch with Ctrl-C before the call number `at` of a function written in C; whether there was one."""
    calls = 0

    def profile(frame, event, arg):
        nonlocal calls
        calls += event == "c_call"
        if event == "c_call" and calls == at:
            signal.raise_signal(signal.SIGINT)

    gc.disable()  # an interrupt in a finalizer would be lost
    sys.setprofile(profile)
    try:
        protection.observe(*data(3))
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    assert calls < at, "an interrupt was lost"
    return False


@pytest.mark.usefixtures("_handled")
@pytest.mark.parametrize("memory", ["layers", "gradients", "pulled"])
def test_ctrl_c_at_any_moment_leaves_the_model_as_it_was(memory):
    """Also while steps that wait are projected, modules change their mode, or torch.func replaces parameters."""
    seen = set()
    for at in itertools.count(1, STRIDE):
        model, optimizer, protection = training(memory)
        before, state = held(protection), state_of(model)
        if not observe_interrupted(protection, at):
            break
        seen.add(protection.memory.examples)
        assert state_of(model) == state
        assert torch.is_grad_enabled()
        if protection.memory.examples == 20:
            assert protection.pending == 3
            assert all(torch.equal(t, held(protection)[name]) for name, t in before.items())
        train(model, optimizer, 1)
        protection.observe(*data(3))
    assert seen == {20, 40}
    assert at > 10 * STRIDE


def test_a_batch_that_is_refused_after_others_keeps_these():
    _, _, protection = training("layers")
    with pytest.raises(so.NonFiniteError):
        protection.remember([data(2), nan_batch(), data(4)])
    assert protection.memory.examples == 40
    assert protection.memory.tasks == 1
    assert protection.pending == 0
