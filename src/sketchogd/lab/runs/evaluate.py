"""How many test examples a model gets right, with the head of their task; the model is left as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from sketchogd.model.batches import evaluating

EVALUATED_AT_ONCE = 10_000


@runtime_checkable
class Headed(Protocol):
    """A model with one output head a task."""

    def use_head(self, head: int) -> None:
        """Select the head that `forward` uses."""


def use_head(model: nn.Module, head: int) -> None:
    """Select an output head, where the model has several."""
    if isinstance(model, Headed):
        model.use_head(head)


def accuracy(model: nn.Module, inputs: Tensor, targets: Tensor, head: int = 0, back_to: int = 0) -> float:
    """Share of the inputs (n, …) for which the largest logit is the target's; modes and head are restored."""
    return int(count_right(model, inputs, targets, head, back_to)) / len(targets)


@torch.no_grad()
def count_right(model: nn.Module, inputs: Tensor, targets: Tensor, head: int = 0, back_to: int = 0) -> Tensor:
    """For how many inputs the largest logit is the target's, as a tensor of one number."""
    right = torch.zeros((), dtype=torch.int64, device=targets.device)
    with evaluating(model), using_head(model, head, back_to):
        for x, y in zip(inputs.split(EVALUATED_AT_ONCE), targets.split(EVALUATED_AT_ONCE), strict=True):
            right += (model(x).argmax(1) == y).sum()
    return right


@contextmanager
def using_head(model: nn.Module, head: int, back_to: int) -> Iterator[None]:
    """The model with one head for the block, then with another."""
    use_head(model, head)
    try:
        yield
    finally:
        use_head(model, back_to)
