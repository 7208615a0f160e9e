"""Orthogonal recursive fitting (Min, Ahn, Azizan 2022, "One-Pass Learning via Bridging Orthogonal Gradient Descent and
Recursive Least-Squares"), for streams in which every example is seen once.

With the residual e = f(x) − y of an example, its gradient g = ∇_w f(x) and a basis U (k, p) of earlier gradients,

    g′ = g − Uᵀ U g,   w ← w − g′ e / (gᵀ g′),

which fits the example to first order and leaves what lies in U. Then g enters by incremental PCA: the rows of diag(σ) U
become the `rank` leading singular vectors, by their values, of those rows and g.

The algorithm is for scalar outputs. An example with C logits, fitted to its one-hot target by least squares, is taken
as C data points at once: with J (C, p) their gradients and J′ = J − J Uᵀ U, w ← w − J′ᵀ (J J′ᵀ)⁺ e: for one
output the step above. So is a batch of b examples, with b · C points.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from sketchogd.lab.methods.learner import Learner
from sketchogd.model.batches import logits_of
from sketchogd.model.parameters import ProtectedParameters, Selection

TOLERANCE = 1e-6
"""Singular values of J J′ᵀ below this share of the largest count as zero: those gradients lie in U already."""


class ORFit(Learner):
    """Keeps `rank` directions of length p and their singular values: 4 rank (p + 1) bytes.

    The gradient of the loss is replaced by the step over the learning rate, so that plain SGD takes the step.

    Args:
        model: the model that is trained.
        optimizer: plain SGD, without momentum or weight decay.
        rank: k.
        share: the part of the step that is taken, 1 as published.
        parameters: which parameters take part; by default all that are trained. Others are not moved.

    Raises:
        ValueError: another optimizer, no rank, or a share outside (0, 1].
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        rank: int,
        *,
        share: float = 1.0,
        parameters: Selection = None,
    ) -> None:
        groups = optimizer.param_groups
        if type(optimizer) is not torch.optim.SGD or any(g["momentum"] or g["weight_decay"] for g in groups):
            raise ValueError(f"ORFit computes the step itself and needs plain SGD; got {type(optimizer).__name__}")
        if rank < 1 or not 0 < share <= 1:
            raise ValueError(f"rank is at least 1 (a budget must hold it), share in (0, 1]; got {rank} and {share}")
        self.model = model
        self.optimizer = optimizer
        self.rank = rank
        self.share = share
        self.parameters = ProtectedParameters(model, parameters)
        self.others = [t for t in model.parameters() if t.requires_grad and t not in self.parameters]
        self.basis = torch.zeros(0, self.parameters.p, dtype=self.parameters.dtype, device=self.parameters.device)
        self.values = self.basis.new_zeros(0)

    def before_step(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Set `.grad` to the step that fits the batch, over the learning rate, and take its gradients in."""
        J, residual = self._gradients(inputs, targets)
        free = J - (J @ self.basis.T) @ self.basis
        solved = torch.linalg.pinv((J @ free.T).double(), rtol=TOLERANCE) @ residual.double()
        step = free.T @ solved.to(J.dtype) * (self.share / self.optimizer.param_groups[0]["lr"])
        for t, piece in zip(self.parameters.tensors, self.parameters.unflatten(step), strict=True):
            t.grad = piece.to(t.dtype).clone()
        for t in self.others:
            t.grad = None
        self.basis, self.values = leading(torch.cat([self.values[:, None] * self.basis, J]), self.rank)

    def end_task(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Everything was taken in when it was seen."""

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        return {"basis": self.basis, "values": self.values}

    def state_dict(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"tensors": self.tensors()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner`."""
        self.basis, self.values = (
            state["tensors"][name].to(self.parameters.device).clone() for name in ("basis", "values")
        )

    def _gradients(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients (b · C, p) of all logits, and what they are too large by (b · C,)."""
        with torch.enable_grad():
            logits = logits_of(self.model(inputs))
            residual = (logits - one_hot(targets, logits.shape[1])).detach().flatten()
            rows = [
                self.parameters.flatten(
                    list(torch.autograd.grad(z, self.parameters.tensors, retain_graph=True, allow_unused=True))
                )
                for z in logits.flatten()
            ]
        return torch.stack(rows), residual.to(rows[0].dtype)


def leading(rows: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The `rank` leading right singular vectors (k, p) of the rows (n, p), and their values (k,); zeros left out."""
    squares, left = torch.linalg.eigh(rows.double() @ rows.double().T)
    squares, left = squares.flip(0)[:rank], left.flip(1)[:, :rank]
    kept = squares > squares[0] * torch.finfo(rows.dtype).eps
    values = squares[kept].sqrt()
    basis = (left[:, kept] / values).T @ rows.double()
    return basis.to(rows.dtype), values.to(rows.dtype)
