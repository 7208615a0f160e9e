"""Which output head a model uses, and how many test examples it gets right with the head of each task."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sketchogd.lab.streams.tasks import Pair
from sketchogd.model.batches import evaluating, logits_of

EVALUATED_AT_ONCE = 10_000


@runtime_checkable
class Headed(Protocol):
    """A model with one output head per task."""

    def use_head(self, head: int) -> None:
        """Select the head that `forward` uses."""


def use_head(model: nn.Module, head: int) -> None:
    """Select an output head, where the model has several."""
    if isinstance(model, Headed):
        model.use_head(head)


class Heads:
    """The output heads of a model and the one in use, `current`; for a model with one head all of them are the same.

    A model with heads does not say which one it uses, so whoever switches to another for a moment must know.
    """

    def __init__(self, model: nn.Module, current: int) -> None:
        self.model = model
        self.current = current

    def use(self, head: int) -> None:
        """Train with a head from now on."""
        self.current = head
        use_head(self.model, head)

    @contextmanager
    def using(self, head: int) -> Iterator[None]:
        """A block in which the model uses a head; afterwards it uses the current one."""
        use_head(self.model, head)
        try:
            yield
        finally:
            use_head(self.model, self.current)

    def loss(self, inputs: Tensor, targets: Tensor, head: int) -> Tensor:
        """The mean cross-entropy of a batch through a head."""
        with self.using(head):
            return cross_entropy(self.model(inputs), targets)

    def logits(self, inputs: Tensor, head: int, answer: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """The logits of a batch through a head; see `Logits`."""
        with self.using(head):
            return logits_of((answer or self.model)(inputs))

    @torch.no_grad()
    def count_right(self, inputs: Tensor, targets: Tensor, head: int, batch: int | None = None) -> Tensor:
        """How many of the inputs (n, …) have their largest logit at the target, as a tensor of one number.

        The model is in evaluation mode for it; modes and head are restored. With `batch` the inputs are shuffled and
        go through in batches of that size.
        """
        right = torch.zeros((), dtype=torch.int64, device=targets.device)
        with evaluating(self.model), self.using(head):
            for x, y in _batches(inputs, targets, batch):
                right += (self.model(x).argmax(1) == y).sum()
        return right

    @torch.no_grad()
    def mean_loss(self, inputs: Tensor, targets: Tensor, head: int, batch: int | None = None) -> float:
        """The mean cross-entropy in evaluation mode, in batches as in `count_right`."""
        total = torch.zeros((), device=targets.device)
        with evaluating(self.model), self.using(head):
            for x, y in _batches(inputs, targets, batch):
                total += cross_entropy(self.model(x), y, reduction="sum")
        return float(total) / len(targets)


def _batches(inputs: Tensor, targets: Tensor, batch: int | None) -> Iterator[Pair]:
    if batch is not None:  # in an order that is always the same, and mixes the classes
        order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0)).to(targets.device)
        inputs, targets = inputs[order], targets[order]
    size = batch or EVALUATED_AT_ONCE
    yield from zip(inputs.split(size), targets.split(size), strict=True)


def count_right(model: Heads, tests: Sequence[Pair], heads: Sequence[int], batch: int | None = None) -> Tensor:
    """How many examples of each test set (inputs, targets) a model gets right with its head (tasks,)."""
    return torch.stack([model.count_right(*pair, head, batch) for pair, head in zip(tests, heads, strict=True)])


def shares(right: Tensor, tests: Sequence[Pair]) -> Tensor:
    """Accuracies, float64 on the CPU, from counts (…, tasks) on these test sets."""
    return right.cpu().double() / torch.tensor([len(targets) for _, targets in tests])


@dataclass(frozen=True, eq=False)
class Accuracies:
    """What a run measures of T tasks: `matrix` (T × T), row i after task i, and `initial` (T); NaN where not yet."""

    matrix: np.ndarray
    initial: np.ndarray

    @classmethod
    def unknown(cls, tasks: int) -> "Accuracies":
        """Nothing measured yet."""
        return cls(np.full((tasks, tasks), np.nan), np.full(tasks, np.nan))
