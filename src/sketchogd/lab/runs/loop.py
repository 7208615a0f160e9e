"""The loop over tasks: what `train.fit` runs, with everything that changes while it runs in one object.

Every random choice is derived from (seed, task, epoch), so a killed run resumes to the same numbers. T tasks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sketchogd.lab import models, records
from sketchogd.lab.methods import Learner, Method
from sketchogd.lab.methods.registry import require_within_budget
from sketchogd.lab.records import metrics
from sketchogd.lab.runs import recording
from sketchogd.lab.runs.clock import Clock
from sketchogd.lab.runs.config import Training
from sketchogd.lab.runs.evaluate import Accuracies, Heads, count_right, shares
from sketchogd.lab.runs.schedules import SCHEDULES, Schedule
from sketchogd.lab.runs.torchrun import Processes
from sketchogd.lab.streams.augment import AUGMENTATIONS
from sketchogd.lab.streams.tasks import Pair, Stream
from sketchogd.seeds import derive_seed

Progress = Callable[[float, float, str], None]
"""Called as progress(epochs done, epochs in all, what is going on)."""

CHECKPOINT_SHARE = 0.05
"""Checkpoints between the ends of tasks may take this share of the time."""

STEPS_BETWEEN_REPORTS = 200


@dataclass(frozen=True)
class Result:
    """What a run gives: accuracy (T × T), initial (T), the summary, the ledger and the timings in seconds."""

    accuracy: np.ndarray
    initial: np.ndarray
    summary: metrics.Summary
    ledger: dict[str, Any]
    timings: dict[str, float]
    steps: int
    model: nn.Module
    learner: Learner


@dataclass
class Position:
    """Where a run stands: the task and the epoch of it that come next, and the optimizer steps taken so far."""

    task: int = 0
    epoch: int = 0
    steps: int = 0


@dataclass(eq=False)
class TaskLoop:
    """The loop of `fit`. Beside the model, its optimizer and the learner, only the fields from `clock` on change."""

    stream: Stream
    heads: Heads
    optimizer: torch.optim.Optimizer
    learner: Learner
    method: Method
    training: Training
    seed: int
    device: str | torch.device
    folder: records.RunFolder | None
    progress: Progress | None
    processes: Processes

    def __post_init__(self) -> None:
        self.model = self.heads.model
        self.head_of = [recipe.head for recipe in self.stream.recipes]
        self.tests = [_placed(self.stream.test(t), self.device) for t in range(len(self.stream))]
        self.clock = Clock(self.device)
        self.at = Position()
        self.accuracies = Accuracies.unknown(len(self.stream))
        self.schedule: Schedule = SCHEDULES[self.training.schedule](self.training.lr, 1)
        self.augment = AUGMENTATIONS[self.training.augment]

    def train(self) -> None:
        """All tasks, from the beginning or from the checkpoint in the folder."""
        saved = self.processes.from_first(None if self.folder is None else self.folder.resume())
        if saved is not None:
            self.load_state_dict(saved)
        else:
            self.accuracies.initial[:] = self.evaluate(len(self.stream))
        while self.at.task < len(self.stream):
            x, y = _placed(self.stream.train(self.at.task), self.device)
            self.heads.use(self.head_of[self.at.task])
            own, aside = self.begin_task(x, y)
            if saved is not None and self.at.epoch:
                self.schedule.load_state_dict(_moved(saved.get("schedule", {}), self.device))
            saved, over = None, False
            while self.at.epoch < self.training.epochs and not over:
                loss = self.train_epoch(*own)
                self.at.epoch += 1
                over = self.end_epoch(loss, aside)
            self.schedule.end_task(self.model)
            self.end_task(*own)

    def begin_task(self, x: Tensor, y: Tensor) -> tuple[Pair, Pair | None]:
        """The examples (n, …) of the task that are trained on, and those that the schedule sets aside."""
        made = SCHEDULES[self.training.schedule](self.training.lr, 1)
        aside = made.set_aside(len(y), self.seed, self.at.task)
        own, held = (x, y), None
        if aside is not None:
            kept = torch.ones(len(y), dtype=torch.bool)
            kept[aside] = False
            there, here = aside.to(y.device), kept.to(y.device)
            own, held = (x[here], y[here]), (x[there], y[there])
        made.steps = self.training.epochs * -(-len(own[1]) // self.training.batch)
        self.schedule = made
        if self.training.fresh and self.at.epoch == 0:
            self.optimizer.state.clear()
        return own, held

    def train_epoch(self, x: Tensor, y: Tensor) -> float:
        """One epoch of the task at hand, with data x (n, …), y (n,); returns its mean loss."""
        task, epoch, head = self.at.task, self.at.epoch, self.heads.current
        order = shuffled(len(y), self.seed, task, epoch).to(self.device)
        batches = -(-len(y) // self.training.batch)
        total = torch.zeros((), device=self.device)
        self.model.train(not (self.training.eval_after_first_step and self.at.steps))
        noise = models.seeded(derive_seed(self.seed, "noise", task, epoch), self.device)
        with self.clock.measuring("train"), noise:
            # One gather per epoch; the batches are then views.
            pairs = zip(x[order].split(self.training.batch), y[order].split(self.training.batch), strict=True)
            for i, (inputs, targets) in enumerate(pairs):
                self.optimizer.zero_grad()
                for settings in self.optimizer.param_groups:
                    settings["lr"] = self.schedule.rate(epoch * batches + i)
                loss = self.processes.backward(self.model, self.augment(inputs), targets)
                self.learner.before_step(inputs, targets, head)
                if self.training.clip is not None:
                    nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip)
                self.optimizer.step()
                self.learner.after_step()
                total += loss
                if self.training.eval_after_first_step and self.at.steps == 0:
                    self.model.eval()
                self.at.steps += 1
                if i % STEPS_BETWEEN_REPORTS == 0:
                    self.tell(epoch + i / batches, f"task {task + 1} of {len(self.stream)}")
        return float(total) / batches

    def end_epoch(self, loss: float, aside: Pair | None = None) -> bool:
        """Evaluate, and write a checkpoint if that is cheap; returns whether the schedule ends the task here.

        Raises FloatingPointError if the loss is not finite.
        """
        task, epochs = self.at.task, self.at.epoch
        if not np.isfinite(loss):
            raise recording.diverged(task, epochs, loss)
        if self.folder is not None and self.training.curve:
            recording.evaluated(self.folder, task, epochs, self.evaluate(task + 1), loss)
        with self.clock.measuring("evaluate"):
            over = self.schedule.end_epoch(self.model, self.learner.settle, lambda: self.loss_on(aside))
        cheap = self.clock.since("checkpoint") * CHECKPOINT_SHARE > self.clock.last("checkpoint")
        if epochs < self.training.epochs and not over and not self.learner.pending and cheap:
            self.checkpoint()
        return over

    def loss_on(self, pair: Pair | None) -> float:
        """The mean loss on examples that were set aside."""
        assert pair is not None
        return self.heads.mean_loss(*pair, self.heads.current, self.training.test_batch)

    def end_task(self, x: Tensor, y: Tensor) -> None:
        """Let the learner take what it keeps from the data of the task, evaluate on all tasks, and go to the next."""
        task, T = self.at.task, len(self.stream)
        self.tell(self.training.epochs, f"remembering task {task + 1} of {T}")
        with self.clock.measuring("remember"):
            self.learner.end_task(x, y, self.heads.current)
        require_within_budget(self.method, self.learner)
        self.accuracies.matrix[task] = self.evaluate(T)
        if self.folder is not None:
            self.folder.save_accuracy(self.accuracies.matrix, self.accuracies.initial)
        self.at.task, self.at.epoch = task + 1, 0
        if self.at.task < T:
            self.checkpoint()

    def evaluate(self, tasks: int) -> list[float]:
        """Test accuracies on the first `tasks` tasks."""
        with self.learner.preview(), self.clock.measuring("evaluate"):
            tests = self.tests[:tasks]
            right = count_right(self.heads, tests, self.head_of[:tasks], self.training.test_batch)
            found: list[float] = shares(right, tests).tolist()
        return found

    def checkpoint(self) -> None:
        """Write all that resuming needs, where there is a folder."""
        if self.folder is not None:
            with self.clock.measuring("checkpoint"):
                self.folder.checkpoint(self.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "learner": self.learner.state_dict(),
            "task": self.at.task,
            "epoch": self.at.epoch,
            "steps": self.at.steps,
            "schedule": self.schedule.state_dict(),
            "matrix": torch.tensor(self.accuracies.matrix),
            "initial": torch.tensor(self.accuracies.initial),
            "spent": self.clock.spent,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.learner.load_state_dict(saved["learner"])
        self.at = Position(saved["task"], saved["epoch"], saved["steps"])
        self.accuracies = Accuracies(saved["matrix"].numpy(), saved["initial"].numpy())
        self.clock.spent = saved["spent"]

    def tell(self, epochs: float, doing: str) -> None:
        """Report that so many epochs of the task at hand are done."""
        if self.progress is not None:
            each = self.training.epochs
            self.progress(self.at.task * each + epochs, len(self.stream) * each, doing)

    def result(self) -> Result:
        """What the finished run gives."""
        matrix, initial = self.accuracies.matrix, self.accuracies.initial
        summary, kept = metrics.summary(matrix, initial), recording.ledger(self.learner)
        timings, steps = self.clock.timings(), self.at.steps
        return Result(matrix, initial, summary, kept, timings, steps, self.model, self.learner)


def shuffled(n: int, seed: int, task: int, epoch: int) -> Tensor:
    """The order (n,) in which an epoch goes through the n examples of a task."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(derive_seed(seed, "order", task, epoch)))


def _moved(state: Any, device: str | torch.device) -> Any:
    """A tree with its tensors on a device."""
    if isinstance(state, dict):
        return {key: _moved(value, device) for key, value in state.items()}
    return state.to(device) if isinstance(state, Tensor) else state


def _placed(pair: Pair, device: str | torch.device) -> Pair:
    return pair[0].to(device), pair[1].to(device)
