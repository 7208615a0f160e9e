"""What a group of runs side by side consists of: the runs themselves, and the data of their streams.

Letters: U different streams, n examples of a task.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sketchogd.lab import records
from sketchogd.lab.methods.learner import Learner, acts_at_steps
from sketchogd.lab.runs.config import RunConfig
from sketchogd.lab.runs.evaluate import Accuracies, Heads
from sketchogd.lab.runs.sidebyside.stored_examples import recalls_examples
from sketchogd.lab.streams.tasks import Pair, Stream


@dataclass(eq=False)
class Lane:
    """One run of the group.

    Args:
        config: names the run.
        place: its folder.
        heads: its model, whose parameters are views into the stack.
        idle: its own optimizer, which never steps but carries the hooks of a protection.
        learner: its method at work.
        data: the number of its stream in `Data`.
        accuracies: what it has measured so far.
        error: what ended it, if anything did.
    """

    config: RunConfig
    place: records.RunFolder
    heads: Heads
    idle: torch.optim.Optimizer
    learner: Learner
    data: int
    accuracies: Accuracies
    error: FloatingPointError | None = None

    @property
    def hooked(self) -> bool:
        """Whether its learner's own hooks must be called at every step."""
        return acts_at_steps(self.learner) and not recalls_examples(self.learner)


@dataclass(eq=False)
class Data:
    """The current task of the U different streams of a group: x (U · n, …), y (U · n,), and all test sets."""

    streams: list[Stream]
    device: torch.device
    tests: list[list[Pair]] = field(default_factory=list)
    x: Tensor = field(default_factory=lambda: torch.empty(0))
    y: Tensor = field(default_factory=lambda: torch.empty(0))
    n: int = 0

    def load(self, t: int, features: Sequence[Callable[[Tensor], Tensor]] | None) -> None:
        """Move the training half of task t to the device, through the `features` of each stream if there are any."""
        pairs = [self._on_device(stream.train(t)) for stream in self.streams]
        if features is not None:
            pairs = [(feature(x), y) for feature, (x, y) in zip(features, pairs, strict=True)]
        self.n = len(pairs[0][1])
        self.x, self.y = (torch.cat([pair[i] for pair in pairs]) for i in (0, 1))

    def load_tests(self) -> None:
        """Move the test halves of all tasks to the device."""
        tasks = range(len(self.streams[0]))
        self.tests = [[self._on_device(stream.test(t)) for t in tasks] for stream in self.streams]

    def of(self, lane: Lane) -> Pair:
        """The training half of the current task of one run."""
        rows = slice(lane.data * self.n, (lane.data + 1) * self.n)
        return self.x[rows], self.y[rows]

    def _on_device(self, pair: Pair) -> Pair:
        return pair[0].to(self.device), pair[1].to(self.device)
