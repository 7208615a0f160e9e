"""The two learners that are no baselines: `Nothing`, plain training, and `Protected`, a `Protection`."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sketchogd as so
from sketchogd.lab.methods.learner import Learner
from sketchogd.lab.methods.outputs import AS_USUAL, Remembered
from sketchogd.seeds import derive_seed

ROWS_AT_ONCE = 500
"""Examples per batch that a memory observes."""


class Nothing(Learner):
    """Plain training. Keeps nothing: 0 bytes."""

    def end_task(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Keep nothing."""

    def tensors(self) -> dict[str, Tensor]:
        """Empty."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Empty."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: there is no state."""


class Protected(Learner):
    """A `Protection`: its optimizer hooks project the steps; after each task, `examples` of it are remembered.

    Args:
        protection: attached to the model and its optimizer.
        examples: how many random examples of each task are remembered; None for all.
        every: optimizer steps between two projections.
        seed: determines which examples are remembered, and the signs of random outputs.
        own: which of the remembered examples this process observes, where several work on a run.
        remembered: the output that the memory protects.
        rows: examples per batch that the memory observes.
    """

    def __init__(
        self,
        protection: so.Protection,
        examples: int | None,
        every: int,
        seed: int,
        own: slice = slice(None),
        remembered: Remembered = AS_USUAL,
        rows: int = ROWS_AT_ONCE,
    ) -> None:
        self.protection = protection
        self.examples = examples
        self.every = every
        self.seed = seed
        self.own = own
        self.remembered = remembered
        self.rows = rows
        self.tasks = 0

    @property
    def pending(self) -> int:
        """Steps that wait for their projection."""
        return self.protection.pending

    def settle(self) -> None:
        """See `Learner`."""
        self.protection.settle()

    def preview(self) -> AbstractContextManager[None]:
        """See `Learner`."""
        return self.protection.preview()

    def joint(self, steps: int, more: bool = False) -> AbstractContextManager[None]:
        """See `Learner`."""
        return self.protection.joint(steps, more)

    def end_task(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Remember the task, or a random part of it."""
        if self.examples is not None and self.examples < len(targets):
            generator = torch.Generator().manual_seed(derive_seed(self.seed, "remembered", self.tasks))
            rows = torch.randperm(len(targets), generator=generator)[: self.examples].to(targets.device)
            inputs, targets = inputs[rows], targets[rows]
        targets = self.remembered.targets(targets, self.seed, "signs", self.tasks)
        inputs, targets = inputs[self.own], targets[self.own]
        self.protection.remember(zip(inputs.split(self.rows), targets.split(self.rows), strict=True))
        self.tasks += 1

    def tensors(self) -> dict[str, Tensor]:
        """What the protection's ledger counts: sketches, bases, and the copy of the weights that `every` > 1 needs."""
        return {item.name: item.tensor for item in self.protection.held()}

    def singular_values(self) -> Tensor | None:
        """Singular values of the remembered gradients, falling; None unless the memory is one gradient sketch."""
        memory = self.protection.memory
        if not isinstance(memory, so.GradientMemory) or memory.blocks > 1:
            return None
        return memory.sketch.spectrum()[0].sqrt()

    def measurements(self) -> dict[str, np.ndarray]:
        """`singular_values` and `stable_rank`, ‖G‖_F²/‖G‖₂², of the remembered gradients G where they are sketched."""
        values = self.singular_values()
        if values is None or not len(values):
            return {}
        squares = values.square()
        return {"singular_values": values.cpu().numpy(), "stable_rank": np.array(float(squares.sum() / squares[0]))}

    def state_dict(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"tasks": self.tasks, "protection": self.protection.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner`."""
        self.tasks = int(state["tasks"])
        self.protection.load_state_dict(state["protection"])
