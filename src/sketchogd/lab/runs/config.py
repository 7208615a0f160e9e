"""What a run is, named completely: how it trains, on which benchmark, with which method and seed. T tasks."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sketchogd.lab import models, streams
from sketchogd.lab.data import datasets
from sketchogd.lab.methods import Method, unknown
from sketchogd.lab.streams.tasks import Stream
from sketchogd.seeds import derive_seed

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


@dataclass(frozen=True)
class Training:
    """How each task is trained: cross-entropy, shuffled batches. The defaults are the paper's.

    optimizer: a key of `OPTIMIZERS`. curve: evaluate all tasks seen so far after every epoch, not only after a task.
    frozen: globs of parameters that are never updated. eval_after_first_step: put the model in evaluation mode for good
    after the first step. The last two are quirks of the published Split CIFAR-100 runs.
    """

    epochs: int = 30
    batch: int = 10
    lr: float = 1e-3
    optimizer: str = "sgd"
    curve: bool = True
    frozen: tuple[str, ...] = ()
    eval_after_first_step: bool = False


@dataclass(frozen=True)
class RunConfig:
    """One run, named completely: equal configs give equal numbers on the same machine.

    tasks, n_train, n_test (of one task) make the benchmark smaller; degrees is the step of rotated-mnist. validation:
    this share of each class of each task's training data is held out and scored on, and no test data is used. released:
    the permutations of permuted-mnist are those of the paper's released code.
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

    @property
    def setting(self) -> str:
        """The method's label, with the optimizer, the held-out share and the stream where these are not as usual."""
        words = [self.method.label]
        if self.training.optimizer != "sgd":
            words += [f"optimizer={self.training.optimizer}"]
        if self.validation:
            words += [f"validation={self.validation:g}"]
        if self.released:
            words += ["released"]
        return ",".join(words)

    @property
    def name(self) -> str:
        """The run's folder below that of its grid."""
        return f"{self.benchmark}/{self.setting}/seed-{self.seed}"

    def record(self) -> dict[str, Any]:
        """The config as run.json has it: one level, plain values; what says nothing is left out."""
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
        return {key: value for key, value in flat.items() if value not in (None, "", [], {})}


def stream_of(config: RunConfig, data_folder: str | Path | None = None) -> Stream:
    """The stream that a config names."""
    stream = _whole_stream(config, data_folder)
    return streams.validation(stream, config.validation) if config.validation else stream


def _whole_stream(config: RunConfig, data_folder: str | Path | None) -> Stream:
    if config.benchmark not in streams.BENCHMARKS:
        raise ValueError(unknown("benchmark", config.benchmark, streams.BENCHMARKS))
    sizes = {"tasks": config.tasks, "n_train": config.n_train, "n_test": config.n_test}
    if config.released and config.benchmark != "permuted-mnist":
        raise ValueError(f"released permutations are for permuted-mnist; {config.benchmark} has none")
    if config.degrees is None:
        return streams.benchmark(config.benchmark, data_folder, config.seed, released=config.released, **sizes)
    if config.benchmark != "rotated-mnist":
        raise ValueError(f"degrees is for rotated-mnist; {config.benchmark} does not turn its images")
    tasks = 10 if config.tasks is None else config.tasks
    images = datasets.load("mnist-subset")
    return streams.rotated(images, tasks, config.degrees, n_train=config.n_train, n_test=config.n_test)


def model_for(stream: Stream, seed: int) -> nn.Module:
    """The paper's network for a stream: the LeNet where images are 3 × 32 × 32, otherwise the MLP."""
    shape = stream.test(0)[0].shape[1:]
    chosen = derive_seed(seed, "model")
    if tuple(shape) == (3, 32, 32):
        return models.LeNet(stream.heads, stream.classes, seed=chosen)
    if stream.heads > 1:
        raise ValueError("the MLP has one head; for a stream with several give `fit` a model with use_head(head)")
    return models.mlp(shape.numel(), outputs=stream.classes, seed=chosen)


def make_optimizer(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    """The optimizer that `training` names, over what is trained; what is frozen stops requiring gradients."""
    if training.optimizer not in OPTIMIZERS:
        raise ValueError(unknown("optimizer", training.optimizer, OPTIMIZERS))
    for name, parameter in model.named_parameters():
        if any(fnmatchcase(name, glob) for glob in training.frozen):
            parameter.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    return OPTIMIZERS[training.optimizer](trained, lr=training.lr)
