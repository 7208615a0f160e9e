"""Steps that are not finite, that a scaler skips, or that raise an error midway."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sketchogd as so
from sketchogd.optimizer import finite

MEMORIES = {
    "project": lambda: so.ProductSketch(10),
    "pull": lambda: so.LayerMemory(10),
    "shrink": lambda: so.LayerMemory(10, ridge=0.1),
}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


def data(seed=0, n=32):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=g), torch.randint(0, 3, (n,), generator=g)


def protected(memory, optimizer, every=1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    made = OPTIMIZERS[optimizer](model.parameters()) if isinstance(optimizer, str) else optimizer(model.parameters())
    protection = so.protect(model, made, memory=memory(), every=every)
    protection.remember([data()])
    return model, made, protection


def step(model, optimizer, spoil=None):
    optimizer.zero_grad()
    cross_entropy(model(data(1)[0]), data(1)[1]).backward()
    if spoil is not None:
        model[0].weight.grad[0, 0] = spoil
    optimizer.step()


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("at_once", [True, False])  # a CPU reads numbers at once, a GPU later
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("memory", MEMORIES)
def test_one_nan_stays_where_it_is(memory, optimizer, every, at_once, monkeypatch):
    monkeypatch.setattr(finite, "at_once", lambda t: at_once)
    model, made, protection = protected(MEMORIES[memory], optimizer, every)
    for _ in range(every):
        step(model, made)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2 * every):
            step(model, made, spoil=float("nan"))
            protection.settle()
            model[0].weight.data[0, 0] = 0.1  # what the optimizer made of it
            assert bool(flat(model).isfinite().all())
        protection._projection.finite.look()
    assert any("contain NaN or infinity" in str(w.message) for w in told)
    assert protection._projection.finite.skipped > 0


def test_a_series_of_bad_steps_is_said_once_and_protection_goes_on():
    model, optimizer, protection = protected(MEMORIES["project"], "sgd")
    with pytest.warns(so.ProtectionWarning, match="1 step"):
        step(model, optimizer, float("inf"))
    model[0].weight.data[0, 0] = 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(model, optimizer, float("inf"))
    model[0].weight.data[0, 0] = 0.1
    start = flat(model)
    step(model, optimizer)
    v = flat(model) - start
    assert (protection.projector.basis @ v).norm() < 1e-5 * v.norm()
    with pytest.warns(so.ProtectionWarning, match="3 step"):
        step(model, optimizer, float("nan"))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("every", [1, 3])
def test_a_fused_optimizer_under_a_scaler_is_pulled_as_without_one(every, optimizer, monkeypatch):
    """Its gradients are still scaled when the hooks see them, and a step that is not finite it skips by itself."""
    monkeypatch.setattr("sketchogd.optimizer.joint.SETTLED", 2.0)  # joint norms are compared, and used

    def train(scale):
        model, made, _ = protected(
            lambda: so.LayerMemory(10, strength=50.0), lambda p: optimizer(p, lr=0.01, fused=True), every
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, enabled=scale)
        for i in range(9):
            if scale and i == 4 and every == 1:  # a skipped step counts, too
                made.zero_grad()
                scaler.scale(cross_entropy(model(data(1)[0]), data(1)[1]) * float("inf")).backward()
                scaler.step(made)
                scaler.update()
            made.zero_grad()
            scaler.scale(cross_entropy(model(data(1)[0]), data(1)[1])).backward()
            scaler.step(made)
            scaler.update()
        return flat(model)

    torch.testing.assert_close(train(True), train(False), atol=2e-5, rtol=0)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("memory", MEMORIES)
def test_a_step_that_a_scaler_skips_is_no_unprotected_one(memory, optimizer):
    """A fused optimizer is called all the same, with the scale in its gradients, and skips the step by itself."""
    model, made, protection = protected(MEMORIES[memory], lambda p: optimizer(p, lr=0.01, fused=True))
    scaler, start = torch.amp.GradScaler("cpu", init_scale=2.0**14), flat(model)
    for factor in (float("inf"), 1.0, 1.0):  # a warning is an error
        made.zero_grad()
        scaler.scale(cross_entropy(model(data(1)[0]), data(1)[1]) * factor).backward()
        scaler.step(made)
        scaler.update()
    moved = float((flat(model) - start).norm())
    assert moved > 0
    assert protection.diagnostics()["displacement"] < 10 * moved  # a bound; with the scale 8,000 times as much


class Breaking(torch.optim.SGD):
    """Raises an error when half of the parameters have moved."""

    broken = False

    def step(self, closure=None):
        if not self.broken:
            return super().step(closure)
        with torch.no_grad():
            for p in self.param_groups[0]["params"][:2]:
                p.add_(p.grad, alpha=-1.0)
        raise RuntimeError("in the middle")


@pytest.mark.parametrize("every", [1, 5])
def test_half_a_step_is_projected_at_the_next(every):
    model, optimizer, protection = protected(MEMORIES["project"], lambda p: Breaking(p, lr=0.05, momentum=0.9), every)
    for _ in range(every):
        step(model, optimizer)
    start = flat(model)
    optimizer.broken = True
    with pytest.raises(RuntimeError, match="in the middle"):
        step(model, optimizer)
    optimizer.broken = False
    for _ in range(3):
        step(model, optimizer)
    protection.settle()
    v = flat(model) - start
    assert v.norm() > 0.1
    assert (protection.projector.basis @ v).norm() < 1e-4 * v.norm()


def test_half_a_step_is_projected_by_whoever_uses_the_weights():
    model, optimizer, protection = protected(MEMORIES["project"], lambda p: Breaking(p, lr=0.05, momentum=0.9))
    start = flat(model)
    optimizer.broken = True
    with pytest.raises(RuntimeError, match="in the middle"):
        step(model, optimizer)
    with protection.settled():
        v = flat(model) - start
    assert v.norm() > 0.1
    assert (protection.projector.basis @ v).norm() < 1e-4 * v.norm()


def test_half_a_step_on_projected_gradients_is_said():
    model, optimizer, protection = protected(MEMORIES["project"], lambda p: torch.optim.SGD(p, lr=0.05))
    step(model, optimizer)
    optimizer.register_step_pre_hook(broken := lambda *args: (_ for _ in ()).throw(RuntimeError("in the middle")))
    assert broken
    with pytest.raises(RuntimeError, match="in the middle"):
        step(model, optimizer)
    with pytest.warns(so.ProtectionWarning, match="raised an error midway"):
        protection.settle()


def test_a_block_that_raises_is_projected():
    model, _, protection = protected(MEMORIES["project"], "momentum")
    start = flat(model)

    def block():
        with protection.joint(3), torch.no_grad():
            model[0].weight += 0.1
            raise KeyError

    with pytest.raises(KeyError):
        block()
    v = flat(model) - start
    assert v.norm() > 0.1
    assert (protection.projector.basis @ v).norm() < 1e-4 * v.norm()
