"""The front door: what it accepts, what it refuses with nothing changed, streams without tasks."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sketchogd as so

from . import models


def setup(kind="mlp", memory=None, **options):
    model, x, y = models.make(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    if memory is None and "budget" not in options:
        memory = so.ProductSketch(16)
    return model, optimizer, so.protect(model, optimizer, memory=memory, **options), x, y


def test_exactly_one_of_budget_and_memory():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for options in [{}, {"budget": "1MB", "memory": so.ProductSketch(2)}]:
        with pytest.raises(ValueError, match="exactly one of budget="):
            so.protect(model, optimizer, **options)
    with pytest.raises(TypeError, match="memory is a sketch"):
        so.protect(model, optimizer, memory=200)
    with pytest.raises(ValueError, match="at least 1"):
        so.protect(model, optimizer, memory=so.ProductSketch(2), every=0)
    so.protect(model, optimizer, memory=so.ProductSketch(2))  # nothing was left behind by the failures


def test_nothing_is_projected_before_something_is_remembered():
    model, optimizer, protection, x, y = setup()
    free, _, _ = models.make("mlp")
    plain = torch.optim.Adam(free.parameters(), lr=1e-2)
    for m, o in ((model, optimizer), (free, plain)):
        m.eval()
        for _ in range(3):
            o.zero_grad()
            cross_entropy(m(x), y).backward()
            o.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), free.parameters(), strict=True))
    assert protection.projector is None
    assert protection.mode is None


def test_remember_takes_loaders_mappings_and_a_limit():
    model, _, protection, x, y = setup()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=7)
    protection.remember(loader)
    assert protection.memory.examples == 24
    protection.remember(loader, examples=10)
    assert protection.memory.examples == 34
    protection.remember([{"input": x, "labels": y}])
    assert protection.memory.examples == 58
    with pytest.warns(so.ProtectionWarning, match="nothing"):
        protection.remember([])
    assert protection.memory.examples == 58
    protection.remember(loader.dataset)
    assert protection.memory.examples == 82
    protection.remember([(x, y, y)])  # numbers of tasks, which this model cannot take
    assert protection.memory.examples == 106
    with pytest.raises(TypeError, match="a batch of 3"):
        protection.remember([(x, y, x)])
    assert model.training


def test_a_layer_memory_needs_no_targets():
    _, _, protection, x, _ = setup(memory=so.LayerSketch(rank=8))
    protection.remember([x])
    assert protection.memory.examples == 24
    assert set(protection.projector.layers) == {"0", "3"}


def test_examples_that_leave_no_trace_are_said_aloud():
    _, _, protection, x, y = setup()
    with pytest.warns(so.ProtectionWarning, match=r"4 examples came and left no trace.*NOT PROTECTED"):
        protection.remember([(x[:4], torch.full_like(y[:4], -100))])
    protection.remember([(x[:4], y[:4])])


@pytest.mark.parametrize("bad", [None, 7, lambda: None])
def test_what_cannot_be_iterated_is_no_loader(bad):
    _, _, protection, _, _ = setup()
    with pytest.raises(TypeError, match="remember takes a loader"):
        protection.remember(bad)


def test_devices_that_cannot_keep_a_sketch():
    """On the meta device it has no numbers, and nothing was protected."""
    for bad in ("meta", "gpu", 3, "lazy:0"):
        with pytest.raises(ValueError, match='offload is a device such as "cpu"'):
            so.GradientMemory(so.ProductSketch(4), offload=bad)
    with pytest.raises(ValueError, match="'xpu:9': this machine has no such device"):
        setup(memory=so.GradientMemory(so.ProductSketch(4), offload="xpu:9"))


@pytest.mark.parametrize(
    "memory",
    [lambda: so.ProductSketch(4), lambda: so.LayerMemory(4), lambda: so.LayerMemory(4, curvature="positions")],
    ids=["gradients", "traces", "positions"],
)
def test_remembering_where_gradients_are_off(memory):
    """As after an evaluation, in the same block."""
    _, _, protection, x, y = setup(memory=memory())
    with torch.no_grad():
        protection.remember([(x, y)])
    assert protection.memory.examples == len(x)
    _, _, usual, _, _ = setup(memory=memory())
    usual.remember([(x, y)])
    for (_, a), (_, b) in zip(protection.memory.sketches(), usual.memory.sketches(), strict=True):
        torch.testing.assert_close(a.spectrum()[0], b.spectrum()[0])


def test_streams_refresh_themselves_at_the_next_step():
    model, optimizer, protection, x, y = setup()
    for i in range(3):
        protection.observe(x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8])
        before = torch.cat([p.detach().flatten() for p in model.parameters()]).clone()
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        v = torch.cat([p.detach().flatten() for p in model.parameters()]) - before
        B = protection.projector.basis
        assert len(B) == min(16, 8 * (i + 1))
        assert (B @ v).norm() / v.norm() < 1e-5


@pytest.mark.parametrize("chunk", [1000, 5])
def test_observe_is_all_or_nothing(chunk):
    _model, _, protection, x, y = setup()
    protection.remember([(x, y)])
    protection.memory.signals.chunk = chunk
    before = protection.state_dict()
    bad = x.clone()
    bad[2, 0], bad[17, 3] = math.nan, math.inf
    with pytest.raises(so.NonFiniteError, match="nothing was observed") as caught:
        protection.observe(bad, y)
    assert caught.value.examples == [2, 17]
    after = protection.state_dict()
    assert protection.memory.examples == 24
    assert after["meta"]["sketch"]["counters"] == before["meta"]["sketch"]["counters"]
    assert len(protection.projector.basis) == 16


def test_a_wrong_batch_changes_nothing():
    model, _, protection, x, y = setup()
    protection.remember([(x, y)])
    with pytest.raises(RuntimeError, match="shapes"):
        protection.observe(torch.randn(4, 11), y[:4])
    with pytest.raises(ValueError, match="common first dimension"):
        protection.observe((x, x[:3]), y)
    with pytest.raises(ValueError, match="24 inputs came with 23 targets"):
        protection.observe(x, y[:-1])
    assert protection.memory.examples == 24
    assert model.training


def test_a_model_changed_since_protect_is_noticed():
    model, _, protection, x, y = setup()
    model[3] = nn.Linear(16, 4)
    for use in [lambda: protection.observe(x, y), lambda: protection.remember([(x, y)]), protection.refresh]:
        with pytest.raises(so.ProtectionError, match=r"model changed.*'3.weight' was replaced"):
            use()


def test_heads_left_out_are_free_to_move():
    torch.manual_seed(0)
    model = nn.ModuleDict({"body": nn.Linear(4, 6), "head": nn.Linear(6, 3)})
    model.forward = lambda x: model["head"](model["body"](x).relu())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    protection = so.protect(model, optimizer, memory=so.AllRows(), parameters=so.excluding(model["head"]))
    x, y = torch.randn(40, 4), torch.randint(0, 3, (40,))
    protection.remember([(x, y)])
    body, head = model["body"].weight.detach().clone(), model["head"].weight.detach().clone()
    cross_entropy(model(x), y).backward()
    optimizer.step()
    assert torch.allclose(model["body"].weight, body, atol=1e-5)  # 40 gradients span all of it
    assert not torch.allclose(model["head"].weight, head, atol=1e-3)


def test_compiled_models_are_protected_as_what_they_wrap():
    model, x, y = models.make("mlp")
    compiled = torch.compile(model, backend="eager")
    protection = so.protect(compiled, torch.optim.Adam(compiled.parameters()), memory=so.ProductSketch(8))
    protection.remember([(x, y)])
    assert protection.parameters.names[0] == "0.weight"


@pytest.mark.parametrize(("every", "mean"), [(5, True), (100, False)])
def test_ledger_lists_every_tensor_and_prints(every, mean):
    model, optimizer, protection, x, y = setup(memory=so.LayerSketch(rank=8), every=every)
    protection.remember([(x, y)])
    weights = sum(p.numel() * 4 for p in model.parameters())
    # The anchor, the correction that Adam is given between two pulls, and the mean of corrections in int8 with a
    # scale per row, which Adam's mean gradient needs unless it has forgotten the last correction: 0.9^100 is nothing.
    rounded = sum(p.numel() + 4 * (len(p) if p.ndim > 1 else 1) for p in model.parameters())
    expected = protection.memory.nbytes + 2 * weights + mean * rounded
    for _ in range(every + 2):  # the same before these are computed as after
        ledger = protection.ledger()
        assert ledger.nbytes == expected == sum(e.nbytes for e in ledger)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    assert {"mean_correction" in e.name for e in ledger} == {mean, False}
    text = str(ledger)
    assert "0.inputs.rows" in text
    assert f"{ledger.nbytes:,}" in text
    assert len(text.splitlines()) == len(ledger) + 4
    assert "24 examples" in repr(protection)
    _, _, eager, _, _ = setup()
    assert {e.name for e in eager.ledger()} == {"sketch.rows"}  # one step at a time keeps no copy between steps


def test_diagnostics_are_plain_numbers():
    import json

    _, _, protection, x, y = setup()
    protection.remember([(x, y)])
    found = protection.diagnostics()
    json.dumps(found)
    assert found["examples"] == 24
    assert 0.5 < found["sketch"]["captured"] <= 1.0
    assert 1.0 <= found["sketch"]["stable_rank"] <= 24


@pytest.mark.parametrize("name", ["outputs", "names"])
def test_public_names_are_explicit(name):
    if name == "names":
        assert set(so.__all__) == {n for n in vars(so) if n in so.__all__}
        assert sorted(so.__all__) == so.__all__
    else:
        _, _, protection, x, y = setup(output=so.log_likelihood)
        protection.remember([(x, y)])
        model = protection.parameters.model
        G = so.per_example_gradients(model, x, y, output=so.log_likelihood)
        B = protection.projector.basis
        assert (G - G @ B.T @ B).norm() / G.norm() < 0.5


@pytest.mark.parametrize("batches", [[], iter(()), (batch for batch in ())])
def test_remembering_nothing_is_said_aloud_and_ends_no_task(batches):
    _, _, protection, x, y = setup(memory=so.LayerMemory(8))
    protection.remember([(x, y)])
    known = protection.memory.tasks, protection.memory.weight
    with pytest.warns(so.ProtectionWarning, match="nothing was remembered"):
        protection.remember(batches)
    assert (protection.memory.tasks, protection.memory.weight) == known
    assert protection.projector is not None
