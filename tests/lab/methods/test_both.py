"""Both memories together: the projector against dense matrices, training against a literal loop, and the state."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sketchogd as so
from sketchogd.errors import NonFiniteError, StorageError
from sketchogd.lab.methods import KINDS, Setup, build, method
from sketchogd.lab.methods.both import Both, BothProjector
from sketchogd.lab.runs.config import RunConfig
from sketchogd.lab.runs.sidebyside import partition
from sketchogd.paper import presets
from sketchogd.projector import Projector

LAYERS = {"curvature": "positions", "rank": 4, "strength": 2.0, "seed": 1}


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def data(seed: int = 0, n: int = 25) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=g, dtype=torch.float64), torch.randint(0, 3, (n,), generator=g)


def make(rank: int = 7, **layers: object) -> Both:
    return Both(so.LayerSketch(**{**LAYERS, **layers}), so.GradientMemory(so.ProductSketch(rank, seed=2)))


def bound(memory: so.Memory, model: nn.Module, tasks: int = 2) -> so.Memory:
    memory.bind(so.ProtectedParameters(model), None)
    for t in range(tasks):
        memory.observe(*data(t))
        memory.end_task()
    return memory


def dense(projector: Projector, p: int, travelled: float) -> Tensor:
    """The matrix that `protected_part_` multiplies by."""
    return torch.stack([projector.protected_part_(e.clone(), travelled) for e in torch.eye(p, dtype=torch.float64)]).T


def alone(model: nn.Module, travelled: float, **layers: object) -> tuple[Tensor, Tensor]:
    """A of a layer memory and P of a gradient sketch, each by itself, as matrices (p, p)."""
    A = bound(so.LayerSketch(**{**LAYERS, **layers}), model).projector()
    B = bound(so.GradientMemory(so.ProductSketch(7, seed=2)), model).projector().basis
    p = B.shape[1]
    return dense(A, p, travelled), B.T @ B


@pytest.mark.parametrize("layers", [{}, {"ridge": 0.1, "strength": None}])
def test_the_projector_is_the_product_of_two(layers: dict) -> None:
    model = net()
    projector = bound(make(**layers), model).projector()
    assert isinstance(projector, BothProjector)
    assert (projector.anchor is None) == bool(layers)
    assert not projector.hard
    assert not projector.empty
    A, P = alone(model, 0.7, **layers)
    eye = torch.eye(len(A), dtype=torch.float64)
    wanted = eye - (eye - P) @ (eye - A)
    found = dense(projector, len(A), 0.7)
    torch.testing.assert_close(found, wanted, atol=1e-9, rtol=0)
    other_order = eye - (eye - A) @ (eye - P)
    assert (found - other_order).norm() > 1e-3, "the two orders differ here, so the test can tell them apart"
    assert (P @ (eye - found)).norm() < 1e-9, "nothing of the sketched gradients is left"
    assert (A - found).norm() > 0.1


def test_an_empty_memory_protects_nothing() -> None:
    memory = make()
    memory.bind(so.ProtectedParameters(net()), None)
    assert memory.projector().empty


@pytest.mark.parametrize("every", [1, 3])
def test_training_is_that_of_a_literal_loop(every: int) -> None:
    def gradient_step(model: nn.Module, i: int) -> None:
        x, y = data(10 + i)
        for parameter, gradient in zip(
            model.parameters(),
            torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters())),
            strict=True,
        ):
            parameter.grad = gradient

    lr = 0.1
    model, twin = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    protection = so.protect(model, optimizer, memory=make(), every=every)
    for t in range(2):
        protection.remember([data(t)])
    A, P = alone(twin, every * lr)
    eye = torch.eye(len(A), dtype=torch.float64)
    anchor = torch.nn.utils.parameters_to_vector(twin.parameters()).detach().clone()
    plain = torch.optim.SGD(twin.parameters(), lr=lr)
    for i in range(9):
        gradient_step(model, i)
        optimizer.step()
        gradient_step(twin, i)
        plain.step()
        if (i + 1) % every == 0:
            v = torch.nn.utils.parameters_to_vector(twin.parameters()).detach() - anchor
            torch.nn.utils.vector_to_parameters(anchor + (eye - P) @ (eye - A) @ v, twin.parameters())
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=0)
    assert (torch.nn.utils.parameters_to_vector(model.parameters()) - anchor).norm() > 1e-2


def test_bytes_are_counted_and_named() -> None:
    model = net()
    memory = bound(make(), model)
    memory.projector()
    assert 0 < memory.nbytes <= memory.cost(memory.parameters)
    inner = memory.layers.nbytes + memory.gradients.nbytes
    assert memory.nbytes == inner
    names = [item.name for item in memory.held()]
    assert len(set(names)) == len(names)
    assert {name.split(".")[0] for name in names} == {"layers", "gradients"}
    assert [name for name, _ in memory.sketches()][-1] == "gradients.sketch"
    assert memory.diagnostics()["memory"] == "both"
    assert memory.examples == 50


def test_a_file_brings_everything_back(tmp_path) -> None:
    model, other = net(), net()
    first = so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=make())
    first.remember([data(0)])
    first.save(tmp_path / "memory.safetensors")
    second = so.protect(other, torch.optim.SGD(other.parameters(), lr=0.1), memory=make())
    second.load(tmp_path / "memory.safetensors")
    assert second.memory.examples == 25
    for protection in (first, second):
        protection.remember([data(1)])
    assert second.memory.examples == 50
    p = first.parameters.p
    assert torch.equal(dense(first.projector, p, 1.0), dense(second.projector, p, 1.0))


def test_a_state_of_other_settings_changes_nothing() -> None:
    model = net()
    state = bound(make(), model).state_dict()
    for other in (make(rank=5), make(strength=9.0)):
        bound(other, model, tasks=1)
        before = {name: t.clone() for name, t in other.state_dict()["tensors"].items()}
        with pytest.raises(StorageError):
            other.load_state_dict(state)
        assert other.examples == 25
        assert all(torch.equal(t, before[name]) for name, t in other.state_dict()["tensors"].items())
    with pytest.raises(ValueError, match="cannot be merged"):
        bound(make(), model).merge(bound(make(), model))


@pytest.mark.parametrize("fault", ["input", "gradient"])
def test_a_batch_that_is_not_finite_is_not_observed_by_either(fault: str) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)).double()
    memory = bound(make(), model, tasks=1)
    before = {name: t.clone() for name, t in memory.state_dict()["tensors"].items()}
    x, y = data(1)
    if fault == "input":
        x[3, 0] = torch.nan
    else:
        # Inputs and sensitivities of the layers are finite, their products are not.
        x[3] *= 1e160
        with torch.no_grad():
            model[1].weight *= 1e160
        twin = so.LayerSketch(**LAYERS)
        twin.bind(so.ProtectedParameters(model), None)
        twin.observe(x, y)
    with pytest.raises(NonFiniteError):
        memory.observe(x, y)
    assert (memory.examples, memory.layers.examples, memory.gradients.examples) == (25, 25, 25)
    assert all(torch.equal(t, before[name]) for name, t in memory.state_dict()["tensors"].items())


def test_the_method_has_the_memory_that_its_options_say() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = Setup(model, optimizer, lambda x, y, group: cross_entropy(model(x), y), 2, 56)
    memory = build(method("both", rank=9, layer_rank=5, strength=0.5, damping=0.25), given).protection.memory
    assert isinstance(memory, Both)
    assert (memory.layers.rank, memory.layers.rule.strength, memory.layers.rule.damping) == (5, 0.5, 0.25)
    assert memory.gradients.sketch.rank == 9
    model = net()
    given = Setup(model, torch.optim.SGD(model.parameters(), lr=0.1), given.loss, 2, 56)
    usual, plain = build(method("both"), given).protection.memory, so.LayerSketch(200, curvature="positions")
    assert (usual.layers.rule.strength, usual.layers.rule.damping) == (plain.rule.strength, plain.rule.damping)
    assert KINDS["both"].options == {"rank": 300, "layer_rank": 200, "strength": None, "damping": None}
    with pytest.raises(ValueError, match="budget"):
        build(method("both", budget=10**6), given)


def test_groups_count_its_bytes_and_equal_bytes_leaves_it_out() -> None:
    runs = [RunConfig("rotated-mnist", method("both"), seed=seed) for seed in (0, 1)]
    one = 4 * 113_610 * 300 + (32 << 20)
    assert partition.groups(runs, 8, room=2 * one) == [runs]
    assert partition.groups(runs, 8, room=2 * one - 1) == [[run] for run in runs]
    assert "both" not in {run.method.name for run in presets.equal_bytes(seeds=1).runs}
