"""A-GEM as the paper's released code has it for models with several heads, to see what that does to its accuracy.

Read in trainer.py and algos/gem.py of github.com/azizanlab/sketchogd (2023): the whole memory batch, which is of many
tasks, goes through the head of its first example's task; and the gradient of the current head, computed before, is
overwritten by that of the memory's loss, which does not depend on it. From the second task on heads stay as they were
drawn. With a single head none of this happens.
"""

import torch
from torch import Tensor, nn

from sketchogd.lab.methods.baselines import AGEM
from sketchogd.lab.methods.baselines.agem import project_on_half_space_
from sketchogd.lab.methods.learner import Loss
from sketchogd.model.parameters import ProtectedParameters, Selection


class PublishedAGEM(AGEM):
    """`AGEM` with one head for the whole memory batch, and heads that are not trained after the first task."""

    def __init__(
        self, model: nn.Module, loss: Loss, per_task: int, batch: int, protected: Selection, *, seed: int = 0
    ) -> None:
        super().__init__(model, loss, per_task, batch, seed=seed)
        self.body = ProtectedParameters(model, protected)

    def before_step(self, inputs: Tensor, targets: Tensor, group: int = 0) -> None:
        """Project the gradients of all but the heads, and leave the heads none."""
        if not len(self.store):
            return
        x, y, head = self.store.mixed(self.batch)
        with torch.enable_grad():
            loss = self.loss(x, y, head)
        reference: list[Tensor | None] = list(torch.autograd.grad(loss, self.body.tensors))
        for parameter in self.parameters:
            if all(parameter is not other for other in self.body.tensors):
                parameter.grad = None
        project_on_half_space_(self.body.tensors, reference)
