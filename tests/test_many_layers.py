"""What takes time in proportion to the number of layers, and not to its square: counted in calls of functions."""

import sys

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sketchogd as so


def calls_of(operation):
    """How many functions an operation calls, those of C included."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        operation()
    finally:
        sys.setprofile(None)
    return count


def protected(layers, every):
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    protection = so.protect(model, optimizer, memory=so.LayerMemory(2), every=every)
    protection.remember([(torch.randn(2, 2), torch.tensor([0, 1]))])
    cross_entropy(model(torch.randn(2, 2)), torch.tensor([0, 1])).backward()
    optimizer.step()
    return model, optimizer, protection


OPERATIONS = {
    "load": lambda model, optimizer, protection: protection.load_state_dict(protection.state_dict()),
    "step": lambda model, optimizer, protection: optimizer.step(),
    "settle": lambda model, optimizer, protection: protection.settle(),
    "first step": lambda model, optimizer, protection: (protection.attach(optimizer), optimizer.step()),
}


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_five_times_as_many_layers_take_five_times_as_many_calls(name, every):
    small, large = (protected(layers, every) for layers in (20, 100))
    few, many = calls_of(lambda: OPERATIONS[name](*small)), calls_of(lambda: OPERATIONS[name](*large))
    assert many < 5.5 * few
