"""Averaging of weights: after each task the weights become a mean of those before it and those it ended with.

With θ the weights before task t (counted from 1) and θ′ those after it, θ ← θ + s (θ′ − θ), s = 1/t, so that the result
is the mean of all that tasks ended with, or a fixed share. Training is plain; the next task begins at the mean.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sketchogd.lab.methods.learner import Learner
from sketchogd.model.parameters import ProtectedParameters, Selection


class Averaging(Learner):
    """Keeps the weights before the task: 4 p bytes in float32.

    Args:
        model: the model that is trained.
        share: s from the second task on; None for 1/t.
        parameters: which parameters are averaged; by default all that are trained. Heads of tasks should not be.
    """

    def __init__(self, model: nn.Module, share: float | None = None, *, parameters: Selection = None) -> None:
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"share is in (0, 1], or None for 1/t; got {share!r}")
        self.parameters = ProtectedParameters(model, parameters)
        self.share = share
        self.tasks = 0
        self.before = self.parameters.flatten()

    @torch.no_grad()
    def end_task(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Average; the data is not used."""
        self.tasks += 1
        weights = self.parameters.flatten()
        if self.tasks > 1:
            weights = self.before + (weights - self.before) * (self.share or 1 / self.tasks)
            for t, piece in zip(self.parameters.tensors, self.parameters.unflatten(weights), strict=True):
                t.copy_(piece)
        self.before = weights

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        return {"before": self.before}

    def state_dict(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"tasks": self.tasks, "tensors": self.tensors()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner`."""
        self.tasks = int(state["tasks"])
        self.before = state["tensors"]["before"].to(self.parameters.device).clone()
