"""The training loop: one task after another, in plain tensors on one device, with any optimizer and any method.

`fit` trains a model on a stream; `run` does the same for a `RunConfig`, which names everything, in a run folder:
run.json gets `timings`, `ledger`, `steps` and `results`; accuracy.npz the matrix; events.jsonl an "evaluation" after
each epoch with the accuracies of the tasks seen so far; spectra.npz the singular values of remembered gradients, and
where all were kept what sketches of them leave out (`rank_errors`).
Every random choice is derived from (seed, task, epoch), so a killed run goes on to the same numbers.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sketchogd.storage import atomic
from sketchogd.lab.methods.learner import Baseline
from sketchogd.lab.methods.baselines.examples import bytes_of_example
from sketchogd.lab import models, records
from sketchogd.lab.records import metrics
from sketchogd.paper import rank_errors
from sketchogd.lab.runs.config import RunConfig, Training, make_optimizer, stream_of
from sketchogd.lab.methods.protected import Protected
from sketchogd.lab.methods import Method, Setup, build
from sketchogd.lab.runs.torchrun import Alone, Processes
from sketchogd.lab.runs.evaluate import accuracy, use_head, using_head
from sketchogd.lab.streams import record
from sketchogd.lab.streams.tasks import Pair, Stream
from sketchogd.memory import GradientMemory
from sketchogd.model.parameters import ProtectedParameters, Selection
from sketchogd.sketch import AllRows
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
    learner: Baseline


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

    With a `folder` that was started, evaluations and checkpoints are written there, and a checkpoint in it is resumed.
    Several `processes` call this together, the first of them with the folder.

    Raises:
        FloatingPointError: the loss is no longer finite.
    """
    training, processes = training or Training(), processes or Alone()
    model.to(device)
    optimizer = make_optimizer(model, training)
    heads = [recipe.head for recipe in stream.recipes]
    active = [heads[0]]

    def loss_of_head(inputs: Tensor, targets: Tensor, head: int) -> Tensor:
        with using_head(model, head, active[0]):
            return cross_entropy(model(inputs), targets)

    x, y = stream.train(0)
    shared: dict[str, Any] = {"group": processes.group, "own": processes.own}
    setup = Setup(model, optimizer, loss_of_head, len(stream), bytes_of_example(x, y), protected, seed, **shared)
    learner = build(method, setup)
    tests = [_placed(stream.test(t), device) for t in range(len(stream))]
    clock = _Clock()

    def evaluate(seen: int) -> list[float]:
        with learner.preview(), clock.measuring("evaluate"):
            return [accuracy(model, *tests[t], heads[t], active[0]) for t in range(seen)]

    T, epochs = len(stream), training.epochs
    matrix, initial = np.full((T, T), np.nan), np.full(T, np.nan)
    first_task = first_epoch = steps = 0
    saved = processes.from_first(folder.resume() if folder is not None else None)
    if saved is not None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        learner.load_state_dict(saved["learner"])
        matrix, initial = saved["matrix"].numpy(), saved["initial"].numpy()
        first_task, first_epoch, steps = saved["task"], saved["epoch"], saved["steps"]
        clock.spent = saved["spent"]
    else:
        initial[:] = evaluate(T)

    def checkpoint(task: int, epoch: int, due: bool) -> None:
        if folder is not None and (due or clock.since("checkpoint") * CHECKPOINT_SHARE > clock.last("checkpoint")):
            with clock.measuring("checkpoint"):
                state: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                state |= {"learner": learner.state_dict(), "task": task, "epoch": epoch, "steps": steps}
                state |= {"matrix": torch.tensor(matrix), "initial": torch.tensor(initial), "spent": clock.spent}
                folder.checkpoint(state)

    for t in range(first_task, T):
        x, y = _placed(stream.train(t), device)
        active[0] = heads[t]
        use_head(model, heads[t])
        per_epoch = -(-len(y) // training.batch)
        for epoch in range(first_epoch, epochs):
            order = torch.randperm(len(y), generator=generator(seed, "order", t, epoch)).to(device)
            total = torch.zeros((), device=device)
            model.train(not (training.eval_after_first_step and steps))
            with clock.measuring("train"), models.seeded(derive_seed(seed, "noise", t, epoch)):
                # One gather an epoch; the batches of a step are then views.
                batches = zip(x[order].split(training.batch), y[order].split(training.batch), strict=True)
                for i, (inputs, targets) in enumerate(batches):
                    optimizer.zero_grad()
                    loss = processes.backward(model, inputs, targets)
                    learner.before_step(inputs, targets, heads[t])
                    optimizer.step()
                    learner.after_step()
                    total += loss
                    if training.eval_after_first_step and steps == 0:
                        model.eval()
                    steps += 1
                    if progress is not None and i % STEPS_BETWEEN_REPORTS == 0:
                        progress(t * epochs + epoch + i / per_epoch, T * epochs, f"task {t + 1} of {T}")
            mean_loss = float(total) / per_epoch
            if not np.isfinite(mean_loss):
                raise FloatingPointError(f"the loss of task {t + 1}, epoch {epoch + 1} is {mean_loss}; lower lr")
            if folder is not None and training.curve:
                scores = evaluate(t + 1)
                event = {"event": "evaluation", "task": t, "epoch": epoch + 1, "accuracy": scores, "loss": mean_loss}
                folder.append(event)
            if epoch + 1 < epochs and not learner.pending:
                checkpoint(t, epoch + 1, due=False)
        if progress is not None:
            progress((t + 1) * epochs, T * epochs, f"remembering task {t + 1} of {T}")
        with clock.measuring("remember"):
            learner.end_task(x, y, heads[t])
        matrix[t], first_epoch = evaluate(T), 0
        if folder is not None:
            folder.save_accuracy(matrix, initial)
        if t + 1 < T:
            checkpoint(t + 1, 0, due=True)

    timings = {**clock.spent, "total": sum(clock.spent.values())}
    return Result(matrix, initial, metrics.summary(matrix, initial), ledger(learner), timings, steps, model, learner)


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

    Several `processes` do it together: the first calls this, the others `follow`.

    Raises:
        ValueError: a name or a setting is wrong.
        RecordError: the folder holds a run of another config, or another process works on it.
    """
    stream, known = stream_of(config, data_folder), record(config.benchmark)
    model = known.network(stream, config.seed)
    place = records.RunFolder(folder)
    with place.hold():
        begin(place, config, device, resume=True)
        options: dict[str, Any] = {"seed": config.seed, "device": device, "protected": known.protected}
        try:
            result = fit(
                stream,
                model,
                config.method,
                config.training,
                folder=place,
                progress=progress,
                processes=processes,
                **options,
            )
        except Exception as error:
            place.fail(error)
            raise
        ended = result.learner, result.summary, result.ledger, result.timings, result.steps
        conclude(place, model, known.protected, *ended)
    return result


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


def begin(place: records.RunFolder, config: RunConfig, device: str | torch.device, resume: bool = False) -> None:
    """Start the record of a run, or with `resume` go on with one that has a checkpoint.

    Raises:
        RecordError: the folder holds a run of another config.
    """
    record = config.record()
    started = (place.path / "run.json").exists()
    if started:
        found = records.load(place.path).record
        if records.config_digest(found["config"]) != records.config_digest(record):
            raise records.RecordError(f"{place.path}: holds a run of another config; choose another folder")
    if resume and started and (place.path / "checkpoint.safetensors").exists():
        place.update(status="running", **({"error": None} if "error" in found else {}))
    else:
        place.start(record, device)


def conclude(
    place: records.RunFolder,
    model: nn.Module,
    protected: Selection,
    learner: Baseline,
    summary: metrics.Summary,
    ledger: dict[str, Any],
    timings: dict[str, float],
    steps: int,
) -> None:
    """Write what is known at the end of a run, and mark it finished."""
    _save_spectra(place.path, learner)
    facts = {"ledger": ledger, "timings": timings, "steps": steps}
    place.finish(results=asdict(summary), parameters=_sizes(model, protected), **facts)


def ledger(learner: Baseline) -> dict[str, Any]:
    """Every tensor that the method keeps between steps, and the bytes of all, as plain values."""
    entries = [
        {"name": name, "shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch."), "nbytes": t.nbytes}
        for name, t in learner.tensors().items()
    ]
    return {"nbytes": sum(entry["nbytes"] for entry in entries), "entries": entries}


class _Clock:
    """Seconds spent on each kind of work."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._lasted: dict[str, float] = {}
        self._born = time.perf_counter()

    @contextmanager
    def measuring(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._ended[what] = time.perf_counter()
        self._lasted[what] = self._ended[what] - start
        self.spent[what] = self.spent.get(what, 0.0) + self._lasted[what]

    def since(self, what: str) -> float:
        return time.perf_counter() - self._ended.get(what, self._born)

    def last(self, what: str) -> float:
        return self._lasted.get(what, 0.0)


def _placed(pair: Pair, device: str | torch.device) -> Pair:
    return pair[0].to(device), pair[1].to(device)


def generator(*parts: int | str) -> torch.Generator:
    """The generator for one random choice, from what determines it."""
    return torch.Generator().manual_seed(derive_seed(*parts))


def _save_spectra(path: Path, learner: Baseline) -> None:
    values = learner.singular_values() if isinstance(learner, Protected) else None
    if values is None or not len(values):
        return
    squares = values.square()
    arrays = {"singular_values": values.cpu().numpy(), "stable_rank": np.array(float(squares.sum() / squares[0]))}
    if isinstance(learner, Protected) and isinstance(learner.protection.memory, GradientMemory):
        sketch = learner.protection.memory.sketch
        arrays |= rank_errors.errors_over_rank(sketch) if isinstance(sketch, AllRows) else {}
    with atomic.replacing(path / "spectra.npz") as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _sizes(model: nn.Module, protected: Selection) -> dict[str, int]:
    return {"all": sum(p.numel() for p in model.parameters()), "protected": ProtectedParameters(model, protected).p}
