"""Projection through optimizer hooks: no leak under any optimizer, the same weights in both modes, no trace left."""

import copy
import gc
import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

import sketchogd as so
from sketchogd.optimizer import finite
from tests.reference import projected

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd-decay": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
}


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 5)).to(dtype)


def data(seed=0, n=64):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 20, generator=g), torch.randint(0, 5, (n,), generator=g)


def steps(model, optimizer, n=100, seed=1, before_step=lambda: None):
    x, y = data(seed)

    def closure():
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(n):
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            before_step()
            optimizer.step()


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def true_leak(protection, displacement):
    """‖B Δw‖ / ‖Δw‖ of a real displacement of the weights, computed here in float64."""
    B, v = protection.projector.basis.double(), displacement.double()
    return float((B @ v).norm() / v.norm())


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_leak_over_100_steps(name, every):
    model = network()
    optimizer = OPTIMIZERS[name](model.parameters())
    protection = so.protect(model, optimizer, memory=so.ProductSketch(40), every=every)
    steps(model, optimizer, 5)
    protection.remember([data()])
    assert len(protection.projector.basis) == 40
    start = flat(model)
    steps(model, optimizer, 100 if every == 1 else 98)
    protection.settle()
    assert (flat(model) - start).norm() > 0.1
    assert true_leak(protection, flat(model) - start) < 1e-6
    assert protection.leak < 1e-6
    assert protection.mode == ("gradient" if name == "sgd" and every == 1 else "update")


def test_without_projection_there_is_a_leak():
    """The measure can fail: the same run unprotected, and gradient projection under Adam."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    protection = so.protect(model, optimizer, memory=so.ProductSketch(40))
    protection.remember([data()])
    B = protection.projector.basis.clone()
    protection.detach()
    start = flat(model)

    def project_gradients():
        v = torch.cat([p.grad.flatten() for p in model.parameters()])
        v -= B.T @ (B @ v)
        for p, piece in zip(model.parameters(), v.split([p.numel() for p in model.parameters()]), strict=True):
            p.grad.copy_(piece.view_as(p))

    steps(model, optimizer, 30, before_step=project_gradients)
    v = flat(model) - start
    assert (B @ v).norm() / v.norm() > 0.05


def test_gradient_mode_and_update_mode_give_the_same_weights():
    finals = []
    for force_update in (False, True):
        model = network(torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        protection = so.protect(model, optimizer, memory=so.ProductSketch(30))
        protection.remember([(data()[0].double(), data()[1])])
        if force_update:
            optimizer.param_groups[0]["momentum"] = 1e-300  # no longer plain SGD, with no effect on the numbers
        steps_in_double(model, optimizer)
        assert protection.mode == ("update" if force_update else "gradient")
        finals.append(flat(model))
    assert torch.allclose(*finals, atol=1e-10)


def steps_in_double(model, optimizer, n=20):
    x, y = data(1)
    for _ in range(n):
        optimizer.zero_grad()
        cross_entropy(model(x.double()), y).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("build", "mode"),
    [
        (lambda m: torch.optim.SGD(m.parameters(), lr=0.1), "gradient"),
        (
            lambda m: torch.optim.SGD(
                [{"params": m[0].parameters(), "lr": 0.1}, {"params": m[2].parameters()}], lr=0.2
            ),
            "update",
        ),
        (lambda m: torch.optim.SGD([{"params": m[0].parameters()}, {"params": m[2].parameters()}], lr=0.2), "gradient"),
        (lambda m: torch.optim.SGD(m.parameters(), lr=0.1, weight_decay=1e-4), "update"),
        (lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.5), "update"),
    ],
)
def test_the_mode_follows_the_optimizer_and_groups_do_not_leak(build, mode):
    model = network()
    optimizer = build(model)
    protection = so.protect(model, optimizer, memory=so.ProductSketch(20))
    protection.remember([data()])
    start = flat(model)
    steps(model, optimizer, 30)
    assert protection.mode == mode
    assert true_leak(protection, flat(model) - start) < 1e-6


def test_a_closure_makes_plain_sgd_use_update_mode():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    protection = so.protect(model, optimizer, memory=so.ProductSketch(20))
    protection.remember([data()])
    start, (x, y) = flat(model), data(1)

    def closure():
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(10):
        optimizer.step(closure)
    optimizer.step(closure=closure)
    assert protection.mode == "update"
    assert true_leak(protection, flat(model) - start) < 1e-6


def test_parameters_without_gradients_move_so_that_nothing_leaks():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    protection = so.protect(model, optimizer, memory=so.ProductSketch(20))
    protection.remember([data()])
    start = flat(model)
    optimizer.zero_grad()
    model[2](torch.randn(3, 40)).sum().backward()  # the first layer has no gradient
    optimizer.step()
    assert true_leak(protection, flat(model) - start) < 1e-6


def test_clipping_accumulation_and_a_scheduler():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    protection = so.protect(model, optimizer, memory=so.ProductSketch(20))
    protection.remember([data()])
    start, (x, y) = flat(model), data(1)
    for _ in range(20):
        optimizer.zero_grad()
        for part in (slice(0, 32), slice(32, 64)):
            (cross_entropy(model(x[part]), y[part]) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * 0.5**4)
    assert true_leak(protection, flat(model) - start) < 1e-6


@pytest.mark.parametrize("optimizer_name", ["sgd", "adamw"])
def test_autocast_and_grad_scaler(optimizer_name, device):
    model = network().to(device)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    protection = so.protect(model, optimizer, memory=so.ProductSketch(20))
    protection.remember([data()])
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    start, (x, y) = flat(model), data(1)
    x, y = x.to(device), y.to(device)
    for i in range(12):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = cross_entropy(model(x), y)
        scaler.scale(loss * (float("inf") if i == 5 else 1.0)).backward()  # one step is skipped by the scaler
        scaler.step(optimizer)
        scaler.update()
    assert bool(flat(model).isfinite().all())
    assert true_leak(protection, flat(model) - start) < 1e-6


def test_lazy_projection_lands_where_the_constraint_says():
    """After m plain steps the displacement is (I − BᵀB) of the displacement of m unprotected steps."""
    model, free = network(), network()
    optimizer, plain = (torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, free))
    protection = so.protect(model, optimizer, memory=so.ProductSketch(30), every=7)
    protection.remember([data()])
    start = flat(model)
    steps(model, optimizer, 6)
    steps(free, plain, 6)
    assert torch.equal(flat(model), flat(free))  # nothing has been projected yet
    steps(model, optimizer, 1)
    steps(free, plain, 1)
    v = flat(free) - start
    B = protection.projector.basis
    assert torch.allclose(flat(model) - start, v - B.T @ (B @ v), atol=1e-6)


def test_settling_is_done_by_whoever_uses_the_weights(tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    protection = so.protect(model, optimizer, memory=so.ProductSketch(30), every=10)
    protection.remember([data()])
    for use in [
        protection.settle,
        protection.refresh,
        protection.state_dict,
        lambda: protection.save(tmp_path / "m.safetensors"),
        lambda: protection.settled().__enter__(),
        protection.diagnostics,
    ]:
        start, B = flat(model), protection.projector.basis.clone()
        steps(model, optimizer, 3)
        unsettled = flat(model)
        use()
        v = flat(model) - start
        if use == protection.diagnostics:
            assert torch.equal(flat(model), unsettled)  # looking changes nothing
            protection.settle()
            continue
        assert (B @ v).norm() / v.norm() < 1e-5, use
        assert not torch.equal(flat(model), unsettled)


@pytest.mark.parametrize(
    "memory", [lambda: so.ProductSketch(20), lambda: so.LayerSketch(20), lambda: so.LayerSketch(20, ridge=0.5)]
)
def test_a_preview_shows_what_settling_would_leave_and_changes_nothing(memory):
    def trained(looks):
        torch.manual_seed(0)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        protection = so.protect(model, optimizer, memory=memory(), every=5)
        protection.remember([data()])
        seen = []
        for _ in range(4):
            steps(model, optimizer, 3)
            if looks:
                before, known = flat(model), {k: v for k, v in protection.diagnostics().items() if k != "sketches"}
                with protection.preview():
                    seen.append(flat(model))
                    assert protection.pending == 0
                with pytest.raises(KeyError), protection.preview():
                    raise KeyError
                assert torch.equal(flat(model), before)
                assert {k: v for k, v in protection.diagnostics().items() if k != "sketches"} == known
        return protection, flat(model), seen

    protection, moved, seen = trained(looks=True)
    plain, expected, _ = trained(looks=False)
    assert torch.equal(moved, expected)
    assert protection.pending == plain.pending == 2
    assert not torch.equal(seen[-1], moved)
    plain.settle()
    assert torch.equal(seen[-1], flat(plain.parameters.model))


def test_soft_layer_memory_is_applied_to_the_joint_displacement():
    model, free = network(), network()
    optimizer, plain = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (model, free))
    protection = so.protect(model, optimizer, memory=so.LayerSketch(rank=50, ridge=0.5), every=4)
    protection.remember([data()])
    start = flat(model)
    steps(model, optimizer, 4)
    steps(free, plain, 4)
    expected = projected(protection.projector, flat(free) - start)
    assert torch.allclose(flat(model) - start, expected, atol=1e-6)
    first = flat(model)
    steps(model, optimizer, 3)
    protection.settle()
    assert not torch.equal(flat(model), first)


def test_detach_leaves_no_trace():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    before = {key: dict(value) if isinstance(value, dict) else value for key, value in vars(optimizer).items()}
    state = optimizer.state_dict()
    protection = so.protect(model, optimizer, memory=so.ProductSketch(20))
    protection.remember([data()])
    assert optimizer.state_dict() == state
    protection.detach()
    assert set(vars(optimizer)) == set(before)
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    copy.deepcopy(optimizer)  # no warning any more
    so.protect(model, optimizer, memory=so.ProductSketch(20)).detach()


def test_copies_of_a_protected_optimizer_are_announced():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    protection = so.protect(model, optimizer, memory=so.ProductSketch(20))
    for duplicate in [copy.deepcopy, copy.copy, lambda o: pickle.loads(pickle.dumps(o))]:
        with pytest.warns(so.ProtectionWarning, match="THE COPY IS NOT PROTECTED"):
            found = duplicate(optimizer)
        assert type(found) is torch.optim.Adam
        assert "__reduce_ex__" not in vars(found)
    with pytest.warns(so.ProtectionWarning):
        copy.deepcopy((model, optimizer))
    with pytest.raises(so.ProtectionError, match="state_dict"):
        copy.deepcopy(protection)


def test_another_optimizer_on_protected_parameters_is_announced_once_and_can_be_attached():
    model = network()
    first = torch.optim.SGD(model.parameters(), lr=0.05)
    protection = so.protect(model, first, memory=so.ProductSketch(20))
    protection.remember([data()])
    second = torch.optim.Adam(model.parameters(), lr=0.01)
    with pytest.warns(so.ProtectionWarning, match="not\\s+protected") as caught:
        steps(model, second, 3)
    assert len(caught) == 1
    protection.attach(second)
    start = flat(model)
    steps(model, second, 10)
    assert true_leak(protection, flat(model) - start) < 1e-6
    other = nn.Linear(2, 2)
    unrelated = torch.optim.SGD(other.parameters(), lr=0.1)
    other(torch.randn(3, 2)).sum().backward()
    unrelated.step()  # nothing to say


def test_an_optimizer_that_was_harmless_is_looked_at_again():
    """Looking at every parameter at every step would cost too much; a new protection or a new group is a new case."""
    model, other, late = network(), nn.Linear(2, 2), network()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, late)]
    so.protect(model, optimizers[0], memory=so.ProductSketch(4))
    grows = torch.optim.SGD(other.parameters(), lr=0.1)
    grows.step()
    grows.add_param_group({"params": list(model[2].parameters())})
    with pytest.warns(so.ProtectionWarning, match="NOT"):
        grows.step()
    first = torch.optim.SGD(late.parameters(), lr=0.1)
    first.step()
    so.protect(late, optimizers[1], memory=so.ProductSketch(4))
    with pytest.warns(so.ProtectionWarning, match="NOT"):
        first.step()


def test_ids_of_models_long_gone_do_not_matter():
    for _ in range(30):
        model = network()
        so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=so.ProductSketch(4))
        del model
        gc.collect()


def test_protecting_what_cannot_be_protected():
    model = network()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.raises(so.ProtectionError, match=r"does not hold 2 of the parameters to protect: 2.weight, 2.bias"):
        so.protect(model, optimizer, memory=so.ProductSketch(20))
    first = so.protect(model, optimizer, memory=so.ProductSketch(20), parameters="0")
    with pytest.raises(so.ProtectionError, match="protected already"):
        so.protect(model, optimizer, memory=so.ProductSketch(20), parameters="0")
    first.detach()
    so.protect(model, optimizer, memory=so.ProductSketch(20), parameters="0")


def test_a_basis_in_bfloat16_still_does_not_leak():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    memory = so.GradientMemory(so.ProductSketch(40), basis_dtype="bfloat16", offload="cpu")
    protection = so.protect(model, optimizer, memory=memory)
    protection.remember([data()])
    exact = memory.sketch.basis()
    assert protection.projector.basis.dtype == torch.bfloat16
    v = torch.randn(protection.parameters.p)
    assert protection.projector.leak(projected(protection.projector, v)) < 1e-6  # in one pass
    start = flat(model)
    steps(model, optimizer, 50)
    assert protection.leak < 1e-6
    v = flat(model) - start
    assert (exact @ v).norm() / v.norm() < 0.01  # rounded rows span nearly the same space
    # The basis is its own tensor: it goes on serving while more is observed.
    before = protection.projector.basis.clone()
    protection.observe(*data(3))
    assert torch.equal(protection.projector.basis, before)
    protection.refresh()
    assert not torch.equal(protection.projector.basis, before)
    names = {entry.name: entry for entry in protection.ledger()}
    assert names["basis"].nbytes == 40 * protection.parameters.p * 2
    with pytest.raises(ValueError, match="basis_dtype"):
        so.GradientMemory(so.ProductSketch(4), basis_dtype="int8")


@pytest.mark.gpu
def test_an_offloaded_sketch_is_on_the_host_while_the_model_trains():
    projectors = []
    for offload in (None, "cpu"):
        model = network().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        memory = so.GradientMemory(so.ProductSketch(40), basis_dtype="bfloat16", offload=offload)
        protection = so.protect(model, optimizer, memory=memory)
        for seed in (0, 3):
            protection.remember([data(seed)])
            assert {t.device.type for t in memory.sketch.tensors().values()} == {offload or "cuda"}
            assert protection.projector.basis.is_cuda
        projectors.append(protection.projector)
    v = torch.randn(protection.parameters.p, device="cuda")
    first, second = (projected(projector, v.clone()) for projector in projectors)
    assert torch.allclose(first, second, atol=1e-4)


def test_half_precision_weights_are_projected_as_well_as_they_can_hold():
    model = network(torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    protection = so.protect(model, optimizer, memory=so.ProductSketch(20))
    x, y = data()
    protection.remember([(x.bfloat16(), y)])
    start = flat(model).float()
    for _ in range(10):
        optimizer.zero_grad()
        cross_entropy(model(data(1)[0].bfloat16()).float(), data(1)[1]).backward()
        optimizer.step()
    assert protection.leak < 1e-6
    assert true_leak(protection, flat(model).float() - start) < 0.02


class NumbersRead(TorchDispatchMode):
    """Counts how often a number is read from a tensor, for which a GPU would make the host wait."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("ridge", [0.0, 0.05])
@pytest.mark.parametrize("every", [1, 4])
def test_no_number_is_read_unless_the_leak_is_measured(every, ridge, monkeypatch):
    monkeypatch.setattr(finite, "at_once", lambda t: False)  # as on a GPU
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.LayerNorm(40), nn.Tanh(), nn.Linear(40, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    protection = so.protect(model, optimizer, memory=so.LayerSketch(rank=8, ridge=ridge), every=every)
    protection.remember([data()])
    with NumbersRead() as measured:
        steps(model, optimizer, 2 * every)
    with NumbersRead() as ordinary:
        steps(model, optimizer, every)  # the third projection
    assert measured.count > 0
    assert ordinary.count == 0
