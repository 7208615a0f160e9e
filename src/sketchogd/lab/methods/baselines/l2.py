"""Old weights as an anchor: the loss + λ/2 ‖θ − θ̃‖², θ̃ the weights after the last task.

Also the implicit step that this and EWC may take instead of adding the gradient of their penalty.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sketchogd.lab.methods.learner import Learner
from sketchogd.model.parameters import ProtectedParameters, Selection


class L2(Learner):
    """Keeps the anchor θ̃: 4 p bytes in float32.

    Args:
        model: the model that is trained.
        strength: λ.
        optimizer: given, the penalty is met by an implicit step (`draw_back_`) after that of the optimizer.
        parameters: which parameters are held; by default all that are trained.
    """

    def __init__(
        self,
        model: nn.Module,
        strength: float,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        parameters: Selection = None,
    ) -> None:
        if not strength >= 0:
            raise ValueError(f"strength is a number >= 0; got {strength!r}")
        self.parameters = ProtectedParameters(model, parameters)
        self.strength = float(strength)
        self.optimizer = optimizer
        self.tasks = 0
        self.anchor = self.parameters.flatten()

    @torch.no_grad()
    def before_step(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Add λ (θ − θ̃) to `.grad`, unless the step is implicit."""
        if self.tasks and self.optimizer is None:
            add_to_gradients_(self.parameters, (self.parameters.flatten() - self.anchor).mul_(self.strength))

    @torch.no_grad()
    def after_step(self) -> None:
        """Take the implicit step, if that is asked for."""
        if self.tasks and self.optimizer is not None:
            stiffness = torch.full_like(self.anchor, self.strength)
            draw_back_(self.parameters, self.anchor, stiffness, self.optimizer.param_groups[0]["lr"])

    @torch.no_grad()
    def end_task(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Move the anchor to the weights; the data is not used."""
        self.anchor = self.parameters.flatten()
        self.tasks += 1

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        return {"anchor": self.anchor}

    def state_dict(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"tasks": self.tasks, "tensors": self.tensors()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner`."""
        self.tasks = int(state["tasks"])
        self.anchor = state["tensors"]["anchor"].to(self.parameters.device).clone()


def add_to_gradients_(parameters: ProtectedParameters, vector: Tensor) -> None:
    """Add the pieces of a vector (p,) to `.grad`."""
    for t, piece in zip(parameters.tensors, parameters.unflatten(vector), strict=True):
        t.grad = piece.to(t.dtype).clone() if t.grad is None else t.grad.add_(piece)


def draw_back_(parameters: ProtectedParameters, anchor: Tensor, stiffness: Tensor, rate: float) -> None:
    """θ ← argmin_θ′ ½ ‖θ′ − θ‖² + η/2 Σ s_i (θ′_i − m_i)² = m + (θ − m) / (1 + η s), stable for any stiffness s (p,).

    The rate η is the optimizer's; for SGD it is the step that the gradient of the penalty at the new weights gives.
    """
    weights = parameters.flatten()
    found = anchor + (weights - anchor) / (1 + rate * stiffness)
    for t, piece in zip(parameters.tensors, parameters.unflatten(found), strict=True):
        t.copy_(piece)
