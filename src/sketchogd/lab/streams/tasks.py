"""A task, and a stream of tasks that are built when asked for. `n` examples, shapes (n, …)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

import torch

from sketchogd.lab.streams.encodings import AS_GIVEN, Encoding

Pair = tuple[torch.Tensor, torch.Tensor]
"""Inputs float32 (n, …) and labels int64 (n,)."""


@dataclass(frozen=True)
class Task:
    """One task: x_train, x_test float32 (n, …), y_train, y_test int64 (n,) in 0 … classes − 1, and the output head."""

    x_train: torch.Tensor
    y_train: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor
    name: str
    classes: int
    head: int = 0

    def __repr__(self) -> str:
        """Name, sizes and shapes; the tensors would fill pages."""
        sizes = f"{len(self.y_train):,} to train, {len(self.y_test):,} to test"
        head = f", head {self.head}" if self.head else ""
        return f"Task({self.name!r}: {sizes}, inputs {tuple(self.x_train.shape[1:])}, {self.classes} classes{head})"


@dataclass(frozen=True)
class Recipe:
    """How to build one task: its name, number of classes and head, and functions for its training and test data."""

    name: str
    classes: int
    head: int
    train: Callable[[], Pair]
    test: Callable[[], Pair]


class Stream(Sequence[Task]):
    """A sequence of tasks, each built whenever it is asked for and not kept.

    `stream[t]` is a `Task`; `stream.test(t)` builds the test half only, for evaluation; a slice is a shorter stream.
    `encoding` is the lossless form in which its inputs take fewest bytes.
    """

    def __init__(self, name: str, recipes: Sequence[Recipe], encoding: Encoding = AS_GIVEN) -> None:
        self.name = name
        self.recipes = tuple(recipes)
        self.encoding = encoding

    def __len__(self) -> int:
        return len(self.recipes)

    def __repr__(self) -> str:
        """Name, number of tasks, classes and heads; nothing is built."""
        counts = [(len(self), "task"), (self.classes, "class"), (self.heads, "head")]
        words = [f"{n} {word}{('es' if word.endswith('s') else 's') * (n != 1)}" for n, word in counts]
        return f"Stream({self.name!r}: {', '.join(words)})"

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> "Stream": ...

    def __getitem__(self, index: int | slice) -> "Task | Stream":
        if isinstance(index, slice):
            return Stream(self.name, self.recipes[index], self.encoding)
        recipe = self.recipes[index]
        return Task(*recipe.train(), *recipe.test(), name=recipe.name, classes=recipe.classes, head=recipe.head)

    def train(self, index: int) -> Pair:
        """Training inputs and labels of task `index`."""
        return self.recipes[index].train()

    def test(self, index: int) -> Pair:
        """Test inputs and labels of task `index`."""
        return self.recipes[index].test()

    @property
    def heads(self) -> int:
        """How many output heads a model for this stream needs."""
        return 1 + max((recipe.head for recipe in self.recipes), default=0)

    @property
    def classes(self) -> int:
        """How many outputs a head needs: the largest number of classes of a task."""
        return max((recipe.classes for recipe in self.recipes), default=0)
