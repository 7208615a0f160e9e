"""A-GEM as the paper's released code has it for models with several heads, to see what that does to its accuracy.

Read in trainer.py and algos/gem.py of github.com/azizanlab/sketchogd (2023): the whole memory batch, which is of many
tasks, goes through the head of its first example's task; and the gradient of the current head, computed before, is
overwritten by that of the memory's loss, which does not depend on it. From the second task on heads stay as they were
initialised. With a single head none of this happens.

Importing this file registers the method "a-gem-published".
"""

import torch
from torch import Tensor, nn

from sketchogd.lab.methods import Learner, Method, Setup, register
from sketchogd.lab.methods.baselines import AGEM, Loss
from sketchogd.lab.methods.baselines.agem import project_on_half_space_
from sketchogd.lab.methods.baselines.builders import agem_options
from sketchogd.lab.runs.sidebyside.stored_examples import GradientChange, project_on_half_spaces_, register_change
from sketchogd.model.parameters import ProtectedParameters, Selection


class PublishedAGEM(AGEM):
    """`AGEM` with one head for the whole memory batch, and heads that are not trained after the first task.

    Args:
        model: the model that is trained.
        loss: mean loss of a batch of one head.
        per_task: examples kept of each task.
        batch: examples drawn at each step.
        protected: the parameters that are trained after the first task: all but the heads.
        seed: every random choice follows from it.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, per_task: int, batch: int, protected: Selection, *, seed: int = 0
    ) -> None:
        super().__init__(model, loss, per_task, batch, seed=seed)
        self.body = ProtectedParameters(model, protected)

    def before_step(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Project the gradients of all but the heads, and drop those of the heads."""
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


@register(
    "a-gem-published",
    "A-GEM with the heads mixed up, as in the paper's released code",
    keeps_examples=True,
    every=1,
    sizes=["per_task"],
    per_task=60,
    batch=1200,
)
def _published_agem(settings: Method, setup: Setup) -> Learner:
    options = {**agem_options(settings, setup), "protected": setup.protected}
    return PublishedAGEM(setup.model, setup.loss, **options, seed=setup.seed_of(settings.name))


register_change(PublishedAGEM, GradientChange(project_on_half_spaces_, body=lambda learner: learner.body.names))
