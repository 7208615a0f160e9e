"""Changes of outputs are measured against their spread, and `forgetting` predicts them in that unit."""

import pytest
import torch
from torch import nn

import sketchogd as so
from sketchogd.memory.curvature.spread import empty, energy, moments_of


def protected(scale=1.0, rule=None, every=1, outputs=3):
    """A linear model whose outputs are multiplied by `scale`, protected on 40 examples."""
    torch.manual_seed(0)
    model = nn.Linear(6, outputs).double()
    x = torch.randn(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for t in model.parameters():
            t *= scale
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    memory = so.LayerMemory(20, rule=rule or so.Pull(damping=0.0))
    protection = so.protect(model, optimizer, memory=memory, every=every)
    return model, optimizer, protection, x


def relative_change(before, after):
    """Of logits (n, C): the root of Σ Δ² over Σ (z − z̄)², written out."""
    z = before - before.mean(1, keepdim=True) if before.shape[1] > 1 else before - before.mean()
    return float(((after - before).square().sum() / z.square().sum()).sqrt())


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("scale", [0.01, 1.0, 1000.0])
def test_forgetting_is_the_relative_change_of_outputs(scale, outputs):
    model, optimizer, protection, x = protected(scale, outputs=outputs)
    assert protection.forgetting() is None
    protection.remember([(x[:25], None), (x[25:], None)])
    assert protection.forgetting() == 0.0
    before = model(x).detach()
    planned = {name: t + scale * torch.randn_like(t) for name, t in model.state_dict().items()}
    said = protection.forgetting(planned)
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.ones(1, 6, dtype=torch.float64)).sum() * scale).backward()
        optimizer.step()
    assert protection.forgetting() == pytest.approx(relative_change(before, model(x).detach()), rel=1e-6)
    assert protection.forgetting() > 1e-6
    assert protection.diagnostics()["forgetting_estimate"] == protection.forgetting()
    assert protection.forgetting(planned) == pytest.approx(said)
    model.load_state_dict(planned)
    assert said == pytest.approx(relative_change(before, model(x).detach()), rel=1e-6)


def test_forgetting_names_weights_that_are_missing():
    model, _, protection, x = protected()
    protection.remember([(x, None)])
    with pytest.raises(ValueError, match="'bias'"):
        protection.forgetting({"weight": model.weight})


def test_forgetting_is_none_where_nothing_is_pulled():
    _, _, protection, x = protected(rule=so.Project())
    protection.remember([(x, None)])
    assert protection.forgetting() is None


def test_one_strength_does_the_same_to_outputs_of_any_scale():
    """Outputs a hundred times as large, and a loss of them that is the same: so are the changes."""
    found = []
    for scale in (1.0, 100.0):
        model, optimizer, protection, x = protected(scale)
        optimizer.param_groups[0]["lr"] *= (
            scale**2
        )  # the same path: ∂loss/∂w is 1/scale, weights are scale times as large
        protection.remember([(x, None)])
        before = model(x).detach()
        for _ in range(50):
            optimizer.zero_grad()
            (model(torch.ones(1, 6, dtype=torch.float64)) / scale - 2).square().sum().backward()
            optimizer.step()
        found.append(relative_change(before, model(x).detach()))
    assert found[0] > 0.01
    assert found[0] == pytest.approx(found[1], rel=1e-9)


def test_outputs_without_spread_have_a_unit_all_the_same():
    model, optimizer, protection, x = protected(0.0)
    protection.remember([(x, None)])
    model(x).sum().backward()
    optimizer.step()
    assert all(bool(t.isfinite().all()) for t in model.parameters())
    assert protection.forgetting() > 0


def test_the_spread_is_kept_counted_merged_and_stored(tmp_path):
    first, second = protected()[2], protected()[2]
    x = protected()[3]
    model = first.parameters.model
    first.remember([(x[:10], None)])
    second.remember([(x[10:], None)])
    kept = {item.name: item for item in first.held()}
    assert kept["outputs.spread"].nbytes == 24
    first.save(tmp_path / "first.safetensors")
    loaded = protected()[2]
    loaded.load(tmp_path / "first.safetensors")
    assert torch.equal(loaded.memory.spread, first.memory.spread)
    first.merge(second)
    z = model(x).detach()
    assert energy(first.memory.spread) == pytest.approx(float((z - z.mean(1, keepdim=True)).square().sum()))


def test_moments_add_up():
    z = torch.randn(30, 1, generator=torch.Generator().manual_seed(0)) + 300  # one output: about the mean of all
    total = empty(z.device) + moments_of(z[:11]) + moments_of(z[11:])
    assert energy(total) == pytest.approx(float((z.double() - z.double().mean()).square().sum()))
    assert energy(empty(z.device)) == 0.0
