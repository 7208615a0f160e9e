"""Scaled gradient projection (Saha & Roy 2023, "Continual Learning with Scaled Gradient Projection").

GPM whose directions are free by as much as they are unimportant: G ← G − G U Λ Uᵀ. After each task σ_i is, for old
directions u_i, the energy of the task's inputs that they hold, σ_i² = u_iᵀ A_p A_pᵀ u_i with A_p = U Uᵀ A, and for new
ones the singular value that they came with. Then

    λ_i = (c + 1) σ_i / (c σ_i + max σ),

to which an old direction adds the importance that it had, up to 1.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from sketchogd.lab.methods.baselines.layers import Layer, inputs_of
from sketchogd.lab.methods.baselines.projections.gpm import columns, extended, left_over, left_singular, sample
from sketchogd.lab.methods.baselines.projections.projection import LayerProjection, per_layer
from sketchogd.model.parameters import Selection


class SGP(LayerProjection):
    """Keeps a basis U (d, r) and r importances per layer: 4 (d + 1) r bytes.

    Args:
        model: the model that is trained.
        energy: share of the energy that the bases hold, in all or per layer.
        more: what is added to it with each task.
        scale: c; the larger, the closer to GPM.
        samples: examples of each task whose inputs are decomposed, for all layers or per layer.
        updates: see `LayerProjection`.
        parameters: which parameters are held; by default all that are trained.
        seed: determines the samples.
    """

    def __init__(
        self,
        model: nn.Module,
        energy: float | Sequence[float],
        *,
        more: float = 0.0,
        scale: float = 10.0,
        samples: int | Sequence[int] = 125,
        updates: bool = False,
        parameters: Selection = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, updates=updates, parameters=parameters)
        self.energies = per_layer("energy", energy, self.layers)
        self.samples = [int(n) for n in per_layer("samples", samples, self.layers)]
        if not all(0 < share <= 1 for share in self.energies) or min(self.samples) < 1 or not scale >= 0:
            raise ValueError(f"energy is > 0 and at most 1, scale >= 0; got {energy} and {scale}")
        self.more, self.scale, self.seed = more, scale, seed
        self.bases: dict[str, Tensor] = {}
        self.importances: dict[str, Tensor] = {}

    def projected(self, layer: Layer, G: Tensor) -> Tensor:
        """G − G U Λ Uᵀ."""
        U = self.bases[layer.name]
        return G - ((G @ U) * self.importances[layer.name]) @ U.T

    def observe(self, inputs: Tensor) -> None:
        """Extend the bases by the task's inputs, and add to the importances."""
        chosen = sample(inputs, max(self.samples), self.seed, self.tasks)
        found = inputs_of(self.parameters.model, self.layers, chosen)
        for layer, samples, share in zip(self.layers, self.samples, self.energies, strict=True):
            A, name = columns(layer, found[layer.name], samples), layer.name
            old = self.bases.get(name)
            U = extended(old, A, share + self.more * self.tasks)
            self.importances[name] = importance(old, self.importances.get(name), U, A, self.scale)
            self.bases[name] = U

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        return {f"basis.{name}": U for name, U in self.bases.items()} | {
            f"importance.{name}": values for name, values in self.importances.items()
        }

    def _load(self, tensors: Mapping[str, Tensor]) -> None:
        for part, kept in (("basis.", self.bases), ("importance.", self.importances)):
            kept.clear()
            kept.update({name.removeprefix(part): t for name, t in tensors.items() if name.startswith(part)})


def importance(old: Tensor | None, earlier: Tensor | None, U: Tensor, A: Tensor, scale: float) -> Tensor:
    """λ (r,) of the columns of U (d, r), which begin with `old` (d, r₀), whose importances were `earlier` (r₀,)."""
    known = 0 if old is None else old.shape[1]
    values, _ = left_singular(left_over(old, A))
    sigma = values[: U.shape[1] - known]
    if old is not None:
        # The energy along u_i of the part of A in the span of U is that of A along u_i.
        sigma = torch.cat([(old.double().T @ A.double()).norm(dim=1), sigma])
    largest = sigma.max() if len(sigma) else sigma.new_ones(())
    found = (scale + 1) * sigma / (scale * sigma + largest).clamp_min(torch.finfo(sigma.dtype).tiny)
    if earlier is not None:
        found[:known] = (found[:known] + earlier.double()).clamp(0.0, 1.0)
    return found.to(A.dtype)
