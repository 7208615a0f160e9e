"""What the record of a run says: how it begins, what is measured after each epoch, and how it ends."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import nn

from sketchogd.lab import records
from sketchogd.lab.methods.learner import Learner
from sketchogd.lab.records import metrics
from sketchogd.lab.runs.config import RunConfig
from sketchogd.lab.runs.measure import measured
from sketchogd.model.parameters import ProtectedParameters, Selection
from sketchogd.storage import atomic


def begin(place: records.RunFolder, config: RunConfig, device: str | torch.device, resume: bool = False) -> None:
    """Start the record of a run, or with `resume` continue one that has a checkpoint.

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


def evaluated(place: records.RunFolder, task: int, epochs: int, accuracy: Sequence[float], loss: float) -> None:
    """Write the accuracies of the tasks seen so far, and the mean loss, after so many epochs of task `task`."""
    place.append({"event": "evaluation", "task": task, "epoch": epochs, "accuracy": list(accuracy), "loss": loss})


def diverged(task: int, epochs: int, loss: float) -> FloatingPointError:
    """The error of a run whose mean loss is not finite in epoch number `epochs`, counted from 1, of task `task`."""
    return FloatingPointError(f"the loss of task {task + 1}, epoch {epochs} is {loss}; lower lr")


def ledger(learner: Learner) -> dict[str, Any]:
    """Every tensor that a learner keeps between steps, and the bytes of all, as plain values."""
    entries = [
        {"name": name, "shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch."), "nbytes": t.nbytes}
        for name, t in learner.tensors().items()
    ]
    return {"nbytes": sum(entry["nbytes"] for entry in entries), "entries": entries}


def conclude(
    place: records.RunFolder,
    learner: Learner,
    model: nn.Module,
    protected: Selection,
    *,
    summary: metrics.Summary,
    ledger: dict[str, Any],
    timings: dict[str, float],
    steps: int,
) -> None:
    """Write spectra.npz and the last fields of run.json, and mark the run finished.

    Args:
        place: the run's folder.
        learner: what is measured of it goes to spectra.npz.
        model: its parameters are counted.
        protected: which of them the paper protects; counted too.
        summary: the run's results.
        ledger: the tensors that the learner keeps.
        timings: seconds for each kind of work.
        steps: optimizer steps taken.
    """
    if arrays := measured(learner):
        with atomic.replacing(place.path / "spectra.npz") as temporary, open(temporary, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
    sizes = {
        "all": sum(p.numel() for p in model.parameters()),
        "protected": ProtectedParameters(model, protected).p,
    }
    place.finish(results=asdict(summary), parameters=sizes, ledger=ledger, timings=timings, steps=steps)
