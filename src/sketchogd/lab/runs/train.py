"""The training loop: one task after another, in plain tensors on one device, with any optimizer and any method.

`fit` trains a model on a stream; `run` does the same for a `RunConfig`, which names everything, in a run folder:
run.json gets `timings`, `ledger`, `steps` and `results`; accuracy.npz the matrix; events.jsonl an "evaluation" after
each epoch with the accuracies of the tasks seen so far; spectra.npz what is measured of the learner at the end.
Every random choice is derived from (seed, task, epoch), so a killed run resumes to the same numbers. T tasks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sketchogd.lab import models, records
from sketchogd.lab.methods import Learner, Method, Setup, build
from sketchogd.lab.methods.baselines.examples import bytes_of_example
from sketchogd.lab.methods.registry import require_within_budget
from sketchogd.lab.records import metrics
from sketchogd.lab.runs import recording
from sketchogd.lab.runs.clock import Clock
from sketchogd.lab.runs.config import RunConfig, Training, make_optimizer, stream_of
from sketchogd.lab.runs.evaluate import Accuracies, Heads, count_right, shares
from sketchogd.lab.runs.torchrun import Alone, Processes
from sketchogd.lab.streams import record
from sketchogd.lab.streams.tasks import Pair, Stream
from sketchogd.model.parameters import Selection
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


def fit(
    stream: Stream,
    model: nn.Module,
    method: Method,
    training: Training | None = None,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    protected: Selection = None,
    folder: records.RunFolder | None = None,
    progress: Progress | None = None,
    processes: Processes | None = None,
) -> Result:
    """Train `model` on the tasks of `stream`, one after another, with a method that keeps it from forgetting.

    Args:
        stream: the tasks.
        model: any module; one with several heads has a method `use_head(head)`.
        method: from `methods.method`.
        training: how each task is trained; by default as in the paper.
        seed: every random choice follows from it.
        device: where to train.
        protected: which parameters memories protect; by default all that are trained.
        folder: of a run that was started: evaluations and checkpoints are written there, and a checkpoint is resumed.
        progress: called every now and then.
        processes: those that call this together, the first of them with the folder.

    Raises:
        FloatingPointError: the loss is no longer finite.
        ValueError: the method cannot be built, or keeps more than its budget.
    """
    training, processes = training or Training(), processes or Alone()
    heads = Heads(model.to(device), stream.recipes[0].head)
    optimizer = make_optimizer(model, training)
    example = stream.train(0)
    shared: dict[str, Any] = {"group": processes.group, "own": processes.own, **facts_of(stream, heads, example[0])}
    example_nbytes = bytes_of_example(*example)
    setup = Setup(model, optimizer, heads.loss, len(stream), example_nbytes, protected, seed, **shared)
    learner = build(method, setup)
    loop = TaskLoop(stream, heads, optimizer, learner, method, training, seed, device, folder, progress, processes)
    loop.train()
    return loop.result()


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
            while self.at.epoch < self.training.epochs:
                loss = self.train_epoch(x, y)
                self.at.epoch += 1
                self.end_epoch(loss)
            self.end_task(x, y)

    def train_epoch(self, x: Tensor, y: Tensor) -> float:
        """One epoch of the task at hand, with data x (n, …), y (n,); returns its mean loss."""
        task, epoch, head = self.at.task, self.at.epoch, self.heads.current
        order = shuffled(len(y), self.seed, task, epoch).to(self.device)
        batches = -(-len(y) // self.training.batch)
        total = torch.zeros((), device=self.device)
        self.model.train(not (self.training.eval_after_first_step and self.at.steps))
        with self.clock.measuring("train"), models.seeded(derive_seed(self.seed, "noise", task, epoch)):
            # One gather per epoch; the batches are then views.
            pairs = zip(x[order].split(self.training.batch), y[order].split(self.training.batch), strict=True)
            for i, (inputs, targets) in enumerate(pairs):
                self.optimizer.zero_grad()
                loss = self.processes.backward(self.model, inputs, targets)
                self.learner.before_step(inputs, targets, head)
                self.optimizer.step()
                self.learner.after_step()
                total += loss
                if self.training.eval_after_first_step and self.at.steps == 0:
                    self.model.eval()
                self.at.steps += 1
                if i % STEPS_BETWEEN_REPORTS == 0:
                    self.tell(epoch + i / batches, f"task {task + 1} of {len(self.stream)}")
        return float(total) / batches

    def end_epoch(self, loss: float) -> None:
        """Evaluate, and write a checkpoint if that is cheap. Raises FloatingPointError if the loss is not finite."""
        task, epochs = self.at.task, self.at.epoch
        if not np.isfinite(loss):
            raise recording.diverged(task, epochs, loss)
        if self.folder is not None and self.training.curve:
            recording.evaluated(self.folder, task, epochs, self.evaluate(task + 1), loss)
        cheap = self.clock.since("checkpoint") * CHECKPOINT_SHARE > self.clock.last("checkpoint")
        if epochs < self.training.epochs and not self.learner.pending and cheap:
            self.checkpoint()

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
            found: list[float] = shares(count_right(self.heads, tests, self.head_of[:tasks]), tests).tolist()
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


def run(
    config: RunConfig,
    folder: str | Path,
    *,
    data_folder: str | Path | None = None,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
    processes: Processes | None = None,
) -> Result:
    """Do the run that a config names, in its folder: from the beginning, or on from its last checkpoint.

    Args:
        config: names the run completely.
        folder: where the run is recorded.
        data_folder: where data sets are that are not part of the package.
        device: where to train.
        progress: called every now and then.
        processes: those that do the run together; the first of them calls this, the others `follow`.

    Raises:
        ValueError: a name or a setting is wrong.
        RecordError: the folder holds a run of another config, or another process works on it.
    """
    stream, known = stream_of(config, data_folder), record(config.benchmark)
    model = known.network(stream, config.seed)
    place = records.RunFolder(folder)
    with place.hold():
        recording.begin(place, config, device, resume=True)
        options: dict[str, Any] = {"seed": config.seed, "device": device, "protected": known.protected}
        options |= {"folder": place, "progress": progress, "processes": processes}
        try:
            found = fit(stream, model, config.method, config.training, **options)
        except Exception as error:
            place.fail(error)
            raise
        facts: dict[str, Any] = {"summary": found.summary, "ledger": found.ledger}
        facts |= {"timings": found.timings, "steps": found.steps}
        recording.conclude(place, found.learner, model, known.protected, **facts)
    return found


def follow(
    config: RunConfig,
    processes: Processes,
    *,
    data_folder: str | Path | None = None,
    device: str | torch.device = "cpu",
) -> Result:
    """Take part in a run that the first of several processes does and records."""
    stream, known = stream_of(config, data_folder), record(config.benchmark)
    model = known.network(stream, config.seed)
    options: dict[str, Any] = {"seed": config.seed, "device": device, "protected": known.protected}
    return fit(stream, model, config.method, config.training, processes=processes, **options)


def facts_of(stream: Stream, heads: Heads, inputs: Tensor) -> dict[str, Any]:
    """What a `Setup` says of the stream and of the model's heads; `inputs` (n, …) are some of the stream's."""
    facts: dict[str, Any] = {"logits": heads.logits, "encoding": stream.encoding, "classes": stream.classes}
    return facts | {"encoded_nbytes": stream.encoding.nbytes(inputs)}


def shuffled(n: int, seed: int, task: int, epoch: int) -> Tensor:
    """The order (n,) in which an epoch goes through the n examples of a task."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(derive_seed(seed, "order", task, epoch)))


def _placed(pair: Pair, device: str | torch.device) -> Pair:
    return pair[0].to(device), pair[1].to(device)
