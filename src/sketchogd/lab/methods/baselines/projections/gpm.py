"""Gradient projection memory (Saha, Garg, Roy 2021, "Gradient Projection Memory for Continual Learning").

After task t the inputs A (d, n) of each layer on some examples are taken, and what the basis U (d, r) leaves of them,
Â = A − U Uᵀ A, is decomposed. U gets the fewest leading left singular vectors of Â for which

    ‖A‖² − ‖Â‖² + ‖Â_k‖² ≥ ε_t ‖A‖²,   ε_t = energy + more · t.

Training continues with G ← G − G U Uᵀ. For the first task the authors' script takes the largest rank whose share is
below ε, one less than their equation; so does this.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from sketchogd.lab.methods.baselines.layers import Layer, inputs_of
from sketchogd.lab.methods.baselines.projections.projection import LayerProjection, per_layer
from sketchogd.model.parameters import Selection
from sketchogd.seeds import derive_seed


class GPM(LayerProjection):
    """Keeps a basis U (d, r) per layer: 4 d r bytes.

    Args:
        model: the model that is trained.
        energy: ε_0, in all or per layer.
        more: what is added to it with each task.
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
        samples: int | Sequence[int] = 125,
        updates: bool = False,
        parameters: Selection = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, updates=updates, parameters=parameters)
        self.energies = per_layer("energy", energy, self.layers)
        self.samples = [int(n) for n in per_layer("samples", samples, self.layers)]
        if not all(0 < share <= 1 for share in self.energies) or min(self.samples) < 1:
            raise ValueError(f"energy is > 0 and at most 1, and samples at least 1; got {energy} and {samples}")
        self.more = more
        self.seed = seed
        self.bases: dict[str, Tensor] = {}

    def projected(self, layer: Layer, G: Tensor) -> Tensor:
        """G − G U Uᵀ."""
        U = self.bases[layer.name]
        return G - (G @ U) @ U.T

    def observe(self, inputs: Tensor) -> None:
        """Extend the bases by the task's inputs."""
        chosen = sample(inputs, max(self.samples), self.seed, self.tasks)
        found = inputs_of(self.parameters.model, self.layers, chosen)
        for layer, samples, share in zip(self.layers, self.samples, self.energies, strict=True):
            A = columns(layer, found[layer.name], samples)
            self.bases[layer.name] = extended(self.bases.get(layer.name), A, share + self.more * self.tasks)

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        return dict(self.bases)

    def _load(self, tensors: Mapping[str, Tensor]) -> None:
        self.bases = {layer.name: tensors[layer.name] for layer in self.layers if layer.name in tensors}


def sample(inputs: Tensor, most: int, seed: int, task: int) -> Tensor:
    """Up to `most` random examples of a task's inputs."""
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(derive_seed(seed, "samples", task)))
    return inputs[order[:most].to(inputs.device)]


def columns(layer: Layer, calls: Sequence[Tensor], samples: int) -> Tensor:
    """The inputs of a layer on the first examples, as columns (d, n)."""
    return torch.cat([layer.rows(x[:samples]) for x in calls]).T


def extended(U: Tensor | None, A: Tensor, share: float) -> Tensor:
    """U (d, r) with the fewest more columns so that it holds this share of the energy of A (d, n); see the module."""
    whole = A.double().square().sum()
    values, vectors = left_singular(left_over(U, A))
    squares = values.square()
    held = whole - squares.sum()
    if U is None:
        return vectors[:, : int((squares.cumsum(0) < share * whole).sum())].to(A.dtype)
    if held >= share * whole:
        return U
    more = 1 + int((held + squares.cumsum(0) < share * whole).sum())
    return torch.cat([U, vectors[:, :more].to(A.dtype)], 1)[:, : len(A)]


def left_over(U: Tensor | None, A: Tensor) -> Tensor:
    """A − U Uᵀ A in float64."""
    A = A.double()
    return A if U is None else A - U.double() @ (U.double().T @ A)


def left_singular(A: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values (min(d, n),), falling, and left singular vectors (d, …) of A (d, n), in float64."""
    if A.shape[1] <= A.shape[0]:
        vectors, values, _ = torch.linalg.svd(A.double(), full_matrices=False)
        return values, vectors
    squares, vectors = torch.linalg.eigh(A.double() @ A.double().T)  # a convolution has many more rows than d
    return squares.flip(0).clamp_min(0.0).sqrt(), vectors.flip(1)
