"""Layer memories: what a soft projector minimises, how far an output can move, how good the Kronecker product is.

An update ΔW of a layer's weight W (o, w), whose last column is the bias, changes an output by δᵀ ΔW a.
Letters: a inputs (rows (·, w)), δ sensitivities (rows (·, o)), M_a = Σ a aᵀ, M_δ = Σ δ δᵀ, λ their eigenvalues, V their
eigenvectors.
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
    """Return ‖ΔW − ΔW₀‖_F² + (1/μ) Tr(ΔWᵀ M_δ ΔW M_a), which `soft_layer_update` minimises over ΔW (o, w).

    The trace is Σ (δᵀ ΔW a)² over all pairs of a remembered δ and a remembered a.

    Args:
        update: ΔW (o, w).
        proposal: ΔW₀ (o, w).
        input_moment: M_a (w, w).
        output_moment: M_δ (o, o); None stands for the identity, and the trace for Σ ‖ΔW a‖².
        mu: μ > 0.
    """
    D, M = update.double(), input_moment.double()
    left = D if output_moment is None else output_moment.double() @ D
    return float((D - proposal.double()).square().sum() + (left @ M * D).sum() / mu)


def soft_layer_update(proposal: Tensor, input_moment: Tensor, output_moment: Tensor | None, mu: float) -> Tensor:
    """Return the minimiser of `soft_layer_objective`, ΔW (o, w) in float64.

    ΔW = V_δ (X ∘ μ/(λδ λa + μ)) V_aᵀ with X = V_δᵀ ΔW₀ V_a. In the coordinates of both eigenbases the objective is a
    sum of scalar terms (x − x₀)² + λδ_i λa_j x²/μ, minimised by x = (1 − α) x₀ with α = λδ_i λa_j / (λδ_i λa_j + μ). A
    `ShrinkingLayer` computes this with the eigenpairs it keeps (λ = 0 for all others) and μ = ridge · mean, the mean
    being that of all products λδ_i λa_j.

    Args:
        proposal: ΔW₀ (o, w).
        input_moment: M_a (w, w).
        output_moment: M_δ (o, o); None stands for the identity.
        mu: μ > 0; anything else raises ValueError.

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
    """Return c such that Σ (δᵀ ΔW a)² <= c ‖ΔW₀‖_F² over everything remembered, where `layer` projects ΔW₀ to ΔW.

    c = max_ij (λδ_i + ε_δ)(λa_j + ε_a)(1 − α_ij)², where i and j run over the stored eigenvalues and one more with
    λ = α = 0, for the directions outside the two bases.

    Proof: the pairs (δ, a) of single examples are among all pairs, so that
    Σ_e δδᵀ ⊗ aaᵀ <= M_δ ⊗ M_a <= (M̂_δ + ε_δ) ⊗ (M̂_a + ε_a), and the projector has the eigenvectors of the last matrix.
    If nothing is left out (ε = 0), c <= μ/4, since λ(μ/(λ + μ))² is largest at λ = μ: this is the price of the ridge.
    For a hard projector, c = max(λδ_1 ε_a, ε_δ λa_1) up to products of ε: this is the price of truncation. If every
    output direction is protected (no `outputs`), the sum is Σ ‖ΔW a‖², the change of the layer's own output.

    It holds for the second moments of single positions (`curvature="positions"`). For partial traces it is no bound:
    gradients scaled by t have t⁴ times the product of the factors, and t² times the block.

    Args:
        layer: The projector of a layer.
        input_error: ε_a, a bound on ‖M_a − M̂_a‖: `nystrom_error` for a sketch, λ_r+1 for an exact moment truncated to
            rank r.
        output_error: ε_δ, the same for the sensitivities.
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
    """Return ‖(I − A) δaᵀ‖_F² (n,) in float64 for pairs of rows a (n, w) and δ (n, o); `layer` subtracts A ΔW₀.

    The counterpart of `reconstruction_error(per_example=True)` for a layer: the change of an output is
    ⟨δaᵀ, (I − A)ΔW₀⟩ = ⟨(I − A)δaᵀ, ΔW₀⟩, so that its square is at most this times ‖ΔW₀‖_F². `layer_change_bound` needs
    no examples but counts every pair of a δ with an a; this counts the given pairs only and is far smaller. With
    c = V_a a and e = V_δ δ it is Σ_ij e_i² c_j² (1 − α_ij)² + ‖δ‖²‖a‖² − ‖e‖²‖c‖², the last two terms being the part
    outside the bases. Raises ValueError for different numbers of rows.
    """
    if len(inputs) != len(sensitivities):
        raise ValueError(f"pairs of rows are needed; got {len(inputs)} inputs and {len(sensitivities)} sensitivities")
    a, delta = inputs.double(), sensitivities.double()
    whole = a.square().sum(1) * delta.square().sum(1)
    c = (a if layer.spectra.inputs is None else a @ layer.spectra.inputs.double().T).square()
    U = layer.spectra.outputs
    e = delta.square().sum(1, keepdim=True) if U is None else (delta @ U.double().T).square()
    kept = torch.einsum("ni,ij,nj->n", e, (1 - layer.alpha.double()).square(), c)
    return kept + (whole - e.sum(1) * c.sum(1)).clamp_min(0)


@dataclass(frozen=True)
class KroneckerDistance:
    """Relative Frobenius distances of a layer's block of GᵀG from Kronecker products, each scaled optimally."""

    memory: float
    """Distance from M_δ ⊗ M_a, which a layer memory keeps."""
    nearest: float
    """Distance from the nearest Kronecker product; `nearest` <= `memory`."""
    isotropic: float
    """Distance from I ⊗ I, the value without any memory."""


def kronecker_distance(G: Tensor, inputs: Tensor, sensitivities: Tensor, iterations: int = 200) -> KroneckerDistance:
    """Measure how far M = Σ vec(G_e) vec(G_e)ᵀ is from Kronecker products: min_c ‖M − c M_δ ⊗ M_a‖_F / ‖M‖_F.

    The scale c is free because a projector's ridge is relative. M (ow, ow) is never formed: ‖M‖² = ‖G Gᵀ‖² for the
    flattened rows, and ⟨M, S ⊗ A⟩ = Σ_e ⟨S G_e A, G_e⟩. The nearest product (Van Loan and Pitsianis) is found by
    alternating S ∝ Σ G_e A G_eᵀ and A ∝ Σ G_eᵀ S G_e.

    Args:
        G: Gradients (n, o, w) of the layer's weight, with the bias as the last column.
        inputs: Rows (·, w) whose second moment is M_a.
        sensitivities: Rows (·, o) whose second moment is M_δ.
        iterations: Most alternations in the search for the nearest product.

    Raises:
        ValueError: shapes do not fit, or everything is zero.
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
    # The factors of the nearest product lie in the column and row spaces of the gradients, often much smaller.
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
    """Return orthonormal columns that span the range of a second moment, up to rounding."""
    values, vectors = torch.linalg.eigh(moment)
    return vectors[:, values > 1e-12 * values[-1]]
