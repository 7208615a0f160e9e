import pytest
import torch
from torch import nn

import sketchogd as so
from sketchogd.budget import memory_for, parse_bytes
from sketchogd.lab.models import mlp
from sketchogd.parameters import ProtectedParameters

from . import models


@pytest.mark.parametrize("bad", ["", "2 apples", "-3MB", 0, -1, 2.5, True, None, "MB"])
def test_budgets_that_are_none(bad):
    with pytest.raises(ValueError, match="2MB"):
        parse_bytes(bad)


@pytest.mark.parametrize("budget", [300_000, "1MB", "2MB", "20MB", "1GB"])
def test_a_budget_is_kept_and_used(budget):
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    protection = so.protect(model, optimizer, budget=budget)
    x, y = torch.randn(600, 1024), torch.randint(0, 10, (600,))
    protection.remember([(x, y)])
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[:10]), y[:10]).backward()
        optimizer.step()
    used = protection.ledger().nbytes
    assert used <= parse_bytes(budget)
    full = so.LayerSketch(rank=1025).cost(protection.parameters)
    assert used > 0.9 * min(parse_bytes(budget), full)
    assert isinstance(protection.memory, so.LayerSketch)


@pytest.mark.filterwarnings("ignore:torch.func cannot")
@pytest.mark.parametrize("kind", models.MODELS)
def test_a_budget_fits_every_model(kind):
    model, x, y = models.make(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parameters = ProtectedParameters(model)
    budget = 60 * parameters.p
    protection = so.protect(model, optimizer, budget=budget)
    protection.remember([(x, y)])
    assert protection.ledger().nbytes <= budget
    # A recurrent cell is no layer, and most of that model's parameters are in one.
    assert isinstance(protection.memory, so.GradientMemory if kind == "gru" else so.LayerSketch)


def test_a_model_without_layers_gets_a_gradient_memory():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(300))

        def forward(self, x):
            return (x * self.scale).view(len(x), 3, 100).sum(2)

    model = Scale()
    protection = so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), budget="20KB")
    protection.remember([(torch.randn(8, 300), torch.zeros(8, dtype=torch.long))])
    assert isinstance(protection.memory, so.GradientMemory)
    assert protection.memory.nbytes <= 20_000


def test_copies_are_counted_when_steps_are_projected_together():
    model = mlp()
    weights = 4 * 113_610
    parameters = ProtectedParameters(model)
    anchored = memory_for(1_000_000, parameters, 1, 0).memory
    assert anchored.rank == memory_for(1_000_000, parameters, 50, 0).memory.rank
    assert (
        anchored.cost(parameters) + weights <= 1_000_000 < type(anchored)(anchored.rank + 1).cost(parameters) + weights
    )
    # where the copy does not fit, a memory without an anchor is what there is room for
    small = memory_for(300_000, parameters, 1, 0).memory
    assert (small.ridge, small.energy, small.outputs) == (0.0, 0.95, False)
    assert small.cost(parameters) <= 300_000
    assert "Inputs only" in memory_for(300_000, parameters, 1, 0).reason
    assert "Inputs only" not in memory_for(1_000_000, parameters, 1, 0).reason
    with pytest.raises(ValueError, match="copy of the weights"):
        memory_for(300_000, parameters, 50, 0)


def test_a_budget_that_is_too_small_says_how_much_is_needed():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"takes ([\d,]+) bytes") as caught:
        so.protect(model, optimizer, budget="1KB")
    needed = int(str(caught.value).split("takes ")[1].split(" bytes")[0].replace(",", ""))
    with pytest.raises(ValueError, match="too small"):
        so.protect(model, optimizer, budget=needed - 1)
    so.protect(model, optimizer, budget=needed).detach()
    with pytest.raises(ValueError, match="copy of the weights"):
        so.protect(model, optimizer, budget="1KB", every=50)
