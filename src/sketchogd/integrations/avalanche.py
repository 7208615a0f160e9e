"""A plugin for Avalanche's supervised strategies: protects their optimizer and remembers every experience."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from avalanche.core import SupervisedPlugin
from avalanche.evaluation.metric_results import MetricValue
from avalanche.models import MultiTaskModule

from ..protect import protect
from ..protection import Protection
from .examples import batches_of, processes


class SketchOGDPlugin(SupervisedPlugin):
    """Protects what a strategy has learned from the experiences before.

    Heads that grow (`IncrementalClassifier`) and heads that are added (`MultiHeadClassifier`) are taken up before each
    experience. `protection` is None until training begins.

    Args:
        budget: see `sketchogd.protect`; heads that grow take more bytes than at the beginning.
        examples: how many examples of an experience to remember at most, chosen at random.
        path: a file to go on from, where it exists, and to save to after each experience.
        log_every: after so many iterations the strategy's loggers are told the protection's numbers.
        options: further arguments of `sketchogd.protect`, such as memory=, every= or strength=.
    """

    def __init__(
        self,
        budget: str | int | None = None,
        *,
        examples: int | None = None,
        path: str | os.PathLike[str] | None = None,
        log_every: int = 50,
        **options: Any,
    ) -> None:
        super().__init__()
        self.budget = budget
        self.examples = examples
        self.path = None if path is None else Path(path)
        self.log_every = log_every
        self.options = options
        self.protection: Protection | None = None

    def before_train_dataset_adaptation(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Protect the optimizer and load `path`, while the model is as it was before this experience."""
        if self.protection is None:
            group = {"group": dist.group.WORLD} if processes() > 1 else {}
            options = {**group, **self.options}
            self.protection = protect(strategy.model, strategy.optimizer, budget=self.budget, **options)
            if self.path is not None and self.path.exists():
                self.protection.load(self.path)

    def before_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Take up what the strategy added to model and optimizer for this experience."""
        if self.protection is not None:
            self.protection.adopt(strategy.model, strategy.optimizer)

    def after_training_iteration(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Tell the loggers now and then."""
        step = strategy.clock.train_iterations
        if self.protection is not None and step % self.log_every == 0:
            for name, value in self.protection.metrics().items():
                strategy.evaluator.publish_metric_value(MetricValue(self, f"Protection/{name}", float(value), step))

    def after_training_epoch(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Settle weights that may be evaluated."""
        if self.protection is not None:
            self.protection.settle()

    def before_eval(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """See `after_training_epoch`."""
        self.after_training_epoch(strategy)

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Remember the experience, and save to `path`."""
        if self.protection is None:
            return
        dataset = strategy.experience.dataset.eval()
        collate = _pairs(dataset.collate_fn, isinstance(strategy.model, MultiTaskModule))
        self.protection.remember(*batches_of(dataset, self.examples, strategy.eval_mb_size, collate))
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.protection.save(self.path)


def _pairs(collate: Callable[[Any], Any], with_tasks: bool) -> Callable[[Any], Any]:
    """Batches (inputs, targets) of Avalanche's (inputs, targets, …, task labels)."""

    def pair(examples: Any) -> Any:
        inputs, targets, *_, tasks = collate(examples)
        return ((inputs, tasks) if with_tasks else inputs), targets

    return pair
