"""Many runs in one loop: their weights are stacked, and one vectorised step trains all of them.

For small networks launch overhead dominates; S runs share one vectorised step to amortise it. The runs have the same
benchmark and training, with any seeds and methods. Every parameter is one tensor (S, …), the model of each run has
views into it, and a step is one forward and one backward pass through all of them (`stacked`, `steps`). Everything else
(remembering, evaluating, recording) is done for each run by the code that does it for a single one, and every random
choice is the same, so each run comes out as from `train.run`, up to rounding.

Letters: S runs, T tasks.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sketchogd.lab import records
from sketchogd.lab.methods import Setup, build
from sketchogd.lab.methods.baselines.examples import bytes_of_example
from sketchogd.lab.records import metrics
from sketchogd.lab.runs import recording, train
from sketchogd.lab.runs.clock import Clock
from sketchogd.lab.runs.config import RunConfig, make_optimizer, stream_of
from sketchogd.lab.runs.evaluate import Accuracies, Heads, count_right, shares
from sketchogd.lab.runs.sidebyside.frozen_features import features_of, first_step
from sketchogd.lab.runs.sidebyside.lane import Data, Lane
from sketchogd.lab.runs.sidebyside.stacked import stacked, stacked_optimizer
from sketchogd.lab.runs.sidebyside.steps import TaskSteps
from sketchogd.lab.streams import record


def run(
    configs: Sequence[RunConfig],
    folders: Sequence[str | Path],
    *,
    data_folder: str | Path | None = None,
    device: str | torch.device = "cpu",
    progress: train.Progress | None = None,
) -> list[metrics.Summary | FloatingPointError]:
    """Do the runs of one group (see `partition`), each in its folder, as `train.run` would; nothing is resumed.

    Args:
        configs: the runs.
        folders: where each is recorded.
        data_folder: where data sets are that are not part of the package.
        device: where to train.
        progress: called every now and then.

    Returns:
        The summary of each run; for one whose loss is no longer finite, which is marked failed, the error instead.

    Raises:
        RecordError: a folder holds a run of another config, or another process works on it.
    """
    with contextlib.ExitStack() as held:
        places = [records.RunFolder(folder) for folder in folders]
        for config, place in zip(configs, places, strict=True):
            held.enter_context(place.hold())
            recording.begin(place, config, device)
        try:
            return Group(configs, places, data_folder, torch.device(device), progress).train()
        except BaseException as error:
            for place in places:
                place.fail(error)
            raise


class Group:
    """Runs of one group (see `partition`) with their weights stacked, and the loop that trains them.

    Args:
        configs: the runs.
        places: the folder of each, in which a run has been started.
        data_folder: where data sets are that are not part of the package.
        device: where to train.
        progress: called every now and then.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        places: Sequence[records.RunFolder],
        data_folder: str | Path | None,
        device: torch.device,
        progress: train.Progress | None,
    ) -> None:
        self.training, self.device, self.progress = configs[0].training, device, progress
        self.clock = Clock(device)
        self.steps = 0
        self.known = record(configs[0].benchmark)
        of_stream, first_of = _streams_of(configs)
        streams = [stream_of(config, data_folder) for config in first_of]
        self.data = Data(streams, device)
        self.data.load_tests()
        self.stream = streams[0]
        self.example = self.data.tests[0][0][0][:1].cpu()
        self.head_of = [recipe.head for recipe in self.stream.recipes]
        nets = [self.known.network(self.stream, config.seed).to(device) for config in configs]
        idle = [make_optimizer(net, self.training) for net in nets]  # freezes what is frozen, before stacking
        self.stack = stacked(nets)
        self.optimizer = stacked_optimizer(list(self.stack.trained.values()), configs[0])
        self.lanes = [
            self._lane(config, place, net, optimizer, data)
            for config, place, net, optimizer, data in zip(configs, places, nets, idle, of_stream, strict=True)
        ]

    def _lane(
        self, config: RunConfig, place: records.RunFolder, net: nn.Module, idle: torch.optim.Optimizer, data: int
    ) -> Lane:
        """A run, its method built on its own model and its own optimizer, which never steps."""
        heads, T = Heads(net, self.head_of[0]), len(self.stream)
        size = bytes_of_example(*self.data.tests[data][0])
        facts = train.facts_of(self.stream, heads, self.data.tests[data][0][0])
        setup = Setup(net, idle, heads.loss, T, size, self.known.protected, config.seed, **facts)
        return Lane(config, place, heads, idle, build(config.method, setup), data, Accuracies.unknown(T))

    def train(self) -> list[metrics.Summary | FloatingPointError]:
        """All tasks, one after another."""
        T, epochs = len(self.stream), self.training.epochs
        for lane, row in zip(self.lanes, self._evaluate(T), strict=True):
            lane.accuracies.initial[:] = row
        for t in range(T):
            self.train_task(t)
            self._tell((t + 1) * epochs, f"remembering task {t + 1} of {T}")
            self.remember_task(t)
            for lane, row in zip(self.lanes, self._evaluate(T), strict=True):
                if lane.error is None:
                    lane.accuracies.matrix[t] = row
                    lane.place.save_accuracy(lane.accuracies.matrix, lane.accuracies.initial)
        return [lane.error or self._finish(lane) for lane in self.lanes]

    def train_task(self, t: int) -> None:
        """All epochs of task t."""
        epochs, T = self.training.epochs, len(self.stream)
        for lane in self.lanes:
            lane.heads.use(self.head_of[t])
        frozen = self.training.eval_after_first_step
        self.data.load(t, features_of(self.lanes, self.data) if frozen and t else None)
        steps = TaskSteps(self.lanes, self.stack, self.optimizer, self.data, self.training, self.head_of[t])
        for epoch in range(epochs):
            steps.begin_epoch([train.shuffled(self.data.n, lane.config.seed, t, epoch) for lane in self.lanes])
            with self.clock.measuring("train"):
                done = 0
                if frozen and self.steps == 0:
                    rows = steps.order[:, : self.training.batch]
                    steps.skip_first(first_step(self.lanes, self.data, rows, self.training.lr))
                    done = 1
                self._tell(t * epochs + epoch, f"task {t + 1} of {T}")
                steps.take(done)
                if epoch + 1 < epochs:
                    steps.draw_ahead()
            self.steps += steps.per_epoch
            self._record(t, epoch + 1, (steps.loss / steps.per_epoch).tolist())

    def remember_task(self, t: int) -> None:
        """Let every learner take what it keeps from task t, whose data is loaded."""
        with self.clock.measuring("remember"):
            for lane in self.lanes:
                if lane.error is None:
                    lane.learner.end_task(*self.data.of(lane), self.head_of[t])
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # remembering takes much for a moment, which other processes may need

    @torch.no_grad()
    def _evaluate(self, tasks: int) -> list[list[float]]:
        """Test accuracies of every run on the first `tasks` tasks."""
        with self.clock.measuring("evaluate"):
            right = []
            for lane in self.lanes:
                with lane.learner.preview():
                    tests = self.data.tests[lane.data][:tasks]
                    right.append(count_right(lane.heads, tests, self.head_of[:tasks]))
            found: list[list[float]] = shares(torch.stack(right), self.data.tests[0][:tasks]).tolist()
        return found

    def _record(self, t: int, epochs: int, losses: Sequence[float]) -> None:
        """Mark runs as failed whose mean loss after so many epochs of task t is not finite; evaluate the others."""
        for lane, loss in zip(self.lanes, losses, strict=True):
            if lane.error is None and not np.isfinite(loss):
                lane.error = recording.diverged(t, epochs, loss)
                lane.place.fail(lane.error)
        if not self.training.curve:
            return
        for lane, loss, scores in zip(self.lanes, losses, self._evaluate(t + 1), strict=True):
            if lane.error is None:
                recording.evaluated(lane.place, t, epochs, scores, loss)

    def _finish(self, lane: Lane) -> metrics.Summary:
        S, net = len(self.lanes), lane.heads.model
        summary = metrics.summary(lane.accuracies.matrix, lane.accuracies.initial)
        kept = recording.ledger(lane.learner)
        for entry in kept["entries"]:
            if entry["name"] == "inputs":
                # Examples are kept here as frozen layers see them; what counts is the image that a single run keeps.
                entry["shape"] = [entry["shape"][0], *self.example.shape[1:]]
                entry["nbytes"] = self.example.nbytes * entry["shape"][0]
        kept["nbytes"] = sum(entry["nbytes"] for entry in kept["entries"])
        facts: dict[str, Any] = {"summary": summary, "ledger": kept, "steps": self.steps}
        facts["timings"] = {**self.clock.timings(S), "side_by_side": S}
        recording.conclude(lane.place, lane.learner, net, self.known.protected, **facts)
        return summary

    def _tell(self, epochs: float, doing: str) -> None:
        if self.progress is not None:
            self.progress(epochs, len(self.stream) * self.training.epochs, doing)


def _streams_of(configs: Sequence[RunConfig]) -> tuple[list[int], list[RunConfig]]:
    """The number of each run's stream, and the first run of every stream.

    Runs share a stream where it does not depend on the seed, unless frozen layers, which do, turn it into features.
    """
    by_seed = record(configs[0].benchmark).seeded or bool(configs[0].training.frozen)
    keys = [config.seed if by_seed else 0 for config in configs]
    unique = list(dict.fromkeys(keys))
    return [unique.index(key) for key in keys], [configs[keys.index(key)] for key in unique]
