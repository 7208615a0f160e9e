"""Ctrl-C at any moment of `remember` or of a step: nothing is half done, and what moved is projected or said."""

import gc
import itertools
import signal
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sketchogd as so
from sketchogd.interrupts import uninterrupted

pytestmark = pytest.mark.usefixtures("_handled")

MEMORIES = {
    "layers": lambda: so.LayerMemory(4, strength=2.0),
    "gradients": lambda: so.ProductSketch(6),
    "lasting": lambda: so.GradientMemory(so.ProductSketch(6), basis_dtype="float32"),
}
OPTIMIZERS = {
    "gradient mode": lambda p: torch.optim.SGD(p, lr=0.05),
    "update mode": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
}


@pytest.fixture
def _handled():
    """SIGINT raises KeyboardInterrupt, as in a terminal; what a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def data(seed=0, n=20):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=g), torch.randint(0, 3, (n,), generator=g)


def training(memory, optimizer="update mode", every=1, steps=2):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    made = OPTIMIZERS[optimizer](model.parameters())
    protection = so.protect(model, made, memory=MEMORIES[memory](), every=every)
    protection.remember([data()])
    for _ in range(steps):
        step(model, made)
    return model, made, protection


def step(model, optimizer):
    optimizer.zero_grad()
    cross_entropy(model(data(1)[0]), data(1)[1]).backward()
    optimizer.step()


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def spectra(protection):
    return {name: sketch.spectrum()[0].clone() for name, sketch in protection.memory.sketches()}


def interrupted(operation, at):
    """Do an operation with Ctrl-C before the call number `at` of a function written in C; whether there was one."""
    calls = 0

    def profile(frame, event, arg):
        nonlocal calls
        if event == "c_call" and arg is not sys.setprofile:
            calls += 1
            if calls == at:
                signal.raise_signal(signal.SIGINT)

    gc.disable()  # an interrupt in a finalizer would be lost
    sys.setprofile(profile)
    try:
        operation()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
        torch.set_grad_enabled(True)  # interrupted in its last instant, any no_grad() block leaves it off
    assert calls < at, "an interrupt was lost"
    return False


def moments_of(operation):
    """Calls of functions written in C: a few of all, and every third of the last ones, when things are replaced."""
    calls = 0

    def profile(frame, event, arg):
        nonlocal calls
        calls += event == "c_call" and arg is not sys.setprofile

    sys.setprofile(profile)
    operation()
    sys.setprofile(None)
    return [*range(1, calls, calls // 20), *range(calls - 120, calls, 3), 2 * calls]


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_task_that_is_interrupted_is_remembered_whole_or_not_at_all(memory):
    """Also while a basis takes the place of the rows of a sketch, which were lost then without a word."""
    _, _, whole = training(memory)
    expected = {20: spectra(whole)}
    whole.remember([data(2)])
    expected[40] = spectra(whole)
    distance, seen = whole.diagnostics()["displacement"], set()
    for at in itertools.count(1, 23):
        model, optimizer, protection = training(memory)
        if not interrupted(lambda protection=protection: protection.remember([data(2)]), at):
            break
        n = protection.memory.examples
        seen.add((n, protection.memory.tasks))
        for name, values in spectra(protection).items():
            torch.testing.assert_close(values, expected[n][name], rtol=1e-4, atol=1e-4)
        if protection.memory.tasks == 2:  # the task has ended, and so its weights are what is counted from
            assert protection.diagnostics()["displacement"] == distance
        step(model, optimizer)
        assert protection.projector is not None
        protection.remember([data(3)])
        assert protection.memory.examples == n + 20
    assert {n for n, _ in seen} == {20, 40}
    assert at > 20 * 23


@pytest.mark.parametrize("memory", MEMORIES)
def test_numbers_that_are_asked_for_may_be_interrupted(memory):
    """Spectra are computed in place by whoever asks for them first."""
    expected = None
    for at in itertools.count(1, 5):
        _, _, protection = training(memory)
        protection.observe(*data(2))
        sketch = next(sketch for _, sketch in protection.memory.sketches())
        cut = interrupted(sketch.spectrum, at)
        if expected is None:
            _, _, whole = training(memory)
            whole.observe(*data(2))
            expected = spectra(whole)
        for name, values in spectra(protection).items():
            torch.testing.assert_close(values, expected[name], rtol=1e-4, atol=1e-4)
        if not cut:
            break
    assert at > 20


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_that_is_interrupted_is_projected_by_the_next_or_said(optimizer, every):
    leaks = []
    for at in itertools.count(1, 3):
        model, made, protection = training("gradients", optimizer, every, steps=2 * every - 1)
        start, B = flat(model), protection.projector.basis.clone()
        protection.settle()
        start = flat(model)
        for _ in range(every - 1):
            step(model, made)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            cut = interrupted(lambda made=made: made.step(), at)
            for _ in range(every):
                step(model, made)
            protection.settle()
        v = flat(model) - start
        leaks.append(float((B @ v).norm() / v.norm()))
        said = any("raised an error midway" in str(w.message) for w in told)
        assert leaks[-1] < 1e-4 or said, (at, leaks[-1])
        if not cut:
            break
    assert len(leaks) > 10


@pytest.mark.parametrize("memory", ["gradients", "layers"])
@pytest.mark.parametrize("how", ["load", "merge"])
def test_a_load_that_is_interrupted_leaves_the_old_memory_or_the_new(how, memory, tmp_path):
    """With its anchor: a new memory must not pull to an old one."""
    _, _, other = training(memory)
    other.remember([data(2)])
    other.save(tmp_path / "m")
    old, new = (training(memory)[2] for _ in range(2))
    moments = moments_of(lambda: getattr(new, how)(tmp_path / "m"))
    expected = {each.memory.examples: each.state_dict()["tensors"] for each in (old, new)}
    seen = set()
    for at in moments:
        model, optimizer, protection = training(memory)
        interrupted(lambda protection=protection: getattr(protection, how)(tmp_path / "m"), at)
        seen.add(protection.memory.examples)
        found = protection.state_dict()["tensors"]
        torch.testing.assert_close(found, expected[protection.memory.examples], rtol=1e-4, atol=1e-4)
        step(model, optimizer)
    assert seen == expected.keys()


@pytest.mark.parametrize("every", [1, 3])
def test_a_projection_that_fails_is_done_later(every, monkeypatch):
    model, optimizer, protection = training("gradients", every=every, steps=0)
    start, kind = flat(model), type(protection.projector)
    for _ in range(every - 1):
        step(model, optimizer)
    with monkeypatch.context() as patch:
        patch.setattr(kind, "protected_part_", lambda *_: (_ for _ in ()).throw(MemoryError("full")))
        with pytest.raises(MemoryError):
            step(model, optimizer)
    assert protection.pending == every
    step(model, optimizer)
    protection.settle()
    v = flat(model) - start
    assert (protection.projector.basis @ v).norm() < 1e-4 * v.norm()


@pytest.mark.parametrize("memory", MEMORIES)
def test_rows_that_an_error_leaves_half_changed_are_never_used_again(memory, monkeypatch, tmp_path):
    """With a second Ctrl-C, or where memory runs out; before, half of a basis was taken for observed rows."""
    model, optimizer, protection = training(memory)
    protection.save(tmp_path / "m")
    sketch = next(sketch for _, sketch in protection.memory.sketches())
    with monkeypatch.context() as patch:
        patch.setattr("sketchogd.sketch.linear.polish_", fail)
        patch.setattr("sketchogd.sketch.flat_tail.polish_", fail)
        with pytest.raises(MemoryError):
            protection.remember([data(2)])
    uses = [sketch.spectrum, lambda: protection.save(tmp_path / "n"), lambda: protection.remember([data(3)])]
    uses += [] if protection.memory.lasting else [lambda: step(model, optimizer)]  # the old basis goes on
    for use in uses:
        with pytest.raises(so.ProtectionError, match=r"is lost\. Load the memory from a file"):
            use()
    protection.load(tmp_path / "m")
    step(model, optimizer)


def fail(*_):
    raise MemoryError("full")


def test_a_second_interrupt_does_not_wait_where_blocks_are_nested():
    went_on = []

    def nested():
        with uninterrupted(), uninterrupted():
            signal.raise_signal(signal.SIGINT)
            went_on.append("after one")
            signal.raise_signal(signal.SIGINT)
            went_on.append("after two")

    with pytest.raises(KeyboardInterrupt):
        nested()
    assert went_on == ["after one"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
