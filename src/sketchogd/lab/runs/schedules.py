"""Learning rates within a task, and when its training ends: what differs from a constant rate and a number of epochs.

A schedule sees a task through: it may set examples aside, sets the rate before each step, and is told how an epoch
ended. All of its state is in `state_dict`, so that a task can be resumed between epochs. `n` examples of a task.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sketchogd.seeds import derive_seed


class Schedule(ABC):
    """How the rate moves during one task, whose optimizer has the rate `lr` at its beginning."""

    def __init__(self, lr: float, steps: int) -> None:
        self.lr = lr
        self.steps = steps

    def set_aside(self, n: int, *seed: int | str) -> Tensor | None:
        """The indices of the examples of a task that are not trained on, or None."""
        return None

    @abstractmethod
    def rate(self, step: int) -> float:
        """The rate of a step of the task, counted from 0."""

    def end_epoch(self, model: nn.Module, settle: Callable[[], None], loss: Callable[[], float]) -> bool:
        """Whether the task ends here.

        Args:
            model: the model.
            settle: to be called before its weights are kept.
            loss: the mean loss on what is set aside.
        """
        return False

    def end_task(self, model: nn.Module) -> None:  # noqa: B027 - a hook
        """Leave the model with the weights that count."""

    def state_dict(self) -> dict[str, Any]:
        """What an epoch leaves behind."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - a hook
        """Continue from that."""


class Constant(Schedule):
    """The rate stays."""

    def rate(self, step: int) -> float:
        """It."""
        return self.lr


class OneCycle(Schedule):
    """Up from lr / 25 during the first tenth of the steps, and down to lr / 250,000, both along half a cosine.

    As `torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, steps, pct_start=0.1)` (Smith & Topin 2018), momentum aside.
    """

    WARM, FROM, TO = 0.1, 25.0, 1e4

    def rate(self, step: int) -> float:
        """See the class."""
        top = self.WARM * self.steps - 1
        lowest = self.lr / self.FROM
        if top > 0 and step <= top:
            return _along_cosine(lowest, self.lr, step / top)
        return _along_cosine(self.lr, lowest / self.TO, (step - top) / (self.steps - 1 - top))


class Plateau(Schedule):
    """The rule of GPM's authors, after Serra et al. 2018: halved when the loss has not fallen for six epochs.

    A twentieth of the examples is set aside. After each epoch the loss on it is taken; the weights of the best one are
    kept, and are those of the task in the end. It ends when the rate would fall below `LEAST`.
    """

    ASIDE, PATIENCE, FACTOR, LEAST = 0.05, 6, 2.0, 1e-5

    def __init__(self, lr: float, steps: int) -> None:
        super().__init__(lr, steps)
        self.best = math.inf
        self.left = self.PATIENCE
        self.weights: dict[str, Tensor] = {}

    def set_aside(self, n: int, *seed: int | str) -> Tensor | None:
        """A random twentieth."""
        order = torch.randperm(n, generator=torch.Generator().manual_seed(derive_seed(0, "aside", *seed)))
        return order[: max(1, int(self.ASIDE * n))]

    def rate(self, step: int) -> float:
        """What it has been halved to."""
        return self.lr

    def end_epoch(self, model: nn.Module, settle: Callable[[], None], loss: Callable[[], float]) -> bool:
        """See the class."""
        settle()
        found = loss()
        if found < self.best:
            self.best, self.left = found, self.PATIENCE
            self.weights = {name: t.detach().clone() for name, t in model.state_dict().items()}
            return False
        self.left -= 1
        if self.left > 0:
            return False
        self.lr, self.left = self.lr / self.FACTOR, self.PATIENCE
        return self.lr < self.LEAST

    def end_task(self, model: nn.Module) -> None:
        """Load the best weights."""
        if self.weights:
            model.load_state_dict(self.weights)

    def state_dict(self) -> dict[str, Any]:
        """See `Schedule`."""
        best = None if math.isinf(self.best) else self.best
        return {"lr": self.lr, "best": best, "left": self.left, "weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Schedule`."""
        self.lr, self.left, self.weights = state["lr"], state["left"], dict(state["weights"])
        self.best = math.inf if state["best"] is None else state["best"]


SCHEDULES: dict[str, type[Schedule]] = {"": Constant, "onecycle": OneCycle, "plateau": Plateau}
"""Every schedule by its name in `Training`."""


def _along_cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))
