"""What the training loop of the lab works with beside the baselines: nothing at all, or a `Protection`."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

import sketchogd as so
from sketchogd.lab.methods.learner import Baseline
from sketchogd.lab.methods.outputs import AS_USUAL, Remembered
from sketchogd.seeds import derive_seed

ROWS_AT_ONCE = 500
"""Examples that are given to a memory in one batch."""


class Nothing(Baseline):
    """Plain training. Keeps nothing: 0 bytes."""

    def end_task(self, inputs: Tensor, targets: Tensor, group: int = 0) -> None:
        """Nothing is kept."""

    def tensors(self) -> dict[str, Tensor]:
        """None."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is nothing to load."""


class Protected(Baseline):
    """A `Protection`: steps are projected by its optimizer hooks; after a task, `examples` of it are remembered."""

    def __init__(
        self,
        protection: so.Protection,
        examples: int | None,
        every: int,
        seed: int,
        own: slice = slice(None),
        remembered: Remembered = AS_USUAL,
    ) -> None:
        self.protection = protection
        self.examples = examples
        self.every = every
        self.seed = seed
        self.own = own
        self.remembered = remembered
        self.tasks = 0

    @property
    def pending(self) -> int:
        """Steps that wait for their projection."""
        return self.protection.pending

    def preview(self) -> AbstractContextManager[None]:
        """See `Baseline`."""
        return self.protection.preview()

    def joint(self, steps: int, more: bool = False) -> AbstractContextManager[None]:
        """See `Baseline`."""
        return self.protection.joint(steps, more)

    def end_task(self, inputs: Tensor, targets: Tensor, group: int = 0) -> None:
        """Remember the task, or a random part of it."""
        if self.examples is not None and self.examples < len(targets):
            generator = torch.Generator().manual_seed(derive_seed(self.seed, "remembered", self.tasks))
            rows = torch.randperm(len(targets), generator=generator)[: self.examples].to(targets.device)
            inputs, targets = inputs[rows], targets[rows]
        targets = self.remembered.targets(targets, self.seed, "signs", self.tasks)
        inputs, targets = inputs[self.own], targets[self.own]
        self.protection.remember(zip(inputs.split(ROWS_AT_ONCE), targets.split(ROWS_AT_ONCE), strict=True))
        self.tasks += 1

    def tensors(self) -> dict[str, Tensor]:
        """What the protection's ledger counts: sketches, bases, and the copy of the weights that `every` > 1 needs."""
        return {item.name: item.tensor for item in self.protection.held()}

    def singular_values(self) -> Tensor | None:
        """Those of the remembered gradients as their one sketch knows them, falling; None for other memories."""
        memory = self.protection.memory
        if not isinstance(memory, so.GradientMemory) or memory.blocks > 1:
            return None
        return memory.sketch.spectrum()[0].sqrt()

    def state_dict(self) -> dict[str, Any]:
        """See `Baseline`."""
        return {"tasks": self.tasks, "protection": self.protection.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Baseline`."""
        self.tasks = int(state["tasks"])
        self.protection.load_state_dict(state["protection"])
