"""The interface of a learner, the object behind a method: what it does around a step and after a task, what it keeps.

`head` is the output head that examples go through; models with a single head have only head 0. `p` trained parameters.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from torch import Tensor

Loss = Callable[[Tensor, Tensor, int], Tensor]
"""The mean training loss of a batch, loss(inputs, targets, head): a scalar with a graph to the parameters."""

Logits = Callable[[Tensor, int, Callable[[Tensor], Tensor] | None], Tensor]
"""The logits of a batch, logits(inputs, head, answer), in the mode that the model is in.

`answer` is what is called in place of the model, with the same head in use: the model with other weights.
"""


class Learner(ABC):
    """A method at work on one model. The hooks around a step do nothing unless a method needs them."""

    def before_step(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:  # noqa: B027 - a hook
        """Run after `backward` on this batch and before the optimizer's step; may change `.grad`."""

    def after_step(self) -> None:  # noqa: B027 - a hook
        """Run after the optimizer's step."""

    @property
    def pending(self) -> int:
        """Steps whose displacement is still to be projected; the state can be stored only when there are none."""
        return 0

    def settle(self) -> None:  # noqa: B027 - a hook
        """Project the steps that wait for their projection now."""

    def preview(self) -> AbstractContextManager[None]:
        """A block in which the weights are as they should be evaluated; it changes nothing for training."""
        return nullcontext()

    def joint(self, steps: int, more: bool = False) -> AbstractContextManager[None]:
        """A block of `steps` steps taken without the optimizer's hooks; they are projected together at its end.

        With `more` the projection is left to a later block.
        """
        return nullcontext()

    @abstractmethod
    def end_task(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Take what must be kept from the data of the task just trained; inputs (n, …), targets (n,)."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that is kept between steps, by name."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors kept."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values())

    def measurements(self) -> dict[str, np.ndarray]:
        """Arrays to store with a finished run, by name; none by default."""
        return {}

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """A tree of dicts, tensors and numbers, enough to continue from; the tensors may be the learner's own."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the `state_dict` of an equal learner on an equal model."""


def acts_at_steps(learner: Learner) -> bool:
    """Whether a learner has a hook of its own around a step."""
    kind = type(learner)
    return kind.before_step is not Learner.before_step or kind.after_step is not Learner.after_step
