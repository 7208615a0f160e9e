"""Orthogonal weights modification (Zeng, Chen, Cui, Yu 2019, "Continual learning of context-dependent processing").

P projects on what the inputs of a layer leave free, P = I − A (Aᵀ A + α I)⁻¹ Aᵀ, and follows them recursively: for the
mean input x̄ (d,) of every batch of a task that was trained,

    P ← P − (P x̄)(P x̄)ᵀ / (α + x̄ᵀ P x̄),   α falling from `alpha` to `alpha · decay` over the task's batches.

Training continues with G ← G P. A convolution has one mean input per place of its kernel; these R (L, d) are taken in
at once, P ← P − P Rᵀ (α I + R P Rᵀ)⁻¹ R P, which is what one after the other gives.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sketchogd.lab.methods.baselines.layers import Layer, inputs_of
from sketchogd.lab.methods.baselines.projections.projection import LayerProjection
from sketchogd.model.parameters import Selection

PLACES = 512
"""Mean inputs that are taken in at once."""


class OWM(LayerProjection):
    """Keeps P of each layer, symmetric: 2 d (d + 1) bytes.

    The batches go through the model once more when the task ends, so that a task's P holds its last weights' inputs.

    Args:
        model: the model that is trained.
        alpha: α at the first batch of a task.
        decay: what it has been multiplied by at the end.
        batch: examples whose mean input is taken.
        updates: see `LayerProjection`.
        parameters: which parameters are held; by default all that are trained.
    """

    def __init__(
        self,
        model: nn.Module,
        alpha: float,
        *,
        decay: float = 0.001,
        batch: int = 64,
        updates: bool = False,
        parameters: Selection = None,
    ) -> None:
        super().__init__(model, updates=updates, parameters=parameters)
        if not alpha > 0 or not 0 < decay <= 1 or batch < 1:
            raise ValueError(f"alpha is > 0, decay in (0, 1], batch at least 1; got {alpha}, {decay}, {batch}")
        self.alpha, self.decay, self.batch = alpha, decay, batch
        self.projectors = {
            layer.name: torch.eye(layer.width, dtype=self.parameters.dtype, device=self.parameters.device)
            for layer in self.layers
        }

    def projected(self, layer: Layer, G: Tensor) -> Tensor:
        """G P."""
        return G @ self.projectors[layer.name]

    def observe(self, inputs: Tensor) -> None:
        """Take the mean inputs of the task's batches in."""
        pieces = inputs.split(self.batch)
        for i, x in enumerate(pieces):
            alpha = self.alpha * self.decay ** (i / len(pieces))
            found = inputs_of(self.parameters.model, self.layers, x)
            for layer in self.layers:
                for a in found[layer.name]:
                    for R in layer.rows(a.mean(0, keepdim=True)).split(PLACES):
                        self.projectors[layer.name] = without(self.projectors[layer.name], R, alpha)

    def tensors(self) -> dict[str, Tensor]:
        """The upper triangles of the projectors, row by row."""
        return {name: P[tuple(torch.triu_indices(*P.shape, device=P.device))] for name, P in self.projectors.items()}

    def _load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, P in self.projectors.items():
            i, j = torch.triu_indices(*P.shape, device=P.device)
            P[i, j] = tensors[name]
            P[j, i] = tensors[name]


def without(P: Tensor, R: Tensor, alpha: float) -> Tensor:
    """P (d, d) after the rows of R (L, d) were taken in with this α; symmetric."""
    K = P.double() @ R.double().T
    inner = R.double() @ K
    inner.diagonal().add_(alpha)
    found = P.double() - K @ torch.linalg.solve(inner, K.T)
    return ((found + found.T) / 2).to(P.dtype)
