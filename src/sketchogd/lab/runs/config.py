"""What a run is, named completely: how it trains, on which benchmark, with which method and seed."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sketchogd.budget import ANCHORS, anchor_for
from sketchogd.lab.methods import Method, method
from sketchogd.lab.models import lenet_for, mlp_for
from sketchogd.lab.names import unknown
from sketchogd.lab.streams import Stream, Training, benchmark, record, validation

__all__ = [
    "OPTIMIZERS",
    "RunConfig",
    "Training",
    "default_method",
    "make_optimizer",
    "model_for",
    "stream_of",
]

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


@dataclass(frozen=True)
class RunConfig:
    """One run, named completely: equal configs give equal numbers on the same machine.

    Args:
        benchmark: a name in `BENCHMARKS`.
        method: the method and its settings.
        training: how each task is trained.
        seed: every random choice is derived from it.
        preset: the experiment that the run belongs to; no number depends on it.
        tasks: the first so many tasks only.
        n_train: training examples per task.
        n_test: test examples per task.
        degrees: an option of Rotated MNIST, the angle between two tasks.
        validation: this share of each class of each task's training data is held out and scored on; no test data is
            used.
        released: an option of Permuted MNIST, the permutations that the paper's released code draws.
        per_task: an option of the networks on CIFAR-100, classes per task.
        single_head: an option of the networks, one head for the classes of all tasks.
    """

    benchmark: str
    method: Method
    training: Training = field(default_factory=Training)
    seed: int = 0
    preset: str = ""
    tasks: int | None = None
    n_train: int | None = None
    n_test: int | None = None
    degrees: float | None = None
    validation: float = 0.0
    released: bool = False
    per_task: int | None = None
    single_head: bool = False

    @property
    def setting(self) -> str:
        """The method's label, with the optimizer, the held-out share and the stream where they are not the defaults."""
        words = [self.method.label]
        if self.training.optimizer != "sgd":
            words += [f"optimizer={self.training.optimizer}"]
        if self.validation:
            words += [f"validation={self.validation:g}"]
        if self.released:
            words += ["released"]
        words += [f"per_task={self.per_task}"] if self.per_task else []
        words += ["single_head"] if self.single_head else []
        return ",".join(words)

    @property
    def name(self) -> str:
        """Path of the run's folder, relative to that of its grid."""
        return f"{self.benchmark}/{self.setting}/seed-{self.seed}"

    def record(self) -> dict[str, Any]:
        """The config as it is in run.json: one level, plain values; empty ones are left out."""
        settings = asdict(self.method)
        flat: dict[str, Any] = {
            "benchmark": self.benchmark,
            "method": settings.pop("name"),
            "seed": self.seed,
            "preset": self.preset,
        }
        flat |= asdict(self.training) | settings
        flat |= {key: getattr(self, key) for key in ("tasks", "n_train", "n_test", "degrees")}
        flat["frozen"] = list(self.training.frozen)
        flat["validation"] = self.validation or None
        flat["released"] = self.released or None
        flat |= {"per_task": self.per_task, "single_head": self.single_head or None}
        flat["fresh"] = self.training.fresh or None
        return {key: value for key, value in flat.items() if value not in (None, "", [], {})}


def stream_of(config: RunConfig, data_folder: str | Path | None = None) -> Stream:
    """The stream that a config names.

    Raises:
        ValueError: unknown benchmark, or an option (`degrees`, `released`) that it does not take.
        DataError: its data set is missing or damaged.
    """
    stream = benchmark(
        config.benchmark,
        data_folder,
        config.seed,
        tasks=config.tasks,
        n_train=config.n_train,
        n_test=config.n_test,
        degrees=config.degrees,
        released=config.released,
        per_task=config.per_task,
        single_head=config.single_head,
    )
    return validation(stream, config.validation) if config.validation else stream


def model_for(stream: Stream, seed: int) -> nn.Module:
    """A network of the paper for any stream: the LeNet where images are 3 × 32 × 32, otherwise the MLP.

    Runs of a benchmark have the network of its record instead.
    """
    images = tuple(stream.test(0)[0].shape[1:]) == (3, 32, 32)
    return lenet_for(stream, seed) if images else mlp_for(stream, seed)


def default_method(name: str, benchmark: str, *, tuned: bool = True, **settings: Any) -> Method:
    """A method with those settings that are tuned for the benchmark, or with its usual ones; `settings` override both.

    A ridge replaces the tuned strength. The anchor of a layer memory is kept as its budget asks for (`anchor_for`),
    unless something is said about it.

    Raises:
        ValueError: unknown method, benchmark or option.
    """
    known = record(benchmark)
    budget = settings.get("budget")
    if (
        name in ("layer-sketch", "layer-memory")
        and budget is not None
        and not settings.keys() & {"ridge", "anchor_dtype"}
    ):
        p = known.parameters
        anchor = ANCHORS[anchor_for(budget, (4 * p, p, 0))]
        settings |= anchor
        if "ridge" in anchor and settings.get("every") is None:
            settings["every"] = 1  # projecting several steps together would need a copy of the weights
    best = known.tuned.get(name, {}) if tuned and settings.get("ridge") is None else {}
    return method(name, **{**best, **settings})


def make_optimizer(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    """The optimizer that `training` names, over all parameters but the frozen ones, which stop requiring gradients.

    Raises:
        ValueError: unknown optimizer.
    """
    if training.optimizer not in OPTIMIZERS:
        raise ValueError(unknown("optimizer", training.optimizer, OPTIMIZERS))
    for name, parameter in model.named_parameters():
        if any(fnmatchcase(name, glob) for glob in training.frozen):
            parameter.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = OPTIMIZERS[training.optimizer](trained, lr=training.lr)
    if training.weight_decay is not None:
        for settings in optimizer.param_groups:
            settings["weight_decay"] = training.weight_decay
    return optimizer
