"""Projectors: what training applies to an update, Δw ← Δw − A Δw.

A vector is flat, (p,), in the order of the protected parameters. `protected_part_` turns v into A v, the part that may
not change. Hard projectors have A² = A; soft ones shrink a direction by α = λ/(λ+μ), 0 <= α < 1.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .linalg import coefficients, combination
from .parameters import ProtectedParameters


class Projector(ABC):
    """Δw ← Δw − A Δw."""

    @abstractmethod
    def protected_part_(self, v: Tensor) -> Tensor:
        """A v (p,) in the place of v."""

    @property
    @abstractmethod
    def empty(self) -> bool:
        """Whether A is zero, so that nothing needs to be done."""

    @property
    @abstractmethod
    def hard(self) -> bool:
        """Whether A² = A: what is left of a vector has no protected part."""

    def project_(self, v: Tensor) -> Tensor:
        """v − A v in the place of v (with one more vector for A v)."""
        return v.sub_(self.protected_part_(v.clone()))

    def leak(self, v: Tensor) -> float:
        """‖A v‖ / ‖v‖: for a hard projector the share of a displacement v that lies in protected directions."""
        size = float(v.norm())
        return float(self.protected_part_(v.clone()).norm()) / size if size else 0.0


@dataclass(eq=False)
class BasisProjector(Projector):
    """A = Bᵀ diag(α) B for a basis B (r, p) of orthonormal rows; α = 1 (hard) unless weights are given.

    A basis kept in bfloat16 is no longer orthonormal to float32 precision; `gram_inverse` = (B Bᵀ)⁻¹ makes A the exact
    projector on the span of the rounded rows.
    """

    basis: Tensor
    alpha: Tensor | None = None
    gram_inverse: Tensor | None = None

    @property
    def empty(self) -> bool:
        """Whether the basis has no rows."""
        return len(self.basis) == 0

    @property
    def hard(self) -> bool:
        """Whether no direction is only shrunk."""
        return self.alpha is None

    def protected_part_(self, v: Tensor) -> Tensor:
        """Bᵀ (α ∘ (B v))."""
        c = coefficients(self.basis, v)
        if self.gram_inverse is not None:
            c = self.gram_inverse @ c
        if self.alpha is not None:
            c = c * self.alpha
        return combination(self.basis, c, out=v)


def soft_weights(products: Tensor, ridge: float, mean: float, least: Tensor | float = 0.0) -> Tensor:
    """α = λ / (λ + ridge · mean), zero where λ <= 0 or λ < least; ridge = 0 gives α ∈ {0, 1}."""
    kept = (products > 0) & (products >= least)
    return torch.where(kept, products / (products + ridge * mean).clamp_min(torch.finfo(products.dtype).tiny), 0.0)


def energy_threshold(products: Tensor, energy: float) -> Tensor:
    """The smallest λ that is needed for the largest ones to hold the given share of Σ λ.

    >>> energy_threshold(torch.tensor([6.0, 3.0, 1.0]), 0.9)
    tensor(3.)
    """
    ordered = products.flatten().sort(descending=True).values
    enough = ordered.cumsum(0) >= energy * ordered.sum() * (1 - 1e-12)
    return ordered[int(enough.to(torch.int8).argmax())]


@dataclass(eq=False)
class LayerProjector:
    """ΔW ← ΔW − V_δᵀ (α ∘ (V_δ ΔW V_aᵀ)) V_a for one layer, ΔW (fan-out, fan-in + 1) with the bias as its last column.

    `inputs` is V_a (r, width) with eigenvalues `input_values`; None stands for the identity (an embedding, whose
    eigenvalues are its token counts). `outputs` is V_δ (s, fan-out); None protects every output direction.
    α_ij = λδ_i λa_j / (λδ_i λa_j + ridge · mean), where `mean` is that of all products, kept or not: the
    traces of Σ a aᵀ and Σ δ δᵀ multiplied, over width · fan-out, so that a ridge means the same at every rank. With
    `energy` < 1 only the largest products that hold this share count.
    """

    inputs: Tensor | None
    input_values: Tensor
    outputs: Tensor | None
    output_values: Tensor | None
    ridge: float
    mean: float
    energy: float = 1.0

    @cached_property
    def _scale(self) -> tuple[float, Tensor]:
        """The mean and the threshold, relative to the largest product as `_products` is."""
        products = self._products()
        largest = float(self.input_values.max()) * (
            1.0 if self.output_values is None else float(self.output_values.max())
        )
        least = energy_threshold(products, self.energy) if self.energy < 1.0 else products.new_zeros(())
        return self.mean / largest, least

    def _products(self) -> Tensor:
        """λδ_i λa_j as (s, r), or (1, r) when every output direction is protected, relative to the largest."""
        a = self.input_values / self.input_values.max()
        if self.output_values is None:
            return a[None, :]
        return (self.output_values / self.output_values.max())[:, None] * a[None, :]

    @property
    def alpha(self) -> Tensor:
        """α (s, r) or (1, r)."""
        mean, least = self._scale
        return soft_weights(self._products(), self.ridge, mean, least)

    def protected_part_(self, D: Tensor, bias: Tensor | None) -> None:
        """Overwrite ΔW, given as (fan-out, fan-in) and its bias column, by the part that may not change."""
        alpha = self.alpha.to(D.dtype)
        V = self.inputs
        if V is None:
            X = D
        else:
            X = D @ V[:, : D.shape[1]].T
            if bias is not None:
                X += torch.outer(bias, V[:, -1])
        X = X * alpha if self.outputs is None else self.outputs.T @ ((self.outputs @ X) * alpha)
        if V is None:
            D.copy_(X)
            return
        D.copy_(X @ V[:, : D.shape[1]])
        if bias is not None:
            bias.copy_(X @ V[:, -1])


@dataclass(eq=False)
class LayersProjector(Projector):
    """One `LayerProjector` a layer, and one `BasisProjector` for the parameters that belong to no layer."""

    parameters: ProtectedParameters
    layers: dict[str, LayerProjector]
    places: dict[str, tuple[int, int | None, bool]]
    """For each layer the index of its weight and of its bias, and whether the weight is stored transposed."""
    rest: BasisProjector | None
    rest_indices: tuple[int, ...]

    @property
    def empty(self) -> bool:
        """Whether no layer and no other parameter is protected yet."""
        return not self.layers and (self.rest is None or self.rest.empty)

    @property
    def hard(self) -> bool:
        """Whether no ridge softens the projection."""
        return all(layer.ridge == 0 for layer in self.layers.values()) and (self.rest is None or self.rest.hard)

    def protected_part_(self, v: Tensor) -> Tensor:
        """A v, layer by layer; a layer of which nothing is remembered has A = 0."""
        pieces = self.parameters.unflatten(v)
        for name, (weight, bias, transposed) in self.places.items():
            layer, b = self.layers.get(name), None if bias is None else pieces[bias]
            W = pieces[weight].flatten(1)
            if layer is not None:
                layer.protected_part_(W.T if transposed else W, b)
            else:
                W.zero_()
                if b is not None:
                    b.zero_()
        if self.rest_indices:
            rest = torch.cat([pieces[i].flatten() for i in self.rest_indices])
            if self.rest is None or self.rest.empty:
                rest.zero_()
            else:
                rest = self.rest.protected_part_(rest)
            sizes = [pieces[i].numel() for i in self.rest_indices]
            for i, part in zip(self.rest_indices, rest.split(sizes), strict=True):
                pieces[i].copy_(part.view(pieces[i].shape))
        return v
