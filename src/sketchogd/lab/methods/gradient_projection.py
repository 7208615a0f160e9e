"""Projection of gradients before the optimizer's step instead of updates after it, for comparison.

For plain SGD the two are the same. Momentum and Adam rescale and mix gradients, so their update is not orthogonal to
what is remembered even where the gradient is: it leaks.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sketchogd.lab.methods.learner import Learner
from sketchogd.lab.methods.protected import Protected


class GradientProjected(Learner):
    """The memory of a `Protected` learner, applied to gradients: g ← g − A g before the optimizer's step."""

    def __init__(self, learner: Protected) -> None:
        self.learner = learner
        learner.protection.detach()  # the optimizer's own update is not projected

    @torch.no_grad()
    def before_step(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Project the gradients."""
        projector, parameters = self.learner.protection.projector, self.learner.protection.parameters
        if projector is None or projector.empty:
            return
        v = parameters.flatten([t.grad for t in parameters.tensors])
        pieces = parameters.unflatten(projector.protected_part_(v))
        for t, piece in zip(parameters.tensors, pieces, strict=True):
            if t.grad is None:
                t.grad = -piece
            else:
                t.grad -= piece

    def end_task(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """See `Protected`."""
        self.learner.end_task(inputs, targets, head)

    def tensors(self) -> dict[str, Tensor]:
        """See `Protected`."""
        return self.learner.tensors()

    def state_dict(self) -> dict[str, Any]:
        """See `Learner`."""
        return self.learner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner`."""
        self.learner.load_state_dict(state)
