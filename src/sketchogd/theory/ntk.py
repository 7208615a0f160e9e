"""Where projected gradient descent on a linear(ised) model converges, and how much it forgets on the way.

The model is f(x, w) = f(x, w₀) + g(x)ᵀ(w − w₀). Task τ has gradients G (n, p), targets Y (n,) and the loss
L(w) = (1/n) ‖f(X, w) − Y‖² + λ ‖w − w_prev‖², where w_prev are the weights after the previous task. A step is
w ← w − η T ∇L(w), T = I − BᵀB, where B (r, p) is the orthonormal basis of the sketch before the task.
Letters: Δ = w* − w_prev (p,), w* being the limit of the task; Ỹ = Y − f(X, w_prev) (n,). Everything is in float64.

All statements are about hard projectors. A soft one, T = I − Bᵀ diag(α) B with all α < 1, is invertible: T ∇L = 0
implies ∇L = 0, so that descent converges to the *unprotected* solution, only later. A soft projector protects for a
limited number of steps.
"""

import copy
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from ..model.batches import logits_of


def ntk_limit(G: Tensor, residuals: Tensor, B: Tensor | None = None, decay: float = 0.0) -> Tensor:
    """Return Δ = T Gᵀ (G T Gᵀ + nλ I)⁻¹ Ỹ (p,), by which one task moves the weights when trained to convergence.

    w_prev + Δ minimises L over w_prev + range T. For λ = 0 the inverse is a pseudoinverse: descent from w_prev stays in
    the range of T Gᵀ and therefore finds the least-squares solution with the smallest ‖Δ‖.

    Args:
        G: Gradients (n, p).
        residuals: Ỹ (n,).
        B: Orthonormal rows (r, p); None for no projection.
        decay: λ >= 0.

    Raises:
        ValueError: λ < 0, or shapes that do not fit.

    >>> ntk_limit(torch.tensor([[1.0, 1.0]]), torch.tensor([2.0]), torch.tensor([[1.0, 0.0]]))
    tensor([0., 2.], dtype=torch.float64)
    """
    if decay < 0:
        raise ValueError(f"decay is a number >= 0; got {decay}")
    if residuals.shape != (len(G),):
        raise ValueError(f"expected residuals of shape ({len(G)},), got {tuple(residuals.shape)}")
    projected = _projected(G, B)
    # G T Gᵀ = (G T)(G T)ᵀ, since T is symmetric and T² = T.
    kernel = projected @ projected.T
    if decay:
        kernel.diagonal().add_(len(G) * decay)
        return projected.T @ torch.linalg.solve(kernel, residuals.double())
    return projected.T @ (torch.linalg.pinv(kernel, hermitian=True, rtol=1e-12) @ residuals.double())


def ntk_path(
    gradients: Sequence[Tensor],
    targets: Sequence[Tensor],
    bases: Sequence[Tensor | None],
    decay: float = 0.0,
    outputs: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """Return the displacements [Δ_1, Δ_2, …] of tasks trained one after another to convergence.

    Each is an `ntk_limit` with Ỹ_τ = Y_τ − f(X_τ, w₀) − G_τ (Δ_1 + … + Δ_τ−1).

    Args:
        gradients: G_τ (n_τ, p) of each task.
        targets: Y_τ (n_τ,) of each task.
        bases: The basis B_τ before each task, or None.
        decay: λ >= 0.
        outputs: f(X_τ, w₀) (n_τ,) of each task; zeros by default.
    """
    if not len(gradients) == len(targets) == len(bases):
        raise ValueError(
            f"expected one of each per task; got {len(gradients)} gradients, {len(targets)} targets, {len(bases)} bases"
        )
    moved = torch.zeros(gradients[0].shape[1], dtype=torch.float64, device=gradients[0].device)
    path: list[Tensor] = []
    for t, (G, Y, B) in enumerate(zip(gradients, targets, bases, strict=True)):
        start = G.double() @ moved
        residuals = Y.double() - start - (0.0 if outputs is None else outputs[t].double())
        path.append(ntk_limit(G, residuals, B, decay))
        moved = moved + path[-1]
    return path


def step_size_limit(G: Tensor, B: Tensor | None = None, decay: float = 0.0) -> float:
    """Return 1 / λ_max(T A), A = GᵀG/n + λI: descent converges for 0 < η below this step size and diverges above it.

    T A is not symmetric, but it has the eigenvalues of T A T, which are real: λ_max = ‖G T‖₂²/n + λ. A step multiplies
    the distance to the limit by I − 2ηTA (the loss has no factor ½). On the range of T this has the eigenvalues
    1 − 2ηλ_i, which lie in (−1, 1) exactly if η < 1/λ_max. On the span of B its eigenvalues are 1 for every η, but the
    iterates have no component there. The result is infinite if B spans everything or T A = 0.

    >>> step_size_limit(torch.tensor([[2.0, 0.0]]), decay=1.0)
    0.2
    """
    projected = _projected(G, B)
    if B is not None and len(B) >= G.shape[1]:
        return math.inf
    largest = float(torch.linalg.matrix_norm(projected, ord=2)) ** 2 / len(G) + decay
    return 1 / largest if largest else math.inf


def forgetting(G: Tensor, displacements: Tensor | Iterable[Tensor]) -> float:
    """Return CF = ‖Σ_τ G Δ_τ‖²: how much later tasks changed the outputs of a task with gradients G (n, p), squared.

    `displacements` are the Δ_τ of the later tasks: rows (t, p), an iterable of (p,), or their sum (p,).

    >>> forgetting(torch.tensor([[1.0, 0.0]]), [torch.tensor([1.0, 5.0]), torch.tensor([2.0, 0.0])])
    9.0
    """
    if isinstance(displacements, Tensor):
        displacements = [displacements] if displacements.ndim == 1 else list(displacements)
    change = torch.zeros(len(G), dtype=torch.float64, device=G.device)
    for displacement in displacements:
        change += G.double() @ displacement.double()
    return float(change.square().sum())


def forgetting_bound(errors: Iterable[float], displacements: Iterable[Tensor]) -> float:
    """Bound the forgetting of an earlier task by reconstruction errors: CF <= (Σ_τ √E_τ ‖Δ_τ‖)².

    E_τ = E_{G_1:τ−1}(B_τ) is the reconstruction error of all earlier gradients before task τ. Proof: Δ_τ = T_τ Δ_τ, so
    that ‖G_S Δ_τ‖ <= ‖G_S T_τ‖_F ‖Δ_τ‖ for the gradients G_S of the earlier task, which are among those that E_τ
    counts. The projectors must be hard; the optimizer may be any whose updates are projected, and need not converge.
    """
    return sum(e**0.5 * float(d.double().norm()) for e, d in zip(errors, displacements, strict=True)) ** 2


class Linearised(nn.Module):
    """The first-order model f(x, w₀) + J(x) (w − w₀) around the weights w₀ of another model; see `linearise`.

    Parameters w and buffers have the same names as in that model; w₀ is under `linearised_at`. They are registered in
    plain modules, not in layers, since no weight multiplies a layer's input here. The model is always evaluated in eval
    mode.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        template = copy.deepcopy(model).eval().requires_grad_(False)
        # In a tuple, so that the template is not registered as a submodule and its parameters are not ours.
        self._template = (template,)
        self.linearised_at = nn.Module()
        for name, parameter in model.named_parameters():
            _plant(self.linearised_at, name, parameter.detach().clone())
            _plant(self, name, nn.Parameter(parameter.detach().clone(), parameter.requires_grad))
        for name, buffer in template.named_buffers():
            _plant(self, name, buffer.clone())

    def forward(self, *inputs: Any) -> Tensor:
        """Return the outputs of the first-order model, shaped like those of the original model."""
        origin = dict(self.linearised_at.named_buffers())
        weights = dict(self.named_parameters())
        tangent = {name: weights[name] - origin[name] for name in origin}
        buffers = {name: b for name, b in self.named_buffers() if not name.startswith("linearised_at.")}

        def output(values: dict[str, Tensor]) -> Tensor:
            return logits_of(functional_call(self._template[0], {**buffers, **values}, inputs))

        with warnings.catch_warnings():
            # PyTorch scripts its forward-mode rules at their first use, and warns that scripting is deprecated.
            warnings.filterwarnings("ignore", message=".*torch.jit.script", category=DeprecationWarning)
            expansion = jvp(output, (origin,), (tangent,))
        return expansion[0] + expansion[1]


def linearise(model: nn.Module) -> Linearised:
    """Linearise a model around its current weights; returns a module with the same parameter names.

    Its gradients with respect to the weights equal those of `model` now and stay constant while it is trained, which is
    what the functions above assume. It can be trained, and protected by a gradient memory, like any model. `model` is
    not modified.

    >>> linear = linearise(nn.Sequential(nn.Linear(2, 1)))
    >>> sorted(name for name, _ in linear.named_parameters())
    ['0.bias', '0.weight']
    """
    return Linearised(model)


def _plant(root: nn.Module, name: str, tensor: Tensor) -> None:
    """Register a parameter or buffer under a dotted name, creating plain modules along the path."""
    *path, leaf = name.split(".")
    for part in path:
        if part not in dict(root.named_children()):
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    if isinstance(tensor, nn.Parameter):
        root.register_parameter(leaf, tensor)
    else:
        root.register_buffer(leaf, tensor)


def _projected(G: Tensor, B: Tensor | None) -> Tensor:
    """Return G T (n, p) in float64."""
    G = G.double()
    if B is None or len(B) == 0:
        return G
    if B.shape[1] != G.shape[1]:
        raise ValueError(f"gradients of length {G.shape[1]} do not fit a basis of shape {tuple(B.shape)}")
    B = B.double()
    return G - (G @ B.T) @ B
