"""Nothing that weakens protection is silent: shared memories, other weights, newcomers, inner modules."""

import copy
import warnings

import pytest
import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy

import sketchogd as so


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def data():
    g = torch.Generator().manual_seed(0)
    return torch.randn(16, 6, generator=g), torch.randint(0, 3, (16,), generator=g)


def protected(model, memory=None, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return optimizer, so.protect(model, optimizer, memory=memory or so.LayerMemory(6), **options)


def step(model, optimizer):
    optimizer.zero_grad()
    cross_entropy(model(data()[0]), data()[1]).backward()
    optimizer.step()


MEMORIES = {
    "layers": lambda: so.LayerMemory(6),
    "gradients": lambda: so.GradientMemory(so.ProductSketch(4)),
    "blocks": lambda: so.GradientMemory(so.ProductSketch(4), blocks=2),
}


@pytest.mark.parametrize("name", MEMORIES)
def test_one_memory_cannot_serve_two_protections(name):
    memory = MEMORIES[name]()
    _, first = protected(network(), memory)
    first.remember([data()])
    before = {item.name: item.tensor.clone() for item in first.held()}
    with pytest.raises(so.ProtectionError, match="belongs to a protection already"):
        protected(network(), memory)
    assert all(torch.equal(item.tensor, before[item.name]) for item in first.held())


@pytest.mark.parametrize("name", MEMORIES)
def test_a_memory_beside_other_weights_is_said_at_the_first_use(name, tmp_path):
    model = network()
    optimizer, protection = protected(model, MEMORIES[name]())
    step(model, optimizer)
    protection.remember([data()])
    protection.save(tmp_path / "memory.safetensors")
    weights = copy.deepcopy(model.state_dict())
    for change, wrong in (
        (lambda t: t, False),
        (lambda t: t.bfloat16().float(), False),
        (lambda t: t.half().float(), False),
        (lambda t: 1.02 * t, True),
        (lambda t: torch.randn(t.shape), True),
    ):
        other = network(1)
        its_optimizer, loaded = protected(other, MEMORIES[name]())
        loaded.load(tmp_path / "memory.safetensors")
        other.load_state_dict({key: change(t) for key, t in weights.items()})  # the order does not matter
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            step(other, its_optimizer)
            step(other, its_optimizer)
        assert [("saved beside" in str(w.message)) for w in told] == [True] * wrong


def test_a_memory_merged_beside_other_weights_is_said(tmp_path):
    _, first = protected(network())
    _, same = protected(network())
    _, other = protected(network(1))
    for protection in (first, same, other):
        protection.remember([data()])
    first.merge(same)
    other.save(tmp_path / "other.safetensors")
    with pytest.warns(so.ProtectionWarning, match="saved beside"):
        first.merge(other)
    with pytest.warns(so.ProtectionWarning, match="saved beside"):
        same.merge(tmp_path / "other.safetensors")


def test_parameters_that_join_the_model_are_said_once():
    model = network()
    _, protection = protected(model)
    protection.remember([data()])
    model.append(nn.Linear(3, 3))
    with pytest.warns(so.ProtectionWarning, match=r"NOT PROTECTED: 3\.weight, 3\.bias"):
        protection.remember([data()])
    protection.remember([data()])


def test_parameters_that_join_the_optimizer_are_said_at_the_next_step():
    model = network()
    optimizer, protection = protected(model)
    protection.remember([data()])
    step(model, optimizer)
    model.append(nn.Linear(3, 3))
    optimizer.add_param_group({"params": model[3].parameters()})
    with pytest.warns(so.ProtectionWarning, match=r"NOT PROTECTED: 3\.weight, 3\.bias.*adopt"):
        step(model, optimizer)
    step(model, optimizer)
    protection.remember([data()])


def test_a_model_that_is_adopted_is_not_said():
    model = network()
    optimizer, protection = protected(model)
    protection.remember([data()])
    step(model, optimizer)
    model.append(nn.Linear(3, 3))
    optimizer.add_param_group({"params": model[3].parameters()})
    protection.adopt(model)
    step(model, optimizer)


@pytest.mark.parametrize(
    "use",
    [
        lambda protection, path: protection.save(path),
        lambda protection, path: protection.state_dict(),
        lambda protection, path: protection.forgetting(),
        lambda protection, path: protection.diagnostics(),
        lambda protection, path: protection.projector,
    ],
)
def test_a_state_beside_other_weights_is_said_by_what_uses_these(use, tmp_path):
    """Also where it did not come from a file, and before a step: a file saved then would not know of it."""
    _, protection = protected(network())
    protection.remember([data()])
    state = protection.state_dict()
    _, loaded = protected(network(1))
    loaded.load_state_dict(state)
    with pytest.warns(so.ProtectionWarning, match="saved beside"):
        use(loaded, tmp_path / "m")
    use(loaded, tmp_path / "m")


def test_what_was_left_out_on_purpose_is_not_said():
    model = network()
    _, protection = protected(model, parameters=["0", "!2"])
    model.append(nn.Linear(3, 3))
    protection.remember([data()])
    model[2].requires_grad_(False).requires_grad_(True)
    protection.remember([data()])


def test_an_unfrozen_layer_is_said():
    model = network()
    model[0].requires_grad_(False)
    _, protection = protected(model)
    model[0].requires_grad_(True)
    with pytest.warns(so.ProtectionWarning, match=r"0\.weight, 0\.bias"):
        protection.remember([data()])


def test_an_inner_module_among_several_processes_is_said(monkeypatch):
    protected(network())
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 1)
    protected(network())
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    with pytest.warns(so.ProtectionWarning, match="pass the wrapped model"):
        protected(network())
