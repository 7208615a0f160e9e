"""Layer memories: what a soft projector minimises, how good the Kronecker product is, how far an output can move.

A layer with weight W (o, w), its bias being the last column, adds to an output the change δᵀ ΔW a. Letters: a inputs
(rows (·, w)), δ sensitivities (rows (·, o)), M_a = Σ a aᵀ, M_δ = Σ δ δᵀ, λ their eigenvalues, V their eigenvectors.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..linalg.dense import gram
from ..projector import ShrinkingLayer


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
    x = (1 − α) x₀ with α = λδ_i λa_j / (λδ_i λa_j + μ). A `ShrinkingLayer` does this with the eigenpairs it keeps (the
    others count as λ = 0) and μ = ridge · mean, the mean being that of all products λδ_i λa_j.

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


def layer_change_bound(layer: ShrinkingLayer, input_error: float = 0.0, output_error: float = 0.0) -> float:
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
    inputs = torch.cat([layer.spectra.input_values.double(), zero]) + input_error
    if layer.spectra.output_values is None:
        return float((inputs * (1 - torch.cat([kept[0], zero])).square()).max())
    outputs = torch.cat([layer.spectra.output_values.double(), zero]) + output_error
    return float((outputs[:, None] * inputs[None, :] * (1 - alpha).square()).max())


def layer_residuals(layer: ShrinkingLayer, inputs: Tensor, sensitivities: Tensor) -> Tensor:
    """‖(I − A) δaᵀ‖_F² (n,) in float64 for pairs of rows a (n, w) and δ (n, o), A being what `layer` subtracts.

    The change of an output is ⟨δaᵀ, (I − A)ΔW₀⟩ = ⟨(I − A)δaᵀ, ΔW₀⟩, so its square is at most this times ‖ΔW₀‖_F²: the
    counterpart of `reconstruction_error(per_example=True)` for a layer. Where `layer_change_bound` needs no example and
    counts every pair of a δ with an a, this takes the pairs that were seen and is far smaller. With c = V_a a and
    e = V_δ δ it is Σ_ij e_i² c_j² (1 − α_ij)² + ‖δ‖²‖a‖² − ‖e‖²‖c‖²; the last two terms are what the bases left out.
    """
    if len(inputs) != len(sensitivities):
        raise ValueError(f"pairs of rows are needed; got {len(inputs)} inputs and {len(sensitivities)} sensitivities")
    a, delta = inputs.double(), sensitivities.double()
    whole = a.square().sum(1) * delta.square().sum(1)
    c = (a if layer.spectra.inputs is None else a @ layer.spectra.inputs.double().T).square()
    e = (
        delta.square().sum(1, keepdim=True)
        if layer.spectra.outputs is None
        else (delta @ layer.spectra.outputs.double().T).square()
    )
    kept = torch.einsum("ni,ij,nj->n", e, (1 - layer.alpha.double()).square(), c)
    return kept + (whole - e.sum(1) * c.sum(1)).clamp_min(0)


@dataclass(frozen=True)
class KroneckerDistance:
    """Relative Frobenius distances of a layer's block of GᵀG from Kronecker products, each of the best scale."""

    memory: float
    """From M_δ ⊗ M_a, what a layer memory keeps."""
    nearest: float
    """From the nearest of all Kronecker products, so `nearest` <= `memory`."""
    isotropic: float
    """From I ⊗ I: what knowing nothing would give."""


def kronecker_distance(G: Tensor, inputs: Tensor, sensitivities: Tensor, iterations: int = 200) -> KroneckerDistance:
    """min_c ‖M − c M_δ ⊗ M_a‖_F / ‖M‖_F for M = Σ vec(G_e) vec(G_e)ᵀ, and the least any Kronecker product has.

    G (n, o, w): gradients of the layer's weight, bias as last column; inputs (·, w) and sensitivities (·, o): the rows
    whose second moments the memory keeps. The scale c is free, because a projector's ridge is relative. M (ow, ow) is
    never formed: ‖M‖² = ‖G Gᵀ‖² over the flattened rows, ⟨M, S ⊗ A⟩ = Σ_e ⟨S G_e A, G_e⟩. The nearest product
    (Van Loan and Pitsianis) is found by alternating S ∝ Σ G_e A G_eᵀ and A ∝ Σ G_eᵀ S G_e.
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

    memory, nothing = distance(S, A), distance(torch.eye(o).to(S), torch.eye(w).to(A))
    # The nearest pair lives in the row and column spaces of the gradients, which are often much smaller.
    G = G @ _range(torch.einsum("eij,eik->jk", G, G))
    G = _range(torch.einsum("eij,ekj->ik", G, G)).T @ G
    A, nearest = torch.eye(G.shape[2]).to(A), math.inf
    for _ in range(iterations):
        S = torch.einsum("eij,elj->il", G @ (A / A.norm()), G)
        A = torch.einsum("eij,eil->jl", (S / S.norm()) @ G, G)
        before, nearest = nearest, distance(S, A)
        if before - nearest < 1e-9:
            break
    return KroneckerDistance(memory, nearest, nothing)


def _moment(rows: Tensor) -> Tensor:
    rows = rows.double()
    return rows.T @ rows


def _range(moment: Tensor) -> Tensor:
    """Orthonormal columns that span the range of a second moment, to rounding."""
    values, vectors = torch.linalg.eigh(moment)
    return vectors[:, values > 1e-12 * values[-1]]
