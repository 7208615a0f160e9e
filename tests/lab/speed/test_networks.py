"""The measurements of networks run and say what they measured; how fast this machine is, is not tested."""

import math

import pytest
import torch
from torch import nn

from sketchogd.lab.speed import networks

TINY = networks.Case(
    "tiny",
    lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 10)),
    networks.images(2),
    networks.adamw,
    (4, 4),
    (10, 1),
)


@pytest.fixture(autouse=True)
def roomy(monkeypatch):
    """So small a model does not fit into a quarter of its size."""
    monkeypatch.setattr(networks, "BUDGET", "400%")


def test_every_ratio_is_measured(monkeypatch):
    def broken():
        raise ValueError("no such network")

    cases = (TINY, networks.Case("broken", broken, networks.images(2), networks.momentum, (4, 4)))
    monkeypatch.setattr(networks, "CASES", cases)
    monkeypatch.setattr(networks, "resnet18", TINY.build)
    monkeypatch.setattr(networks.importlib.util, "find_spec", lambda name: True)
    ratios = networks.measure("cpu", quick=False)
    wanted = {
        "tiny: remembering": networks.REMEMBER,
        "tiny: a refresh, once per task": None,
        "tiny: a step, every=10": networks.STEPS["cpu"],
        "tiny: a step, every=1": networks.EVERY_STEP,
    }
    assert {ratio.name: ratio.target for ratio in ratios[:-1]} == wanted
    assert all(math.isfinite(ratio.value) and ratio.value > 0 and not ratio.at_least for ratio in ratios[:-1])
    assert "10 backward passes on 4 examples" in ratios[0].unit_note
    assert ratios[-1].unit_note == "failed: ValueError: no such network"
    assert len(networks.measure("cpu", quick=True)) == 4


@pytest.mark.parametrize(("shape", "passes"), [((5, 10), 10), ((5, 11), 8), ((5, 17), 8), ((5, 7, 1000), 8)])
def test_the_passes_needed_do_not_grow_with_the_outputs(shape, passes):
    assert networks.passes_needed(None, torch.zeros(shape)) == passes


def test_a_step_is_measured_over_whole_cycles(monkeypatch):
    """Ten unprotected steps take 10 s, protected ones 13 s, and the passes of each 4 s."""
    monkeypatch.setattr(networks, "fastest", lambda things, device, **limits: {"free": 10.0, "kept": 13.0})
    monkeypatch.setattr(networks, "once", lambda work, device: 4.0)
    assert networks.step_ratio(TINY, torch.device("cpu"), 10) == 53 / 50
