"""A-GEM (Chaudhry, Ranzato, Rohrbach, Elhoseiny 2019, "Efficient Lifelong Learning with A-GEM").

g is the gradient of the current batch, r that of the mean loss over a batch drawn from the stored examples. If gᵀr < 0,

    g ← g − (gᵀr / rᵀr) r,

the projection of g on the half-space in which the loss on the memory does not rise; otherwise g stays as it is.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sketchogd.lab.methods.baselines.examples import ExampleStore
from sketchogd.lab.methods.learner import Learner, Loss
from sketchogd.lab.streams.encodings import AS_GIVEN, Encoding
from sketchogd.model.parameters import ProtectedParameters


class AGEM(Learner):
    """Keeps `per_task` random raw examples of every finished task; draws `batch` of them at each step.

    All trained parameters take part, output heads included. Bytes: tasks · per_task · (bytes of an input + 16). For
    32 × 32 float32 images that is 4,112 per example, so 120 examples of each of ten tasks take 4.9 MB.

    Args:
        model: the model that is trained.
        loss: mean loss of a batch of one head.
        per_task: examples kept of each task.
        batch: examples drawn at each step.
        encoding: how inputs are kept.
        seed: every random choice follows from it.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        per_task: int,
        batch: int,
        *,
        encoding: Encoding = AS_GIVEN,
        seed: int = 0,
    ) -> None:
        if per_task < 1 or batch < 1:
            raise ValueError(f"A-GEM needs at least one example a task and a batch; got {per_task} and {batch}")
        self.parameters = ProtectedParameters(model).tensors
        self.loss = loss
        self.per_task = per_task
        self.batch = batch
        self.store = ExampleStore(seed, encoding)
        self.tasks = 0

    def before_step(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Project the gradients in `.grad`."""
        if len(self.store):
            reference, _ = self.store.gradient(self.batch, self.loss, self.parameters)
            project_on_half_space_(self.parameters, reference)

    def end_task(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Keep `per_task` random examples of the task."""
        rows = torch.randperm(len(targets), generator=self.store.generator("task", self.tasks))[: self.per_task]
        rows = rows.to(inputs.device)
        self.store.append(inputs[rows], targets[rows], head)
        self.tasks += 1

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        return self.store.tensors()

    def state_dict(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"tasks": self.tasks, "store": self.store.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner`."""
        self.tasks = int(state["tasks"])
        self.store.load_state_dict(state["store"], lambda t: t.to(self.parameters[0].device))


@torch.no_grad()
def project_on_half_space_(parameters: tuple[nn.Parameter, ...], reference: list[Tensor | None]) -> None:
    """Gradients g ← g − min(gᵀr, 0) / rᵀr · r in place, without a branch that would synchronise with the device."""
    pairs = [(t, r) for t, r in zip(parameters, reference, strict=True) if r is not None]
    product = sum(torch.sum(t.grad * r) for t, r in pairs if t.grad is not None)
    size = sum(torch.sum(r * r) for _, r in pairs)
    if not isinstance(product, Tensor) or not isinstance(size, Tensor):
        return
    factor = product.clamp(max=0.0) / size.clamp_min(torch.finfo(size.dtype).tiny)
    for t, r in pairs:
        if t.grad is None:
            t.grad = -factor * r
        else:
            t.grad.sub_(factor * r)
