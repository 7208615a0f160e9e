"""A benchmark as one record: its data and stream, its network, how it is trained, and what is tuned for it.

The benchmarks themselves are in `benchmarks`, one file each. Letters: p protected parameters.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from sketchogd.lab.data import weights as published_weights
from sketchogd.lab.models.heads import MultiHead
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
        schedule: a key of `SCHEDULES` in `sketchogd.lab.runs.schedules`; "" for a constant learning rate.
        augment: a key of `AUGMENTATIONS` in `sketchogd.lab.streams.augment`; "" for examples as they are.
        weight_decay: that of the optimizer; None for its usual one.
        clip: the largest norm of a gradient; None for any.
        fresh: the optimizer forgets its state, such as momentum, when a task begins.
        test_batch: test examples are shuffled and evaluated in batches of this size, for norms that use the statistics
            of whatever batch they see; None for as many at once as fit.
    """

    epochs: int = 30
    batch: int = 10
    lr: float = 1e-3
    optimizer: str = "sgd"
    curve: bool = True
    frozen: tuple[str, ...] = ()
    eval_after_first_step: bool = False
    schedule: str = ""
    augment: str = ""
    weight_decay: float | None = None
    clip: float | None = None
    fresh: bool = False
    test_batch: int | None = None


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
        protected: which parameters memories protect, None for all. With one head for all tasks it is all.
        weights: the name of published weights that the network starts from, for `weights.load`; "" for none.
        training: how the paper trains on it, quirks included.
        seeded: whether the stream depends on the seed.
        curves: tasks, counted from 1, whose accuracy is drawn along training.
        tuned: options per method, where others than the usual ones are best on held-out training data.
        options: names of the options that `stream` takes; each is a field of `RunConfig` as well.
        goal: the accuracy to reach, None for no such goal.
        budget: bytes that a memory may take where networks are compared, 0 for benchmarks of the paper.
        seeds: how many seeds such a comparison has.
        published: accuracy and backward transfer that others publish, in percent, by method.
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
    weights: str = ""
    training: Training = Training()
    seeded: bool = False
    curves: tuple[int, ...] = ()
    tuned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    options: frozenset[str] = frozenset()
    goal: float | None = None
    budget: int = 0
    seeds: int = 5
    published: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)

    def model(self, stream: Stream, seed: int, data_folder: str | Path | None = None) -> nn.Module:
        """The network with its published weights, if it has any.

        Raises:
            DataError: the weights are missing or damaged.
        """
        made = self.network(stream, seed)
        if self.weights:
            made.load_pretrained(published_weights.load(self.weights, data_folder))  # type: ignore[operator]
        return made

    def held(self, stream: Stream) -> Selection:
        """Which parameters memories protect on this stream: a head that all tasks share is among them."""
        shared = self.protected == MultiHead.PROTECTED and stream.heads == 1
        return None if shared else self.protected
