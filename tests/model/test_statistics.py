"""Running statistics are held after the first task, in training too, and everything else about a model stays."""

import copy
import gc
import pickle

import pytest
import torch
import torch._dynamo
import torch._dynamo.testing
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounter

import sketchogd as so
from sketchogd.budget import memory_for
from sketchogd.model.buffers import kept_nbytes
from sketchogd.model.buffers.norms import handed_over
from sketchogd.model.parameters import ProtectedParameters

NORMS = {
    "batch 1d": (lambda: nn.BatchNorm1d(3), (6, 3)),
    "batch 2d": (lambda: nn.BatchNorm2d(3, momentum=None), (6, 3, 4, 4)),
    "batch without affine": (lambda: nn.BatchNorm1d(3, affine=False), (6, 3, 5)),
    "instance": (lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True), (6, 3, 5)),
    "instance of one": (lambda: nn.InstanceNorm2d(3, track_running_stats=True), (3, 5, 4)),
}


class Net(nn.Module):
    def __init__(self, norm=lambda: nn.BatchNorm1d(5), heads=1):
        super().__init__()
        self.body, self.norm = nn.Linear(4, 5), norm()
        self.heads = nn.ModuleList(nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)) for _ in range(heads))
        self.head = 0

    def forward(self, x):
        return self.heads[self.head](torch.tanh(self.norm(self.body(x))))


def task(number, n=24):
    g = torch.Generator().manual_seed(number)
    return torch.randn(n, 4, generator=g) * (1 + number) + number, torch.randint(0, 3, (n,), generator=g)


def steps(model, optimizer, number, n):
    model.train()
    x, y = task(number)
    for _ in range(n):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def learned(model=None, n=8, lr=0.01, **options):
    """A model that has learned and remembered task 0."""
    torch.manual_seed(0)
    model = Net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    protection = so.protect(model, optimizer, memory=so.LayerMemory(10), **options)
    steps(model, optimizer, 0, n)
    protection.remember([task(0)])
    return model, optimizer, protection


def statistics(model):
    return {name: t.clone() for name, t in model.named_buffers()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def rows(protection):
    return {row.name: row.how for row in protection.coverage()}


# ---------------------------------------------------------------- one layer


@pytest.fixture(params=["own gradient", "compiled"])
def compiling(request, monkeypatch):
    """Both forms of the hand-over: with a gradient of its own, and the formula that torch.compile sees."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: request.param == "compiled")


@pytest.mark.usefixtures("compiling")
@pytest.mark.parametrize("name", NORMS)
def test_the_hand_over_goes_from_the_batch_to_what_is_held(name):
    """At 0 values and gradients are those of the layer in training; at 1 values are those in evaluation."""
    make, shape = NORMS[name]
    torch.manual_seed(0)
    module = make().double()
    with torch.no_grad():
        module.running_mean.copy_(torch.tensor([0.5, -1.0, 2.0]))
        module.running_var.copy_(torch.tensor([0.3, 4.0, 1.5]))
        for t in module.parameters():
            t.normal_()
    x = (torch.randn(shape, dtype=torch.float64) * 2 + 1).requires_grad_()
    weights = torch.randn(shape, dtype=torch.float64)
    twin = copy.deepcopy(module)
    expected = twin(x)
    (wanted,) = torch.autograd.grad((expected * weights).sum(), x)
    module.eval()
    found = module(handed_over(module, x, torch.tensor(0.0), 0.3))
    (gradient,) = torch.autograd.grad((found * weights).sum(), x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, wanted)
    torch.testing.assert_close(module(handed_over(module, x, torch.tensor(1.0), 0.3)), module(x))
    assert torch.equal(handed_over(module, x, None, 0.3), x)


@pytest.mark.usefixtures("compiling")
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("share", [None, 0.6])
def test_the_gradient_passes_through_the_batch_in_part(name, share):
    """At 1 and 0 all or nothing of it, by autograd of the formula; between them the mean is a mixture."""
    make, shape = NORMS[name]
    module = make().double().eval()
    x = torch.randn(shape, dtype=torch.float64).requires_grad_()
    weights = torch.randn(shape, dtype=torch.float64)
    channel = 0 if name == "instance of one" else 1
    over = [i for i in range(x.ndim) if i != channel and (i > channel or name.startswith("batch"))]
    lam = 1.0 if share is None else share
    given = None if share is None else torch.tensor(share, dtype=torch.float64)

    def twin(through):
        variance, mean = torch.var_mean(x, over, correction=0, keepdim=True)
        own = (variance + module.eps).sqrt()
        held = (1 + module.eps) ** 0.5
        own, mean = (own, mean) if through else (own.detach(), mean.detach())
        y = (x - mean) / own * (own.detach() / held) ** lam + lam * mean.detach() / held
        return torch.autograd.grad((y * weights).sum(), x)[0]

    def found(batch_gradient):
        y = module(handed_over(module, x, given, batch_gradient))
        return torch.autograd.grad((y * weights).sum(), x)[0]

    through = lambda kappa: 1 - lam * (1 - kappa)  # noqa: E731
    torch.testing.assert_close(found(1.0), twin(True))
    if share is None:
        torch.testing.assert_close(found(0.0), twin(False))
    mixed = through(0.4) * twin(True) + (1 - through(0.4)) * twin(False)
    torch.testing.assert_close(found(0.4), mixed)


def test_half_way_statistics_are_between_those_of_the_batch_and_those_held():
    module = nn.BatchNorm1d(2, eps=0.0).double().eval()
    module.running_mean.copy_(torch.tensor([1.0, -2.0]))
    module.running_var.copy_(torch.tensor([4.0, 0.25]))
    x = torch.randn(50, 2, dtype=torch.float64)
    own, held = x.std(0, correction=0), module.running_var.sqrt()
    expected = (x - x.mean(0)) / own * (own / held).sqrt() + 0.5 * (x.mean(0) - module.running_mean) / held
    torch.testing.assert_close(module(handed_over(module, x, torch.tensor(0.5), 1.0)), expected)


def test_half_precision_is_summed_in_float32():
    module = nn.BatchNorm1d(2).eval()
    x = torch.full((4096, 2), 300.0).index_fill(0, torch.arange(0, 4096, 2), 302.0).half()
    found = handed_over(module, x, torch.tensor(0.0), 0.5)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float().abs(), torch.ones(4096, 2), atol=1e-2, rtol=0)


# ---------------------------------------------------------------- a protection


def test_old_outputs_do_not_move_with_statistics():
    """Without a learning rate nothing but statistics can change."""
    outputs = {}
    for buffers in (so.HoldStatistics(), None):
        model, optimizer, _ = learned(lr=0.0, buffers=buffers)
        x = task(0)[0]
        before, kept = model.eval()(x), statistics(model)
        steps(model, optimizer, 1, 12)
        outputs[buffers] = float((model.eval()(x) - before).detach().norm())
        assert same(kept, statistics(model)) == (buffers is not None)
    assert outputs[so.HoldStatistics()] == 0.0
    assert outputs[None] > 0.5


def test_training_ends_with_what_evaluation_has_and_modes_stay():
    model, optimizer, protection = learned(buffers=so.HoldStatistics(handover=0.5))
    frozen = model.heads[0][0]
    x = task(1)[0]
    for number in range(6):
        model.train()
        with torch.no_grad():
            training = model(x)
        assert model.norm.training
        assert frozen.training
        model.eval()
        with torch.no_grad():
            assert torch.equal(training, model(x)) == (number >= 4)  # half of the 8 steps of the task before
        assert f"({number} of 4 steps)" in rows(protection)["norm.running_var"] or number >= 4
        steps(model, optimizer, 1, 1)
    assert rows(protection)["norm.running_var"] == "held, in training too"
    protection.remember([task(1)])
    assert "(0 of 3 steps)" in rows(protection)["norm.running_var"]


def test_an_error_in_the_layer_leaves_its_mode():
    model, _, _ = learned()
    model.train()
    with pytest.raises(RuntimeError):
        model.norm(torch.randn(4, 7))
    assert model.norm.training


def test_none_leaves_everything_as_it_was():
    _, _, protection = learned(buffers=None)
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in protection.parameters.model.modules()
    )
    assert rows(protection)["norm.running_mean"] == "NOT PROTECTED: follows new tasks (buffers=None)"


def test_a_norm_that_no_task_has_used_is_free_until_one_has():
    model, optimizer, protection = learned(Net(heads=2))
    assert rows(protection)["heads.1.0.running_mean"].startswith("free so far")
    model.head = 1
    steps(model, optimizer, 1, 2)
    assert bool((model.heads[1][0].running_mean != 0).all())
    protection.remember([task(1)])
    kept = statistics(model)
    steps(model, optimizer, 2, 2)
    assert same(kept, statistics(model))


def test_a_norm_that_was_left_out_is_left_free_and_a_frozen_one_is_not():
    model = Net()
    for t in model.heads[0][0].parameters():
        t.requires_grad_(False)
    model, optimizer, protection = learned(model, parameters=so.excluding("norm"))
    kept = statistics(model)
    steps(model, optimizer, 1, 3)
    assert not torch.equal(model.norm.running_mean, kept["norm.running_mean"])
    assert torch.equal(model.heads[0][0].running_mean, kept["heads.0.0.running_mean"])
    assert "was not chosen" in rows(protection)["norm.running_mean"]


def test_what_a_hand_over_keeps_is_in_the_ledger_and_in_the_budget():
    """One number, and only as long as it lasts; a budget that could not pay for it is 4 bytes too small."""
    model, optimizer, protection = learned()
    kept = [entry for entry in protection.ledger() if entry.name.startswith("statistics")]
    assert sum(entry.nbytes for entry in kept) == kept_nbytes(model, so.HoldStatistics()) == 4
    assert kept_nbytes(model, None) == 0
    steps(model, optimizer, 1, 4)
    assert not [entry for entry in protection.ledger() if entry.name.startswith("statistics")]
    parameters = ProtectedParameters(nn.Sequential(nn.Linear(20, 20), nn.BatchNorm1d(20)))
    ranks = {nbytes: memory_for(nbytes, parameters, 1, 0).memory.rank for nbytes in range(4400, 5200, 4)}
    boundary = next(nbytes for nbytes in ranks if ranks.get(nbytes - 4, ranks[nbytes]) < ranks[nbytes])
    assert memory_for(boundary, parameters, 1, 0, reserved=4).memory.rank < ranks[boundary]


def test_a_copy_is_free_and_detaching_leaves_no_trace():
    model, optimizer, protection = learned()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        kept = statistics(other)
        other.train()(task(1)[0])
        assert not same(kept, statistics(other))
    kept = statistics(model)
    model.train()(task(1)[0])
    assert same(kept, statistics(model))
    protection.detach()
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._forward_hooks_always_called for m in model.modules())
    protection.attach(optimizer)
    model(task(1)[0])
    assert same(kept, statistics(model))
    del protection, optimizer
    gc.collect()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


# ---------------------------------------------------------------- torch.compile


def test_a_compiled_model_holds_in_one_graph():
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, counter = Net(), CompileCounter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    protection = so.protect(compiled, optimizer, memory=so.LayerMemory(10))
    steps(compiled, optimizer, 0, 6)
    protection.remember([task(0)])
    kept, twin = statistics(model), copy.deepcopy(model).eval()
    steps(compiled, optimizer, 1, 8)
    assert same(kept, statistics(model))
    assert counter.frame_count == 3  # free, handed over, held; not one a step
    twin.load_state_dict(model.state_dict())
    torch.testing.assert_close(compiled(task(1)[0]), twin(task(1)[0]))


def test_a_model_that_was_compiled_before_is_reported():
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Net()
    compiled = torch.compile(model, backend="eager")
    compiled(task(0)[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    protection = so.protect(compiled, optimizer, memory=so.LayerMemory(10))
    protection.remember([task(0)])
    kept = statistics(model)
    steps(compiled, optimizer, 1, 3)
    if not same(kept, statistics(model)):
        with pytest.warns(so.ProtectionWarning, match="should be held changed: norm"):
            protection.remember([task(1)])


# ---------------------------------------------------------------- files


def rebuilt(state):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    protection = so.protect(model, optimizer, memory=so.LayerMemory(10))
    model.load_state_dict(state)
    return model, optimizer, protection


def test_a_file_goes_on_in_the_middle_of_a_hand_over(tmp_path):
    model, optimizer, protection = learned()
    steps(model, optimizer, 1, 2)
    protection.save(tmp_path / "memory.safetensors")
    twin, other, loaded = rebuilt(model.state_dict())
    loaded.load(tmp_path / "memory.safetensors")
    assert "(2 of 4 steps)" in rows(loaded)["norm.running_mean"]
    kept = statistics(model)
    for each, by in ((model, optimizer), (twin, other)):
        steps(each, by, 1, 4)
    assert same(kept, statistics(twin))
    assert same(dict(model.named_parameters()), dict(twin.named_parameters()))


def test_other_statistics_than_the_file_was_saved_with_are_reported(tmp_path):
    model, _, protection = learned()
    protection.save(tmp_path / "memory.safetensors")
    state = {name: t for name, t in model.state_dict().items() if "running" not in name}
    state |= {name: t for name, t in Net().state_dict().items() if "running" in name}
    twin, optimizer, loaded = rebuilt(state)
    loaded.load(tmp_path / "memory.safetensors")
    with pytest.warns(so.ProtectionWarning, match="should be held changed: .*running_mean"):
        steps(twin, optimizer, 1, 1)
    steps(twin, optimizer, 1, 1)  # said once


def test_a_file_of_an_older_version_holds_what_the_model_has():
    model, _, protection = learned(buffers=None)
    state = protection.state_dict()
    del state["meta"]["buffers"]
    twin, optimizer, loaded = rebuilt(model.state_dict())
    loaded.load_state_dict(state)
    kept = statistics(twin)
    steps(twin, optimizer, 1, 3)
    assert same(kept, statistics(twin))


def test_a_model_without_buffers_has_the_same_files_as_before():
    model = nn.Linear(4, 3)
    protection = so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=so.LayerMemory(4))
    assert "buffers" not in protection.state_dict()["meta"]


# ---------------------------------------------------------------- other buffers


def test_other_buffers_that_change_are_named():
    class Book(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))
            self.register_buffer("codes", torch.zeros(3))
            self.register_buffer("mask", torch.ones(3))

        def forward(self, x):
            if self.training:
                self.codes.add_(1.0)
            return self.linear(x) * self.mask

    model = Book()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    protection = so.protect(model, optimizer, memory=so.LayerMemory(4))
    assert rows(protection)["mask"].startswith("not known")
    protection.remember([task(0)])
    assert rows(protection)["codes"] == "constant so far"
    steps(model, optimizer, 1, 2)
    assert rows(protection)["codes"] == "NOT PROTECTED: changes in training"
    with pytest.warns(so.ProtectionWarning, match=r"NOT PROTECTED: .*codes"):
        protection.remember([task(1)])
    steps(model, optimizer, 1, 1)
    protection.remember([task(1)])  # said once
    found = rows(protection)
    assert found["mask"] == "constant so far"
    assert any(how.startswith("NOT PROTECTED") for name, how in found.items() if "parametrizations" in name)
