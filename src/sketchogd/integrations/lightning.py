"""A callback for Lightning's Trainer: protects its optimizer, remembers at the end, is part of its checkpoints."""

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, IterableDataset

from ..errors import ProtectionError
from ..protect import protect
from ..protection import Protection
from .examples import batches_of, processes


class _Settling:
    """Settles weights that are about to be saved; copies of the module have an inert one."""

    def __init__(self, protection: Protection | None) -> None:
        self._protection = None if protection is None else weakref.ref(protection)

    def __call__(self, *_: Any) -> None:
        protection = None if self._protection is None else self._protection()
        if protection is not None:
            protection.settle()

    def __reduce__(self) -> Any:
        return _Settling, (None,)


class ForgettingCallback(Callback):
    """Protects what a LightningModule learns, in this fit and in the next ones.

    The optimizer is protected when training starts. When it ends, the training set is remembered. Lightning's
    checkpoints contain the memory. `protection` is None until training starts.

    Args:
        budget: see `sketchogd.protect`.
        module: name of the submodule that maps inputs to logits and is protected; by default the whole LightningModule,
            whose `forward` does so.
        remember: the examples to remember, a data set or a DataLoader; by default the training set.
        examples: how many of them at most, chosen at random; with several processes, of all of them together.
        collator: makes a batch of a list of examples; by default that of the DataLoader trained on.
        path: a file to go on from, where it exists, and to save to when training ends.
        options: further arguments of `sketchogd.protect`, such as memory=, every= or strength=.
    """

    def __init__(
        self,
        budget: str | int | None = None,
        *,
        module: str = "",
        remember: Any = None,
        examples: int | None = None,
        collator: Callable[[Any], Any] | None = None,
        path: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        self.budget = budget
        self.module = module
        self.remember = remember
        self.examples = examples
        self.collator = collator
        self.path = None if path is None else Path(path)
        self.options = options
        self.protection: Protection | None = None
        self._loaded: dict[str, Any] | None = None
        self._hook: Any = None

    def state_dict(self) -> dict[str, Any]:
        """The memory, for a checkpoint; waiting steps are projected first, in the weights that Lightning saves too."""
        return {} if self.protection is None else self.protection.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the memory of a checkpoint until there is an optimizer to protect."""
        self._loaded = state_dict

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Protect the optimizer; go on from a checkpoint, from this callback's last fit, or from `path`."""
        if len(trainer.optimizers) != 1:
            raise ProtectionError(
                f"this callback protects the steps of one optimizer, and configure_optimizers returned "
                f"{len(trainer.optimizers)}; call sketchogd.protect for each of them instead"
            )
        model, fresh = pl_module.get_submodule(self.module), self.protection is None
        if self.protection is None:
            group = {"group": dist.group.WORLD} if processes() > 1 else {}
            self.protection = protect(model, trainer.optimizers[0], budget=self.budget, **{**group, **self.options})
        elif self.protection.parameters.model is not model:
            raise ProtectionError(
                "this callback protects another model object. Give the new model a callback of its own; path= carries "
                "over what is remembered"
            )
        else:
            self.protection.attach(trainer.optimizers[0])
        loaded, self._loaded = self._loaded, None
        if loaded:
            self.protection.load_state_dict(loaded)
        elif fresh and self.path is not None and self.path.exists():
            self.protection.load(self.path)
        self._hook = pl_module.register_state_dict_pre_hook(_Settling(self.protection))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the protection's numbers where Lightning logs."""
        if self.protection is not None and trainer.global_step % trainer.log_every_n_steps == 0:
            found = {f"protection/{name}": float(value) for name, value in self.protection.metrics().items()}
            pl_module.log_dict(found, on_step=True, on_epoch=False, batch_size=1)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Settle weights that are about to be evaluated."""
        if self.protection is not None:
            self.protection.settle()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Settle weights that may be saved or used."""
        self.on_validation_start(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember, and save to `path`."""
        if self.protection is None:
            return
        if self._hook is not None:
            self._hook.remove()
        self.protection.remember(*self._batches(trainer.train_dataloader))
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.protection.save(self.path)
            self.protection.detach()  # the next callback may be another one that goes on from the file

    def _batches(self, loader: Any) -> Any:
        """The examples to remember, in batches like those of training."""
        plain = isinstance(loader, DataLoader)
        source = self.remember if self.remember is not None else loader
        if source is loader and plain and not isinstance(loader.dataset, IterableDataset):
            source = loader.dataset
        if source is loader and not plain:
            return loader, self.examples
        collate = self.collator or (loader.collate_fn if plain else None)
        return batches_of(source, self.examples, (loader.batch_size if plain else None) or 64, collate)
