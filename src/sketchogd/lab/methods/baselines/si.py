"""Synaptic intelligence (Zenke, Poole, Ganguli 2017, "Continual Learning Through Synaptic Intelligence").

During training each parameter accumulates its share of the decrease of the task's loss, ω_i += −g_i Δθ_i, where g is
the gradient of the task's loss alone and Δθ the step taken. At the end of a task that moved parameter i by D_i,

    Ω_i += ω_i / (D_i² + ξ),  ω ← 0,  θ̃ ← θ,

and training continues with the loss + c Σ_i Ω_i (θ_i − θ̃_i)².
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sketchogd.lab.methods.learner import Learner
from sketchogd.model.parameters import ProtectedParameters, Selection


class SI(Learner):
    """Keeps Ω, ω and the anchor θ̃: 12 p bytes in float32; within a step also the gradient and the old weights.

    A negative ω counts as zero at the end of a task, so that the penalty stays bounded below.

    Args:
        model: the model that is trained.
        strength: c.
        damping: ξ.
        parameters: which parameters are held; by default all that are trained.
    """

    def __init__(
        self, model: nn.Module, strength: float, *, damping: float = 0.1, parameters: Selection = None
    ) -> None:
        if not strength >= 0 or not damping > 0:
            raise ValueError(f"strength is a number >= 0 and damping one > 0; got {strength!r} and {damping!r}")
        self.parameters = ProtectedParameters(model, parameters)
        self.strength = float(strength)
        self.damping = float(damping)
        self.anchor = self.parameters.flatten()
        self.importance = torch.zeros_like(self.anchor)
        self.path = torch.zeros_like(self.anchor)
        self._before: tuple[Tensor, Tensor] | None = None

    def penalty(self) -> Tensor:
        """c Σ Ω (θ − θ̃)², without a graph."""
        return self.strength * (self.importance * (self.parameters.flatten() - self.anchor).square()).sum()

    @torch.no_grad()
    def before_step(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Keep gradient and weights for `after_step`; add the gradient of the penalty, 2 c Ω (θ − θ̃), to `.grad`."""
        weights = self.parameters.flatten()
        gradient = self.parameters.flatten([t.grad for t in self.parameters.tensors])
        self._before = weights, gradient
        pull = (weights - self.anchor).mul_(self.importance).mul_(2 * self.strength)
        for t, piece in zip(self.parameters.tensors, self.parameters.unflatten(pull), strict=True):
            t.grad = piece.to(t.dtype).clone() if t.grad is None else t.grad.add_(piece)

    @torch.no_grad()
    def after_step(self) -> None:
        """Add −g Δθ of the step just taken to the path integral."""
        if self._before is None:
            raise RuntimeError("SI.after_step needs before_step to have been called on the same batch")
        weights, gradient = self._before
        self._before = None
        self.path.addcmul_(gradient, self.parameters.flatten().sub_(weights), value=-1.0)

    def end_task(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Turn the path integral into importances; the data is not used."""
        weights = self.parameters.flatten()
        self.importance += (self.path / ((weights - self.anchor).square() + self.damping)).clamp_min(0.0)
        self.path.zero_()
        self.anchor = weights

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        return {"importance": self.importance, "path": self.path, "anchor": self.anchor}

    def state_dict(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"tensors": self.tensors()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner`."""
        for name, tensor in self.tensors().items():
            tensor.copy_(state["tensors"][name])
