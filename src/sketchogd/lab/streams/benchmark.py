"""A benchmark as one record: its data and stream, its network, how it is trained, and what is tuned for it.

The benchmarks themselves are in `benchmarks`, one file each. Letters: p protected parameters.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from sketchogd.lab.streams.tasks import Stream
from sketchogd.model.parameters import Selection

Network = Callable[[Stream, int], nn.Module]
"""network(stream, seed): the network for a stream; the seed is that of the run."""


@dataclass(frozen=True)
class Training:
    """How each task is trained: cross-entropy on shuffled batches. The defaults are the paper's.

    Args:
        epochs: passes over the training data of a task.
        batch: examples per step.
        lr: learning rate.
        optimizer: a key of `OPTIMIZERS` in `sketchogd.lab.runs.config`.
        curve: evaluate all tasks seen so far after every epoch, not only after every task.
        frozen: globs of the names of parameters that are never updated.
        eval_after_first_step: put the model into evaluation mode for good after the first step. This and `frozen` are
            quirks of the published Split CIFAR-100 runs.
    """

    epochs: int = 30
    batch: int = 10
    lr: float = 1e-3
    optimizer: str = "sgd"
    curve: bool = True
    frozen: tuple[str, ...] = ()
    eval_after_first_step: bool = False


@dataclass(frozen=True)
class Benchmark:
    """Everything the lab knows of one benchmark; nothing else compares its name.

    Args:
        name: as in configs and on the command line.
        title: as in tables and figures.
        dataset: a name for `datasets.load`; None where the stream has data of its own, and is called without images.
        stream: stream(images, seed=, tasks=, n_train=, n_test=, **options) builds the tasks from labelled images;
            n_train and n_test count examples per task. None means all of them, and the benchmark's number of tasks.
        network: the network that runs train, from the stream and the seed of the run.
        parameters: p.
        tasks: number of tasks.
        examples: training examples per task.
        example_nbytes: bytes per raw example in the stores of A-GEM and replay: float32 inputs, target and group.
        protected: which parameters memories protect, None for all.
        training: how the paper trains on it, quirks included.
        seeded: whether the stream depends on the seed.
        curves: tasks, counted from 1, whose accuracy is drawn along training.
        tuned: options per method, where others than the usual ones are best on held-out training data.
        options: names of the options that `stream` takes; each is a field of `RunConfig` as well.
    """

    name: str
    title: str
    dataset: str | None
    stream: Callable[..., Stream]
    network: Network
    parameters: int
    tasks: int
    examples: int
    example_nbytes: int
    protected: Selection = None
    training: Training = Training()
    seeded: bool = False
    curves: tuple[int, ...] = ()
    tuned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    options: frozenset[str] = frozenset()
