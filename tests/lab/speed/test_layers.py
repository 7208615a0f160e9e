"""The measurements of layer memory run and say what they measured; how fast this machine is, is not tested."""

import math

import torch
from torch import nn

from sketchogd.lab.speed import layers

TINY = layers.Case(
    "tiny",
    lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(64, 10)),
    lambda b: torch.randn(b, 1, 6, 6),
    batch=4,
    remembered=(8, 6),
    most=1.25,
    slow=True,
)


def test_every_ratio_is_measured(monkeypatch):
    monkeypatch.setattr(layers, "CASES", (TINY, TINY))
    monkeypatch.setattr(layers, "SECONDS", 0.0)
    ratios = layers.measure("cpu", quick=False)
    assert [ratio.name.removeprefix("layer memory: ") for ratio in ratios[:3]] == [
        "step, tiny, SGD",
        "step, tiny, AdamW",
        "remembering, tiny",
    ]
    assert len(ratios) == 6
    assert len(layers.measure("cpu", quick=True)) == 3
    assert all(math.isfinite(ratio.value) and ratio.value > 0 and not ratio.at_least for ratio in ratios)


def test_a_cycle_is_a_copy_ordinary_steps_and_one_projection(monkeypatch):
    """One step begins with a copy (3 s), 49 are ordinary (10 in 20 s, unprotected in 10 s), a projection takes 10 s."""
    took = {"unprotected first": 9.0, "unprotected": 10.0, "first": 3.0, "others": 20.0, "settle": 10.0}
    monkeypatch.setattr(layers, "fastest", lambda turns, device, **limits: {name: took[name] for name in turns})
    assert layers.step_ratio(TINY, layers.OPTIMIZERS["SGD"], "cpu", whole=True) == 111 / 50
    monkeypatch.setattr(layers, "once", lambda work, device: 4.0)  # passes that the protection does not change
    assert layers.step_ratio(TINY, layers.OPTIMIZERS["SGD"], "cpu", whole=False) == 311 / 250


def test_the_networks_are_those_that_the_targets_name():
    with torch.no_grad():
        for case, p in zip(layers.CASES, (113_610, 11_173_962, 3_433_994), strict=True):
            model = case.build()
            assert sum(t.numel() for t in model.parameters()) == p
            assert model(case.examples(2, "cpu")[0]).shape == (2, 10)
