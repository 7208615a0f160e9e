"""The interface of a baseline: what it does around a step and after a task, and what it keeps.

`group` names examples that must go through the model together, such as those of one output head; models with a single
head need only group 0. `p` trained parameters.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

Loss = Callable[[Tensor, Tensor, int], Tensor]
"""The mean training loss of a batch, loss(inputs, targets, group): a scalar with a graph to the parameters."""


class Baseline(ABC):
    """A method that acts around the optimizer's steps. The hooks do nothing unless a method needs them."""

    def before_step(self, inputs: Tensor, targets: Tensor, group: int = 0) -> None:  # noqa: B027 - a hook
        """After `backward` on this batch and before the optimizer's step: `.grad` may be changed."""

    def after_step(self) -> None:  # noqa: B027 - a hook
        """After the optimizer's step."""

    @property
    def pending(self) -> int:
        """How many steps wait for what the method does to several at once; with none, the run can be stored."""
        return 0

    def preview(self) -> AbstractContextManager[None]:
        """In the block the weights are as they may be evaluated; after it training goes on as if nobody had looked."""
        return nullcontext()

    def joint(self, steps: int, more: bool = False) -> AbstractContextManager[None]:
        """The block takes `steps` steps that no optimizer announces; what acts between steps acts after the block.

        With `more` it waits for another block.
        """
        return nullcontext()

    @abstractmethod
    def end_task(self, inputs: Tensor, targets: Tensor, group: int = 0) -> None:
        """Take from the data of the task that was just trained what has to be kept; inputs (n, …), targets (n,)."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that is kept between steps, by name."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors kept."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values())

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """A tree of dicts, tensors and numbers; the tensors may be the method's own."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of an equal baseline on an equal model."""
