"""What a group of runs side by side (`sidebyside`) consists of: the runs themselves, and the data of their streams.

Letters: U different streams, n examples of a task.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from sketchogd.lab.methods.learner import Baseline
from sketchogd.lab import records
from sketchogd.lab.runs.config import RunConfig
from sketchogd.lab.runs.sidebyside.stored_examples import recalls_examples
from sketchogd.lab.streams.tasks import Pair, Stream


@dataclass(eq=False)
class Lane:
    """One run of the group: its model, whose parameters are views into the stack, and what it has measured.

    `data` is the number of its stream in `Data`; `hooked` says that its method acts at every step by itself.
    """

    config: RunConfig
    place: records.RunFolder
    model: nn.Module
    learner: Baseline
    data: int
    matrix: np.ndarray
    initial: np.ndarray
    hooked: bool = False
    error: FloatingPointError | None = None

    def __post_init__(self) -> None:
        kind = type(self.learner)
        acts = kind.before_step is not Baseline.before_step or kind.after_step is not Baseline.after_step
        self.hooked = acts and not recalls_examples(self.learner)


@dataclass(eq=False)
class Data:
    """The task at hand for the U different streams of a group: x (U · n, …), y (U · n,), and all test sets."""

    streams: list[Stream]
    device: torch.device
    tests: list[list[Pair]] = field(default_factory=list)
    x: Tensor = field(default_factory=lambda: torch.empty(0))
    y: Tensor = field(default_factory=lambda: torch.empty(0))
    n: int = 0

    def load(self, t: int, features: Sequence[Callable[[Tensor], Tensor]] | None) -> None:
        """Bring the training half of task t to the device, through each stream's `features` where there are any."""
        pairs = [self._on_device(stream.train(t)) for stream in self.streams]
        if features is not None:
            pairs = [(feature(x), y) for feature, (x, y) in zip(features, pairs, strict=True)]
        self.n = len(pairs[0][1])
        self.x, self.y = (torch.cat([pair[i] for pair in pairs]) for i in (0, 1))

    def load_tests(self) -> None:
        """Bring the test halves of all tasks to the device."""
        tasks = range(len(self.streams[0]))
        self.tests = [[self._on_device(stream.test(t)) for t in tasks] for stream in self.streams]

    def of(self, lane: Lane) -> Pair:
        """The training half of the task at hand, as a run sees it."""
        rows = slice(lane.data * self.n, (lane.data + 1) * self.n)
        return self.x[rows], self.y[rows]

    def _on_device(self, pair: Pair) -> Pair:
        return pair[0].to(self.device), pair[1].to(self.device)
