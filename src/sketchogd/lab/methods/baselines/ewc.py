"""Elastic weight consolidation (Kirkpatrick et al. 2017, "Overcoming catastrophic forgetting in neural networks").

After task t, with weights θ*_t, the diagonal of the Fisher information is

    F_t,i = E_x Σ_c p(c | x) (∂ log p(c | x) / ∂θ_i)²,

and training continues with the loss + λ/2 Σ_t Σ_i F_t,i (θ_i − θ*_t,i)². A sum of parabolas is a parabola: with
A = Σ_t F_t and m the mean of the θ*_t weighted by F_t it equals λ/2 Σ_i A_i (θ_i − m_i)² up to a constant, so two
vectors are enough for any number of tasks. A strong penalty makes explicit steps diverge; `optimizer` makes the step
on the penalty implicit, after that of the optimizer: θ ← m + (θ − m) / (1 + η λ A), η the learning rate.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sketchogd.lab.methods.baselines.l2 import add_to_gradients_, draw_back_
from sketchogd.lab.methods.learner import Learner
from sketchogd.model.batches import call, evaluating, log_likelihood, logits_of
from sketchogd.model.gradients import GradientSignals
from sketchogd.model.parameters import ProtectedParameters, Selection
from sketchogd.seeds import derive_seed

ROWS_AT_ONCE = 100


class EWC(Learner):
    """Keeps the summed Fisher diagonal A and the anchor m: 8 p bytes in float32, whatever the number of tasks.

    The expectation over classes is exact: no labels are drawn.

    Args:
        model: the model that is trained.
        strength: λ.
        samples: random examples per task over which E_x is estimated; None for all of them.
        optimizer: given, the penalty is met by an implicit step with its learning rate.
        parameters: which parameters are held; by default all that are trained.
        seed: determines the samples.
    """

    def __init__(
        self,
        model: nn.Module,
        strength: float,
        *,
        samples: int | None = 200,
        optimizer: torch.optim.Optimizer | None = None,
        parameters: Selection = None,
        seed: int = 0,
    ) -> None:
        if not strength >= 0:
            raise ValueError(f"strength is a number >= 0; got {strength!r}")
        self.parameters = ProtectedParameters(model, parameters)
        self.strength = float(strength)
        self.samples = samples
        self.optimizer = optimizer
        self.seed = seed
        self.tasks = 0
        self.fisher = torch.zeros(self.parameters.p, dtype=self.parameters.dtype, device=self.parameters.device)
        self.anchor = torch.zeros_like(self.fisher)

    def penalty(self) -> Tensor:
        """λ/2 Σ A (θ − m)², without a graph."""
        return self.strength / 2 * (self.fisher * (self.parameters.flatten() - self.anchor).square()).sum()

    @torch.no_grad()
    def before_step(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Add the gradient of the penalty, λ A (θ − m), to `.grad`, unless the step is implicit."""
        if self.tasks == 0 or self.optimizer is not None:
            return
        pull = self.parameters.flatten().sub_(self.anchor).mul_(self.fisher).mul_(self.strength)
        add_to_gradients_(self.parameters, pull)

    @torch.no_grad()
    def after_step(self) -> None:
        """Take the implicit step, if that is asked for."""
        if self.tasks and self.optimizer is not None:
            stiffness = self.fisher * self.strength
            draw_back_(self.parameters, self.anchor, stiffness, self.optimizer.param_groups[0]["lr"])

    def end_task(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Add the task's Fisher diagonal at the current weights."""
        if self.samples is not None and self.samples < len(inputs):
            generator = torch.Generator().manual_seed(derive_seed(self.seed, "fisher", self.tasks))
            inputs = inputs[torch.randperm(len(inputs), generator=generator)[: self.samples].to(inputs.device)]
        new = fisher_diagonal(self.parameters, inputs)
        self.fisher += new
        share = torch.where(self.fisher > 0, new / self.fisher.clamp_min(torch.finfo(new.dtype).tiny), 0.0)
        self.anchor += share * (self.parameters.flatten() - self.anchor)
        self.tasks += 1

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        return {"fisher": self.fisher, "anchor": self.anchor}

    def state_dict(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"tasks": self.tasks, "tensors": self.tensors()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner`."""
        self.tasks = int(state["tasks"])
        self.fisher.copy_(state["tensors"]["fisher"])
        self.anchor.copy_(state["tensors"]["anchor"])


def fisher_diagonal(parameters: ProtectedParameters, inputs: Tensor) -> Tensor:
    """E_x Σ_c p(c | x) (∂ log p(c | x) / ∂θ)² (p,) over the inputs (n, …), with the model in evaluation mode."""
    signals = GradientSignals(parameters, log_likelihood)
    total = torch.zeros(parameters.p, dtype=parameters.dtype, device=parameters.device)
    for x in inputs.split(ROWS_AT_ONCE):
        with torch.no_grad(), evaluating(parameters.model):
            probabilities = logits_of(call(parameters.model, x)).softmax(-1)
        for label in range(probabilities.shape[1]):
            weights = probabilities[:, label].to(total.dtype)
            start = 0
            for G in signals.chunks(x, torch.full((len(x),), label, device=x.device)):
                total += weights[start : start + len(G)] @ G.square_()
                start += len(G)
    return total / len(inputs)
