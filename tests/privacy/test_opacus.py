"""A model trained with Opacus and a private memory: both guarantees hold, and together they compose."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sketchogd as so
from sketchogd.privacy.mechanism import accounting

pytest.importorskip("dp_accounting")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    opacus = pytest.importorskip("opacus")

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_model_trained_by_opacus_is_protected_with_a_guarantee():
    torch.manual_seed(0)
    inputs, targets = torch.randn(1200, 10), torch.randint(0, 3, (1200,))
    data = torch.utils.data.TensorDataset(inputs, targets)
    model = nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = opacus.PrivacyEngine()
    wrapped, private, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=torch.utils.data.DataLoader(data, batch_size=100),
        noise_multiplier=1.5,
        max_grad_norm=1.0,
    )

    def train():
        wrapped.train()
        for x, y in loader:
            private.zero_grad()
            cross_entropy(wrapped(x), y).backward()
            private.step()

    protection = so.protect(model, optimizer, memory=so.LayerMemory(12), privacy=so.Privacy(8.0, 1e-5))
    train()
    # The engine's hooks keep what a layer was given until they have seen its gradient: they rest while we look.
    wrapped.disable_hooks()
    protection.remember([(inputs, targets)])
    wrapped.enable_hooks()
    spent = engine.get_epsilon(1e-5)
    before = {name: t.detach().clone() for name, t in model.named_parameters()}
    steps = protection.diagnostics()["steps"]
    train()
    assert protection.diagnostics()["steps"] > steps  # steps of the private optimizer are projected as well
    assert any(not torch.equal(before[name], t) for name, t in model.named_parameters())
    assert engine.get_epsilon(1e-5) > spent
    assert protection.privacy.epsilon <= 8.0
    # Training and memory saw the same examples: ε and δ add up, which any composition theorem only improves.
    together = engine.get_epsilon(1e-5) + protection.privacy.epsilon
    assert spent < together < float("inf")
    assert accounting.epsilon_of(list(protection.privacy.groups[0]), 1e-5) == protection.privacy.epsilon
