"""Learning without forgetting (Li & Hoiem 2016, "Learning without Forgetting").

The model as it was after the last task answers the current batch through the heads of earlier tasks, and the new one
is held to its answers: to the loss is added

    λ Σ_h −Σ_c p_c(T) log q_c(T),   p(T) = softmax(z / T) of the old logits, q(T) that of the new, T = 2,

the mean over the batch, h over the heads that were trained. Of a head that all tasks share, c are the classes seen.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import log_softmax

from sketchogd.lab.methods.learner import Learner, Logits
from sketchogd.model.batches import evaluating, logits_of


class LwF(Learner):
    """Keeps the trained tensors of the old model: 4 p bytes, and its buffers; what is frozen is shared with the new.

    Args:
        model: the model that is trained.
        logits: of a batch through a head, see `Setup`.
        strength: λ.
        temperature: T.
    """

    def __init__(self, model: nn.Module, logits: Logits, strength: float, *, temperature: float = 2.0) -> None:
        if not strength >= 0 or not temperature > 0:
            raise ValueError(f"strength is >= 0 and temperature > 0; got {strength!r} and {temperature!r}")
        self.model = model
        self.logits = logits
        self.strength, self.temperature = float(strength), float(temperature)
        self.old: dict[str, Tensor] = {}
        self.classes: dict[int, Tensor] = {}

    def before_step(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Add the gradient of the distance to the old answers to `.grad`."""
        if not self.old or not self.strength:
            return
        trained = [t for t in self.model.parameters() if t.requires_grad]
        with torch.enable_grad():
            parts = [self._distance(inputs, h, seen) for h, seen in self.classes.items()]
            total = self.strength * torch.stack(parts).sum()
        for t, g in zip(trained, torch.autograd.grad(total, trained, allow_unused=True), strict=True):
            if g is not None:
                t.grad = g if t.grad is None else t.grad.add_(g)

    def end_task(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Keep the model as it is now."""
        self.old = {name: t.detach().clone() for name, t in self._kept().items()}
        seen = targets.unique()
        known = self.classes.get(head)
        self.classes[head] = seen if known is None else torch.cat([known, seen]).unique()

    def tensors(self) -> dict[str, Tensor]:
        """The old model."""
        return dict(self.old)

    def state_dict(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"tensors": self.tensors(), "classes": {h: seen.tolist() for h, seen in self.classes.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner`."""
        device = next(self.model.parameters()).device
        self.old = {name: t.to(device).clone() for name, t in state["tensors"].items()}
        self.classes = {int(h): torch.tensor(seen, device=device) for h, seen in state["classes"].items()}

    def _kept(self) -> dict[str, Tensor]:
        trained = {name: t for name, t in self.model.named_parameters() if t.requires_grad}
        return trained | dict(self.model.named_buffers())

    def _distance(self, x: Tensor, head: int, seen: Tensor) -> Tensor:
        """The mean cross-entropy between old and new answers through a head."""
        with torch.no_grad(), evaluating(self.model):
            z = self.logits(x, head, self._old_answers)[:, seen]
        q = log_softmax(self.logits(x, head, None)[:, seen] / self.temperature, 1)
        return -(torch.softmax(z / self.temperature, 1) * q).sum(1).mean()

    @property
    def _old_answers(self) -> Callable[[Tensor], Tensor]:
        return lambda x: logits_of(functional_call(self.model, self.old, (x,)))
