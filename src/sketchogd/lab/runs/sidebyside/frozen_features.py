"""Frozen convolutions: after the first step they are fixed functions, so each task's features are computed once.

This is how Split CIFAR-100 is trained in the paper: see `Training.eval_after_first_step`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sketchogd.lab import models
from sketchogd.lab.runs.sidebyside.lane import Data, Lane


def features_of(lanes: Sequence[Lane], data: Data) -> list[Callable[[Tensor], Tensor]]:
    """What the frozen layers make of images, one function per stream; runs of the same seed have the same layers."""
    found: list[Callable[[Tensor], Tensor]] = []
    for number in range(len(data.streams)):
        model = next(lane.heads.model for lane in lanes if lane.data == number)
        assert isinstance(model, models.LeNet)
        found.append(model.frozen_features)
    return found


def first_step(lanes: Sequence[Lane], data: Data, rows: Tensor, lr: float) -> Tensor:
    """Take the only step in training mode, one run at a time, and turn all images in `data` into features.

    rows (S, b) are the examples of each run; returns the losses (S,).
    """
    losses = [_step(lane, *_batch(data, own), lr) for lane, own in zip(lanes, rows, strict=True)]
    features = features_of(lanes, data)
    data.tests = [[(feature(x), y) for x, y in tests] for feature, tests in zip(features, data.tests, strict=True)]
    data.load(0, features)
    return torch.stack(losses)


def _batch(data: Data, rows: Tensor) -> tuple[Tensor, Tensor]:
    return data.x[rows], data.y[rows]


def _step(lane: Lane, x: Tensor, y: Tensor, lr: float) -> Tensor:
    """A step of plain SGD in training mode; returns the loss and leaves the model in evaluation mode."""
    model = lane.heads.model.train()
    loss = cross_entropy(model(x), y)
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, trained, allow_unused=True)
    with torch.no_grad():
        for p, gradient in zip(trained, gradients, strict=True):
            if gradient is not None:
                p.sub_(gradient, alpha=lr)
    model.eval()
    return loss.detach()
