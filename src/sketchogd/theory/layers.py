"""Layer memories: what a soft projector minimises, how good the Kronecker product is, how far an output can move.

A layer with weight W (o, w), its bias being the last column, adds to an output the change δᵀ ΔW a. Letters: a inputs
(rows (·, w)), δ sensitivities (rows (·, o)), M_a = Σ a aᵀ, M_δ = Σ δ δᵀ, λ their eigenvalues, V their eigenvectors.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..linalg import gram
from ..projector import LayerProjector


def soft_layer_objective(
    update: Tensor, proposal: Tensor, input_moment: Tensor, output_moment: Tensor | None, mu: float
) -> float:
    """‖ΔW − ΔW₀‖_F² + (1/μ) Tr(ΔWᵀ M_δ ΔW M_a), what `soft_layer_update` minimises over ΔW (o, w).

    The second term is Σ (δᵀ ΔW a)² over all pairs of a remembered δ and a remembered a; `output_moment` None stands
    for the identity, Σ ‖ΔW a‖².
    """
    D, M = update.double(), input_moment.double()
    left = D if output_moment is None else output_moment.double() @ D
    return float((D - proposal.double()).square().sum() + (left @ M * D).sum() / mu)


def soft_layer_update(proposal: Tensor, input_moment: Tensor, output_moment: Tensor | None, mu: float) -> Tensor:
    """The minimiser of `soft_layer_objective`, (o, w) in float64: V_δ (X ∘ μ/(λδ λa + μ)) V_aᵀ with X = V_δᵀ ΔW₀ V_a.

    In the coordinates of both eigenbases the objective falls into scalars (x − x₀)² + λδ_i λa_j x²/μ, whose minimum is
    x = (1 − α) x₀ with α = λδ_i λa_j / (λδ_i λa_j + μ). A `LayerProjector` does this with the eigenpairs it keeps
    (the others count as λ = 0) and μ = ridge · mean of its products λδ_i λa_j; dividing all eigenvalues by the
    largest, as it does, changes products and μ alike and α not at all.

    >>> soft_layer_update(torch.tensor([[2.0, 2.0]]), torch.diag(torch.tensor([3.0, 0.0])), None, 1.0)
    tensor([[0.5000, 2.0000]], dtype=torch.float64)
    """
    if not mu > 0:
        raise ValueError(f"mu must be positive; got {mu}")
    inputs, V = torch.linalg.eigh(input_moment.double())
    if output_moment is None:
        return (proposal.double() @ V * (mu / (inputs.clamp_min(0) + mu))) @ V.T
    outputs, U = torch.linalg.eigh(output_moment.double())
    products = outputs.clamp_min(0)[:, None] * inputs.clamp_min(0)[None, :]
    return U @ ((U.T @ proposal.double() @ V) * (mu / (products + mu))) @ V.T


def layer_change_bound(layer: LayerProjector, input_error: float = 0.0, output_error: float = 0.0) -> float:
    """c with Σ (δᵀ ΔW a)² <= c ‖ΔW₀‖_F² over everything remembered, for any proposal ΔW₀ that `layer` projects to ΔW.

    c = max_ij (λδ_i + ε_δ)(λa_j + ε_a)(1 − α_ij)², i and j running over the eigenvalues kept and, for the directions
    outside the two bases, λ = 0 with α = 0. ε bound the spectrum left out: ‖M − M̂‖ of the inputs and of the
    sensitivities, which `nystrom_error` reads off a sketch and which is λ_r+1 for exact moments cut to rank r.

    Why: the pairs of one example are among all pairs, so Σ_e δδᵀ ⊗ aaᵀ <= M_δ ⊗ M_a <= (M̂_δ + ε_δ) ⊗ (M̂_a + ε_a), and
    the projector has the eigenvectors of the last one. With nothing left out c <= μ/4, since λ(μ/(λ + μ))² is largest
    at λ = μ: what remains is the price of the ridge. For a hard projector c = max(λδ_1 ε_a, ε_δ λa_1) up to products
    of ε: the price of the spectrum left out. Where every output direction is protected (`outputs` None) the sum is
    Σ ‖ΔW a‖², the change of the layer's own output.
    """
    kept = layer.alpha.double()
    alpha = torch.zeros(kept.shape[0] + 1, kept.shape[1] + 1, dtype=torch.float64, device=kept.device)
    alpha[:-1, :-1] = kept
    zero = alpha.new_zeros(1)
    inputs = torch.cat([layer.input_values.double(), zero]) + input_error
    if layer.output_values is None:
        return float((inputs * (1 - torch.cat([kept[0], zero])).square()).max())
    outputs = torch.cat([layer.output_values.double(), zero]) + output_error
    return float((outputs[:, None] * inputs[None, :] * (1 - alpha).square()).max())


@dataclass(frozen=True)
class KroneckerDistance:
    """Relative Frobenius distances of a layer's block of GᵀG from Kronecker products, each of the best scale."""

    memory: float
    """From M_δ ⊗ M_a, what a layer memory keeps."""
    nearest: float
    """From the nearest of all Kronecker products, so `nearest` <= `memory`."""
    isotropic: float
    """From I ⊗ I: what knowing nothing would give."""


def kronecker_distance(G: Tensor, inputs: Tensor, sensitivities: Tensor, iterations: int = 50) -> KroneckerDistance:
    """min_c ‖M − c M_δ ⊗ M_a‖_F / ‖M‖_F for M = Σ vec(G_e) vec(G_e)ᵀ, and the least any Kronecker product has.

    G (n, o, w): gradients of the layer's weight, bias as last column; inputs (·, w) and sensitivities (·, o): the rows
    whose second moments the memory keeps. The scale c is free, because a projector's ridge is relative. M (ow, ow) is
    never formed: ‖M‖² = ‖G Gᵀ‖² over the flattened rows, ⟨M, S ⊗ A⟩ = Σ_e ⟨S G_e A, G_e⟩. The nearest product
    (Van Loan and Pitsianis) is found by alternating S ∝ Σ G_e A G_eᵀ and A ∝ Σ G_eᵀ S G_e from the memory's own pair.
    """
    o, w = G.shape[1:]
    if inputs.shape[1:] != (w,) or sensitivities.shape[1:] != (o,):
        raise ValueError(
            f"gradients {tuple(G.shape)} need inputs (·, {w}) and sensitivities (·, {o}), "
            f"got {tuple(inputs.shape)} and {tuple(sensitivities.shape)}"
        )
    G = G.double()
    energy = float(gram(G.flatten(1)).square().sum())
    S, A = _moment(sensitivities), _moment(inputs)
    if energy == 0.0 or not bool(S.any()) or not bool(A.any()):
        raise ValueError("gradients, inputs and sensitivities must not all be zero")

    def distance(S: Tensor, A: Tensor) -> float:
        overlap = float((S @ G @ A * G).sum()) / float(S.norm() * A.norm())
        return max(0.0, 1 - overlap**2 / energy) ** 0.5

    memory = distance(S, A)
    for _ in range(iterations):
        S = torch.einsum("eij,jk,elk->il", G, A / A.norm(), G)
        A = torch.einsum("eij,ik,ekl->jl", G, S / S.norm(), G)
    nothing = distance(torch.eye(o).to(S), torch.eye(w).to(A))
    return KroneckerDistance(memory, distance(S, A), nothing)


def _moment(rows: Tensor) -> Tensor:
    rows = rows.double()
    return rows.T @ rows
