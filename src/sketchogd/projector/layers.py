"""Projectors: what training applies to an update, Δw ← Δw − A Δw.

A vector is flat, (p,), in the order of the protected parameters. `protected_part_` turns v into A v, the part that may
not change. Hard projectors have A² = A; soft ones shrink a direction by α = λ/(λ+μ), 0 <= α < 1.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..model.parameters import ProtectedParameters
from .base import Projector, soft_share
from .basis import BasisProjector


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
    pull: "Pull | None" = None

    @cached_property
    def _largest(self) -> tuple[float, float]:
        """The largest λa and λδ, read once; products are taken relative to them, so that none overflows."""
        return float(self.input_values.max()), 1.0 if self.output_values is None else float(self.output_values.max())

    @cached_property
    def _least(self) -> Tensor | float:
        """The smallest product that counts, relative to the largest."""
        return energy_threshold(self._products(), self.energy) if self.energy < 1.0 else 0.0

    @property
    def _relative_mean(self) -> float:
        a, d = self._largest
        return self.mean / a / d

    def _products(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """λδ_i λa_j as (s, r), or (1, r) when every output direction is protected, relative to the largest."""
        a = (self.input_values / self._largest[0]).to(dtype)
        if self.output_values is None:
            return a[None, :]
        return torch.outer((self.output_values / self._largest[1]).to(dtype), a)

    @property
    def alpha(self) -> Tensor:
        """α (s, r) or (1, r)."""
        return soft_weights(self._products(), self.ridge, self._relative_mean, self._least)

    def _shrink_(self, X: Tensor) -> Tensor:
        """α ∘ X in the place of X, in X's own precision where α has no jump that rounding could move."""
        if self.ridge == 0 or self.energy < 1.0:
            return X.mul_(self.alpha)
        products = self._products(X.dtype)
        return X.mul_(products).div_(products + self.ridge * self._relative_mean)

    def _pulled(self, X: Tensor, input_values: Tensor, travelled: float) -> Tensor:
        """α ∘ X for an anchored layer, X (fan-out, r) in directions of the inputs with these λa; see `Pull`."""
        assert self.pull is not None
        a, d = self._largest
        scale = travelled * self.pull.weight * a * d
        inputs = (input_values / a).to(X.dtype)
        if self.outputs is None or self.output_values is None:
            return X * soft_share(scale * inputs)
        everywhere = self.pull.everywhere / d
        base = soft_share(scale * everywhere * inputs)
        values = (self.output_values / d).to(X.dtype) + everywhere
        more = soft_share(scale * torch.outer(values, inputs)).sub_(base)
        return (X * base).addmm_(self.outputs.T, (self.outputs @ X).mul_(more))

    def protected_part_(self, D: Tensor, bias: Tensor | None, travelled: float = 1.0) -> None:
        """Overwrite ΔW, given as (fan-out, fan-in) and its bias column, by the part that may not change."""
        V, U = self.inputs, self.outputs
        if V is None:
            if self.pull is not None:
                D.copy_(self._pulled(D, self.input_values, travelled))
            elif U is None:
                self._shrink_(D)
            else:
                D.copy_(U.T @ self._shrink_(U @ D))
            return
        A = V[:, : D.shape[1]]
        X = D @ A.T
        if bias is not None:
            X.addr_(bias, V[:, -1])
        if self.pull is None:
            X = self._shrink_(X) if U is None else U.T @ self._shrink_(U @ X)
        elif self.pull.rest == 0:
            X = self._pulled(X, self.input_values, travelled)
        else:
            # ΔW = X V + what lies outside of V, where all directions have the same λa: shrink that as a whole.
            rest = self.input_values.new_full((1,), self.pull.rest)
            outside = D.addmm(X, A, alpha=-1)
            inside = self._pulled(X, self.input_values, travelled)
            torch.addmm(self._pulled(outside, rest, travelled), inside, A, out=D)
            if bias is not None:
                left = (bias - X @ V[:, -1])[:, None]
                torch.addmv(self._pulled(left, rest, travelled)[:, 0], inside, V[:, -1], out=bias)
            return
        torch.mm(X, A, out=D)
        if bias is not None:
            torch.mv(X, V[:, -1], out=bias)


@dataclass(frozen=True)
class Pull:
    """How strongly an anchored layer is pulled back: α = s λ / (1 + s λ) with s = travelled · weight.

    Descent on L(W) + weight/2 Σ_ij λ_ij D_ij² by the displacement D from the anchor: where plain steps of sizes that
    add up to `travelled` lead to D, one implicit step on the second term makes it D / (1 + s λ). λ_ij = λa_j (λδ_i +
    everywhere): the second summand, small, protects output directions that no logit depends on yet. `rest` is the λa of
    the input directions that the sketch has no room for: the mean of what is left of the inputs' energy.
    """

    weight: float
    everywhere: float = 0.0
    rest: float = 0.0


@dataclass(eq=False)
class LayersProjector(Projector):
    """One `LayerProjector` a layer, and one `BasisProjector` for the parameters that belong to no layer."""

    parameters: ProtectedParameters
    layers: dict[str, LayerProjector]
    places: dict[str, tuple[int, int | None, bool]]
    """For each layer the index of its weight and of its bias, and whether the weight is stored transposed."""
    rest: BasisProjector | None
    rest_indices: tuple[int, ...]
    anchored: bool = False
    rounded: bool = False

    @property
    def empty(self) -> bool:
        """Whether no layer and no other parameter is protected yet."""
        return not self.layers and (self.rest is None or self.rest.empty)

    @property
    def hard(self) -> bool:
        """Whether no ridge softens the projection."""
        if self.anchored:
            return False
        return all(layer.ridge == 0 for layer in self.layers.values()) and (self.rest is None or self.rest.hard)

    def protected_part_(self, v: Tensor) -> Tensor:
        """A v, layer by layer; a layer of which nothing is remembered has A = 0."""
        pieces = self.parameters.unflatten(v)
        for name, (weight, bias, transposed) in self.places.items():
            layer, b = self.layers.get(name), None if bias is None else pieces[bias]
            W = pieces[weight].flatten(1)
            if layer is not None:
                layer.protected_part_(W.T if transposed else W, b, self.travelled)
            else:
                W.zero_()
                if b is not None:
                    b.zero_()
        if self.rest_indices:
            rest = torch.cat([pieces[i].flatten() for i in self.rest_indices])
            if self.rest is None or self.rest.empty:
                rest.zero_()
            else:
                self.rest.travelled = self.travelled
                rest = self.rest.protected_part_(rest)
            sizes = [pieces[i].numel() for i in self.rest_indices]
            for i, part in zip(self.rest_indices, rest.split(sizes), strict=True):
                pieces[i].copy_(part.view(pieces[i].shape))
        return v
