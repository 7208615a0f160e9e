"""The paper's networks: sizes, names, heads, seeds."""

import fnmatch

import pytest
import torch
from torch import nn

from sketchogd.lab import models


def count(parameters: dict[str, torch.Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters.values())


def test_the_mlp_is_the_papers() -> None:
    model = models.mlp()
    assert count(dict(model.named_parameters())) == 113_610
    assert [tuple(p.shape) for p in model.parameters()] == [(100, 1024), (100,), (100, 100), (100,), (10, 100), (10,)]
    x = torch.randn(3, 1, 32, 32)
    w = dict(model.named_parameters())
    h = (x.flatten(1) @ w["linear1.weight"].T + w["linear1.bias"]).clamp(min=0)
    h = (h @ w["linear2.weight"].T + w["linear2.bias"]).clamp(min=0)
    torch.testing.assert_close(model(x), h @ w["linear3.weight"].T + w["linear3.bias"])
    assert models.mlp(12, (5,), 2)(torch.randn(4, 3, 2, 2)).shape == (4, 2)
    assert models.mlp(12, (), 2)(torch.randn(4, 12)).shape == (4, 2)


def test_the_lenet_is_the_papers() -> None:
    model = models.LeNet(heads=20)
    named = dict(model.named_parameters())
    protected = {name: p for name, p in named.items() if fnmatch.fnmatch(name, models.LeNet.PROTECTED)}
    assert sorted(protected) == ["wide.bias", "wide.weight", "wide_norm.bias", "wide_norm.weight"]
    assert count(protected) == 1_601_500
    heads = {name: p for name, p in named.items() if name.startswith("heads.")}
    assert count(heads) == 20 * (500 * 5 + 5)
    # Two convolutions with biases and their normalisations.
    rest = count(named) - count(protected) - count(heads)
    assert rest == (20 * 3 * 25 + 20 + 40) + (50 * 20 * 25 + 50 + 100)


def test_the_lenet_computes_what_its_docstring_says() -> None:
    model = models.LeNet(heads=2, seed=1).train()  # batch statistics, so that the order of norm and ReLU shows
    layers = nn.Sequential(
        model.conv1, model.conv1_norm, nn.ReLU(), nn.MaxPool2d(2),
        model.conv2, model.conv2_norm, nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), model.wide, model.wide_norm, nn.ReLU(), model.heads[1],
    )  # fmt: skip
    x = torch.randn(3, 3, 32, 32)
    model.use_head(1)
    assert torch.equal(model(x), layers(x))
    assert model(x).shape == (3, 5)


def test_the_active_head_alone_is_used_and_trained() -> None:
    model = models.LeNet(heads=3, classes_per_head=4)
    x = torch.randn(2, 3, 32, 32)
    model.eval()
    outputs = []
    for head in range(3):
        model.use_head(head)
        outputs.append(model(x))
    assert not torch.equal(outputs[0], outputs[1])
    model.use_head(2)
    model(x).sum().backward()
    assert [head.weight.grad is not None for head in model.heads] == [False, False, True]
    for bad in (3, -1):
        with pytest.raises(IndexError, match="heads 0 to 2"):
            model.use_head(bad)
    assert model.head == 2
    with pytest.raises(ValueError, match="at least one head"):
        models.LeNet(heads=0)


@pytest.mark.parametrize("build", [models.mlp, lambda seed: models.LeNet(2, seed=seed)])
def test_seeds_decide_the_weights_and_nothing_else_changes(build) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = build(seed=1).state_dict()
    torch.rand(3)
    second, other = build(seed=1).state_dict(), build(seed=2).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)
    torch.set_rng_state(before)
    build(seed=1)
    assert torch.equal(torch.get_rng_state(), before)
