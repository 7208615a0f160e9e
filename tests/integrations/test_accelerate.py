"""accelerate's optimizers and models, and other wrappers, given to `protect` as they are."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sketchogd as so

pytest.importorskip("accelerate", reason="accelerate is not installed: pip install 'sketchogd[transformers]'")
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.utils.data import DataLoader, TensorDataset


@pytest.fixture(autouse=True)
def _fresh_state():
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))


def task(seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(64, 6, generator=g)
    return x, (x @ torch.randn(6, 4, generator=g)).argmax(1)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("mixed", ["no", "bf16"])
def test_prepared_optimizers_are_projected_as_plain_ones_are(mixed, every):
    """With accumulation: the steps that accelerate leaves out are no steps of the protection either."""
    found = []
    for prepared in (True, False):
        accelerator = Accelerator(cpu=True, mixed_precision=mixed, gradient_accumulation_steps=2)
        model, optimizer = net(), None
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        inner, plain = model, optimizer
        loader = DataLoader(TensorDataset(*task(1)), 16)
        if prepared:
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        protection = so.protect(model, optimizer, budget="40KB", every=every)
        protection.remember([task(0)])
        for _ in range(3):
            for i, (x, y) in enumerate(loader):
                if prepared:
                    with accelerator.accumulate(model):
                        accelerator.backward(cross_entropy(model(x), y))
                        optimizer.step()
                        optimizer.zero_grad()
                else:
                    with torch.autocast("cpu", torch.bfloat16, enabled=mixed == "bf16"):
                        out = inner(x)
                    (cross_entropy(out.float(), y) / 2).backward()
                    if i % 2:
                        plain.step()
                        plain.zero_grad()
        assert protection.metrics()["steps"] == 6
        assert protection.metrics()["displacement"] > 0
        found.append(torch.cat([p.detach().flatten() for p in inner.parameters()]))
    if mixed == "no":
        torch.testing.assert_close(found[0], found[1])
    else:  # the first run remembers under autocast too
        torch.testing.assert_close(found[0], found[1], rtol=0.05, atol=5e-3)


def test_attach_takes_a_prepared_optimizer():
    model = net()
    protection = so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), budget="40KB")
    optimizer = Accelerator(cpu=True).prepare(torch.optim.AdamW(model.parameters(), lr=1e-2))
    protection.attach(optimizer)
    assert protection._projection.optimizer is optimizer.optimizer


def test_wrapped_models_are_unwrapped():
    model = net()
    wrapped = nn.DataParallel(torch.compile(model, backend="eager"))
    protection = so.protect(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.1), budget="40KB")
    assert protection.parameters.model is model
