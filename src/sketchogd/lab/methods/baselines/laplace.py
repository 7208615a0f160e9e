"""Online Laplace with Kronecker factors (Ritter, Botev, Barber 2018, "Online Structured Laplace Approximations").

After task t the posterior over the weights W (out, d) of a layer is taken as Gaussian, around the weights W̃ that were
found, with a precision to which the task adds the mean Fisher matrix of its examples, approximated by Q ⊗ H:

    Q = E_x [Σ a aᵀ] (d, d),   H = E_x E_{c ~ p(c | x)} [mean δ δᵀ] (out, out),   δ = ∂ log p(c | x) / ∂ output,

the sum and the mean over the places that a convolution visits. Training continues with the loss and

    λ/2 Σ_layers ⟨W − W̃, Λ (W − W̃)⟩,   Λ V = H V Q,

whose gradient is λ H (W − W̃) Q. A sum of Kronecker products is none. As the expectation over examples is split, so is
that over tasks: with T tasks Λ = T · mean(Q) ⊗ mean(H), both means over tasks. The expectation over classes is exact.
What is not a layer is held by the diagonal of its Fisher matrix, summed over tasks.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sketchogd.lab.methods.baselines.ewc import fisher_diagonal
from sketchogd.lab.methods.baselines.l2 import add_to_gradients_
from sketchogd.lab.methods.baselines.layers import Layer, layers_of, recorded
from sketchogd.lab.methods.learner import Learner
from sketchogd.model.batches import call, evaluating, logits_of
from sketchogd.model.parameters import ProtectedParameters, Selection
from sketchogd.seeds import derive_seed

ROWS_AT_ONCE = 100


class Laplace(Learner):
    """Keeps the factors in full, symmetric, and the anchor: 2 d (d + 1) + 2 out (out + 1) bytes per layer, and 4 p.

    Args:
        model: the model that is trained.
        strength: λ.
        samples: random examples per task over which E_x is estimated; None for all of them.
        parameters: which parameters are held; by default all that are trained.
        seed: determines the samples.

    Raises:
        ValueError: a negative strength, or no layer is held.
    """

    def __init__(
        self,
        model: nn.Module,
        strength: float,
        *,
        samples: int | None = 500,
        parameters: Selection = None,
        seed: int = 0,
    ) -> None:
        if not strength >= 0:
            raise ValueError(f"strength is a number >= 0; got {strength!r}")
        self.parameters = ProtectedParameters(model, parameters)
        self.layers, rest = layers_of(self.parameters)
        if not self.layers:
            raise ValueError("Kronecker factors need a linear layer or a convolution among the held parameters")
        others = {id(t) for t in rest}
        self.rest = ProtectedParameters(model, lambda name, t: id(t) in others) if rest else None
        self.strength, self.samples, self.seed = float(strength), samples, seed
        self.tasks = 0
        self.factors = {
            layer.name: (
                self._zeros(layer.width, layer.width),
                self._zeros(len(layer.module.weight), len(layer.module.weight)),
            )
            for layer in self.layers
        }
        self.anchor = self.parameters.flatten()
        self.fisher = self._zeros(0 if self.rest is None else self.rest.p)

    def penalty(self) -> Tensor:
        """Half of λ ⟨θ − θ̃, Λ (θ − θ̃)⟩, without a graph."""
        with torch.no_grad():
            return (self._moved() * self._pull()).sum() / 2

    @torch.no_grad()
    def before_step(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Add the gradient of the penalty to `.grad`."""
        if self.tasks == 0:
            return
        add_to_gradients_(self.parameters, self._pull())

    def end_task(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Take the task's factors at the current weights into the means, and move the anchor there."""
        if self.samples is not None and self.samples < len(inputs):
            generator = torch.Generator().manual_seed(derive_seed(self.seed, "fisher", self.tasks))
            inputs = inputs[torch.randperm(len(inputs), generator=generator)[: self.samples].to(inputs.device)]
        self.tasks += 1
        for name, new in kronecker_factors(self.parameters.model, self.layers, inputs).items():
            for mean, factor in zip(self.factors[name], new, strict=True):
                mean += (factor - mean) / self.tasks
        if self.rest is not None:
            self.fisher += fisher_diagonal(self.rest, inputs)
        self.anchor = self.parameters.flatten()

    def tensors(self) -> dict[str, Tensor]:
        """The upper triangles of the factors row by row, the anchor, and the diagonal for the rest."""
        found = {
            f"{name}.{part}": F[tuple(torch.triu_indices(*F.shape, device=F.device))]
            for name, pair in self.factors.items()
            for part, F in zip("QH", pair, strict=True)
        }
        return {**found, "anchor": self.anchor, **({"fisher": self.fisher} if len(self.fisher) else {})}

    def state_dict(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"tasks": self.tasks, "tensors": self.tensors()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner`."""
        self.tasks = int(state["tasks"])
        held = {name: t.to(self.anchor.device) for name, t in state["tensors"].items()}
        for name, pair in self.factors.items():
            for part, F in zip("QH", pair, strict=True):
                i, j = torch.triu_indices(*F.shape, device=F.device)
                F[i, j] = F[j, i] = held[f"{name}.{part}"]
        self.anchor = held["anchor"].clone()
        if "fisher" in held:
            self.fisher = held["fisher"].clone()

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=self.parameters.dtype, device=self.parameters.device)

    def _moved(self) -> Tensor:
        return self.parameters.flatten() - self.anchor

    def _pull(self) -> Tensor:
        """λ Λ (θ − θ̃) (p,)."""
        pieces = self.parameters.unflatten(self._moved())
        moved = {id(t): piece for t, piece in zip(self.parameters.tensors, pieces, strict=True)}
        for layer in self.layers:
            Q, H = self.factors[layer.name]
            V = layer.joined([moved[id(t)] for t in layer.tensors])
            for t, pull in zip(layer.tensors, layer.parted(self.tasks * (H @ V @ Q)), strict=True):
                moved[id(t)] = pull
        if self.rest is not None:
            for t, diagonal in zip(self.rest.tensors, self.rest.unflatten(self.fisher), strict=True):
                moved[id(t)] = diagonal * moved[id(t)]
        return self.parameters.flatten([moved[id(t)] for t in self.parameters.tensors]).mul_(self.strength)


def kronecker_factors(model: nn.Module, layers: list[Layer], inputs: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Q (d, d) and H (out, out) of each layer over the inputs (n, …), with the model in evaluation mode.

    Several calls of a layer count as more places. A layer that no output depends on has H = 0.
    """
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for x in inputs.split(ROWS_AT_ONCE):
        with recorded(layers) as calls, evaluating(model), torch.enable_grad():
            chances = logits_of(call(model, x)).log_softmax(1)
            owners = [(layer, output) for layer in layers for _, output in calls[layer.name]]
            H = {layer.name: layer.module.weight.new_zeros(2 * layer.module.weight.shape[:1]) for layer in layers}
            for c in range(chances.shape[1]):
                weight = chances[:, c].detach().exp().sqrt()
                outputs = [output for _, output in owners]
                given = torch.autograd.grad(chances[:, c].sum(), outputs, retain_graph=True, allow_unused=True)
                for (layer, _), g in zip(owners, given, strict=True):
                    if g is not None:
                        delta = layer.sensitivities(g * weight.view(-1, *[1] * (g.ndim - 1)))
                        H[layer.name] += delta.T @ delta
        for layer in layers:
            rows = torch.cat([layer.rows(a.detach()) for a, _ in calls[layer.name]])
            places = len(rows) / len(x)
            new = rows.T @ rows / len(inputs), H[layer.name] / (places * len(inputs))
            old = found.get(layer.name)
            found[layer.name] = new if old is None else (old[0] + new[0], old[1] + new[1])
    return found
