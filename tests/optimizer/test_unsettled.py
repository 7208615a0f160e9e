"""Weights that are used while steps wait, and training with nothing remembered, are warned of once, at no cost."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sketchogd as so
from sketchogd.optimizer import hooks


def data():
    g = torch.Generator().manual_seed(0)
    return torch.randn(16, 6, generator=g), torch.randint(0, 3, (16,), generator=g)


def waiting(every=10, steps=3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    protection = so.protect(model, optimizer, memory=so.ProductSketch(10), every=every)
    protection.remember([data()])
    train(model, optimizer, steps)
    return model, optimizer, protection


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(data()[0]), data()[1]).backward()
        optimizer.step()


def evaluate(model):
    with torch.no_grad():
        model(data()[0])


USES = {
    "no_grad": evaluate,
    "eval": lambda model: model.eval()(data()[0]),
    "state_dict": lambda model: model.state_dict(),
    "pickle": pickle.dumps,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("use", USES)
def test_weights_used_while_steps_wait_are_warned_of_once(use):
    model, _, _ = waiting()
    with pytest.warns(so.ProtectionWarning, match=r"NOT YET PROTECTED.*settled\(\)"):
        USES[use](model)
    USES[use](model)  # warnings are errors


@pytest.mark.parametrize("use", USES)
def test_settled_weights_are_not(use):
    model, optimizer, protection = waiting()
    with protection.preview():
        USES[use](model)
    model.train()
    with protection.settled():
        USES[use](model)
    model.train()
    train(model, optimizer, 10)
    assert protection.pending == 0
    USES[use](model)


def test_a_copy_of_a_model_with_waiting_steps_works_and_says_nothing_more():
    model, _, _ = waiting()
    with pytest.warns(so.ProtectionWarning, match="copied or pickled"):
        copied = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(copied.eval()(data()[0]), model(data()[0]))
    copied.state_dict()


def test_no_hook_is_on_the_model_unless_steps_have_waited():
    model, _, protection = waiting(every=1)
    assert not model._forward_pre_hooks
    protection.detach()
    model, _, protection = waiting()
    assert model._forward_pre_hooks
    protection.detach()
    assert not model._forward_pre_hooks
    assert not model._state_dict_pre_hooks


def test_training_in_eval_mode_is_no_evaluation():
    """As with frozen statistics: only a call without gradients is one."""
    model, optimizer, protection = waiting(steps=10)
    model.eval()
    train(model, optimizer, 5)
    assert protection.pending == 5
    with pytest.warns(so.ProtectionWarning, match="is evaluated"):
        evaluate(model)


def test_long_training_with_nothing_remembered_is_said_once(monkeypatch):
    monkeypatch.setattr(hooks, "LONG", 5)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    so.protect(model, optimizer, memory=so.ProductSketch(10))
    train(model, optimizer, 4)
    with pytest.warns(so.ProtectionWarning, match="5 steps were taken and nothing is remembered"):
        train(model, optimizer, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, optimizer, 10)
