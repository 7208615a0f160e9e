"""A callback for transformers' Trainer: protects its optimizer, remembers at the end, saves with every checkpoint."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..errors import ProtectionError, ProtectionWarning
from ..protect import protect
from ..protection import Protection
from .examples import batches_of, collating_like, processes

FILE = "sketchogd.safetensors"
"""The memory's file in a checkpoint's folder, beside the model or the adapter."""


class ForgettingCallback(TrainerCallback):
    """Protects what a model learns with a Trainer, and with the next Trainers on it.

    The optimizer is protected when training begins. When it ends, the training set is remembered. Checkpoints contain
    the memory, and training that resumes from one goes on with it. `protection` is None until training begins.

    Args:
        budget: see `sketchogd.protect`.
        remember: the examples to remember, a data set or a DataLoader; by default the training set.
        examples: how many of them at most, chosen at random; with several processes, of all of them together.
        collator: makes a batch of a list of examples; by default the Trainer's.
        path: a file to go on from, where it exists, and to save to when training ends.
        checkpoint: the checkpoint that training resumes from, if it is not in the Trainer's output_dir.
        trainer: the Trainer, through whose `log` numbers then reach TensorBoard, W&B and others. Without it they are in
            the progress bar and in `state.log_history` only, as Trainers tell reporters before other callbacks.
        options: further arguments of `sketchogd.protect`, such as memory=, every= or strength=.
    """

    def __init__(
        self,
        budget: str | int | None = None,
        *,
        remember: Any = None,
        examples: int | None = None,
        collator: Callable[[Any], Any] | None = None,
        path: str | os.PathLike[str] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        trainer: Trainer | None = None,
        **options: Any,
    ) -> None:
        self.budget = budget
        self.remember = remember
        self.examples = examples
        self.collator = collator
        self.path = None if path is None else Path(path)
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.trainer = trainer
        self.options = options
        self.protection: Protection | None = None

    @property
    def _kept(self) -> Protection:
        assert self.protection is not None, "on_train_begin comes first"
        return self.protection

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        """Protect the optimizer; go on from a checkpoint, from this callback's last training, or from `path`."""
        model, optimizer, fresh = kwargs["model"], kwargs["optimizer"], self.protection is None
        if self.protection is None:
            group = {"group": dist.group.WORLD} if processes() > 1 else {}
            self.protection = protect(model, optimizer, budget=self.budget, **{**group, **self.options})
        elif self.protection.parameters.model is not model:
            raise ProtectionError(
                "this callback protects another model object; give this one its own, whose path= carries memory over"
            )
        else:
            self.protection.attach(optimizer)
        if state.global_step:
            self._resume(args, state.global_step)
        elif fresh and self.path is not None and self.path.exists():
            self.protection.load(self.path)

    def _resume(self, args: TrainingArguments, step: int) -> None:
        """Load the memory of a checkpoint. Raises ProtectionError if the checkpoint is not where it is looked for."""
        folder = self.checkpoint or _folder(args, step)
        if not folder.is_dir():
            raise ProtectionError(
                f"training resumes at step {step}, and there is no folder {folder} with a memory; say where the "
                "checkpoint is: ForgettingCallback(..., checkpoint=FOLDER)"
            )
        if (folder / FILE).exists():
            self._kept.load(folder / FILE)
        else:
            warnings.warn(
                f"{folder} was written without this callback and has no {FILE}: NOTHING IS REMEMBERED of what was "
                "learned before. If there is a memory elsewhere, copy it there",
                ProtectionWarning,
                stacklevel=2,
            )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Settle weights that are about to be evaluated or saved."""
        if control.should_evaluate or control.should_save or control.should_training_stop:
            self._kept.settle()

    def on_epoch_end(self, *_: Any, **kwargs: Any) -> None:
        """See `on_step_end`."""
        self._kept.settle()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Put the memory into the checkpoint."""
        self._kept.save(_folder(args, state.global_step) / FILE)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Add the protection's numbers to those of the training loss."""
        logs = kwargs["logs"]
        if "loss" not in logs or self.protection is None:
            return
        found = {f"protection/{name}": value for name, value in self.protection.metrics().items()}
        if self.trainer is not None and self.trainer.state is state:
            self.trainer.log(found)
        else:
            logs.update(found)
            state.log_history[-1].update(found)

    def on_train_end(self, args: TrainingArguments, *_: Any, **kwargs: Any) -> None:
        """Remember, and save to `path`."""
        self._kept.remember(*self._batches(args, kwargs["train_dataloader"]))
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._kept.save(self.path)
            self._kept.detach()  # the next callback may be another one that goes on from the file

    def _batches(self, args: TrainingArguments, loader: Any) -> Any:
        """The examples to remember, in batches like those of training."""
        if self.remember is None:
            source = loader if isinstance(loader.dataset, IterableDataset) else loader.dataset
            return batches_of(source, self.examples, args.eval_batch_size, loader.collate_fn)
        collate = self.collator
        if collate is None:
            known = None if isinstance(loader.dataset, IterableDataset) else loader.dataset[0]
            collate = collating_like(loader.collate_fn, known)  # without columns that the Trainer left out of training
        return batches_of(self.remember, self.examples, args.eval_batch_size, collate)


def _folder(args: TrainingArguments, step: int) -> Path:
    return Path(args.output_dir or ".") / f"{PREFIX_CHECKPOINT_DIR}-{step}"
