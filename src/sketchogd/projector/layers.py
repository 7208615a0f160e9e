"""Projectors of a layer memory: one per layer, in the eigenvectors of its two factors.

Letters: ΔW (fan-out, fan-in + 1) an update of a layer's weight with the bias as its last column; V_a (r, fan-in + 1)
and V_δ (s, fan-out) eigenvectors of the inputs and of the sensitivities as rows, λa and λδ their eigenvalues.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..model.parameters import ProtectedParameters
from .base import Anchor, Projector, soft_share
from .span import Span


@dataclass(eq=False)
class LayerSpectra:
    """What is known of a layer: the eigenpairs of its two factors.

    Args:
        inputs: V_a (r, width), or None for the identity (an embedding, whose eigenvalues are its token counts).
        input_values: λa (r,).
        outputs: V_δ (s, fan-out), or None where every output direction counts the same.
        output_values: λδ (s,), None with `outputs`.
        mean: the mean of all products λδ λa, kept or not: the traces of both factors multiplied, over width · fan-out.
        unseen: the mean λa of the input directions outside of V_a.
        unseen_outputs: the mean λδ of the output directions outside of V_δ.
        scale: what products λδ λa are multiplied by, so that their sum is that of the layer's block.
        tokens: whether inputs are rows of a table or embedding, whose coordinates are those of the outputs.
    """

    inputs: Tensor | None
    input_values: Tensor
    outputs: Tensor | None
    output_values: Tensor | None
    mean: float
    unseen: float = 0.0
    unseen_outputs: float = 0.0
    scale: float = 1.0
    tokens: bool = False

    @cached_property
    def largest(self) -> tuple[float, float]:
        """The largest λa and λδ, read once; products are taken relative to them, so that none overflows."""
        return float(self.input_values.max()), 1.0 if self.output_values is None else float(self.output_values.max())


class LayerProjector(ABC):
    """ΔW ← ΔW − A ΔW for one layer."""

    spectra: LayerSpectra

    @property
    @abstractmethod
    def hard(self) -> bool:
        """Whether A² = A."""

    @abstractmethod
    def protected_part_(self, D: Tensor, bias: Tensor | None, travelled: float = 1.0) -> None:
        """Overwrite ΔW, given as D (fan-out, fan-in) and its bias column, by its protected part."""


@dataclass(eq=False)
class ShrinkingLayer(LayerProjector):
    """A ΔW = V_δᵀ (α ∘ (V_δ ΔW V_aᵀ)) V_a with α_ij = λδ_i λa_j / (λδ_i λa_j + ridge · mean).

    Directions outside of the two bases are left alone, so a ridge means the same at every rank. ridge = 0 is hard.

    Args:
        spectra: the eigenpairs.
        ridge: μ over the mean of all products.
        energy: only the largest products that hold this share of the energy count.
    """

    spectra: LayerSpectra
    ridge: float
    energy: float = 1.0

    @property
    def hard(self) -> bool:
        """Whether no ridge softens it."""
        return self.ridge == 0

    @property
    def alpha(self) -> Tensor:
        """α (s, r), or (1, r) where every output direction is protected."""
        return soft_weights(self._products(), self.ridge, self._mean, self._least)

    @property
    def _mean(self) -> float:
        a, d = self.spectra.largest
        return self.spectra.mean / a / d

    @cached_property
    def _least(self) -> Tensor | float:
        """The smallest product that counts, relative to the largest."""
        return energy_threshold(self._products(), self.energy) if self.energy < 1.0 else 0.0

    def _products(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """λδ_i λa_j relative to the largest, (s, r), or (1, r) where every output direction is protected."""
        a, d = self.spectra.largest
        inputs = (self.spectra.input_values / a).to(dtype)
        if self.spectra.output_values is None:
            return inputs[None, :]
        return torch.outer((self.spectra.output_values / d).to(dtype), inputs)

    def _shrink_(self, X: Tensor) -> Tensor:
        """Overwrite X by α ∘ X, in X's own precision where α has no jump that rounding could move."""
        if self.ridge == 0 or self.energy < 1.0:
            return X.mul_(self.alpha)
        products = self._products(X.dtype)
        return X.mul_(products).div_(products + self.ridge * self._mean)

    def protected_part_(self, D: Tensor, bias: Tensor | None, travelled: float = 1.0) -> None:
        """See `LayerProjector`."""
        V, U = self.spectra.inputs, self.spectra.outputs
        X = D if V is None else _input_coordinates(D, bias, V)
        X = self._shrink_(X) if U is None else U.T @ self._shrink_(U @ X)
        if V is not None:
            _from_input_coordinates(X, V, D, bias)
        elif X is not D:
            D.copy_(X)


@dataclass(eq=False)
class PullingLayer(LayerProjector):
    """A pulls back to the anchor: α = s λ / (1 + s λ) with s = travelled · weight and λ_ij = λa_j (λδ_i + everywhere).

    Descent on L(W) + weight/2 Σ_ij λ_ij D_ij² by the displacement D from the anchor: where plain steps of sizes that
    add up to `travelled` lead to D, one implicit step on the second term makes it D / (1 + s λ).

    Args:
        spectra: the eigenpairs; `unseen` and `unseen_outputs` stand for λa and λδ outside of the two bases.
        weight: weight of a square change of an output, times the scale of the spectra.
        everywhere: added to every λδ; small, it protects output directions that no logit depends on yet.
    """

    spectra: LayerSpectra
    weight: float
    everywhere: float = 0.0

    @property
    def hard(self) -> bool:
        """False: a pull shrinks."""
        return False

    def _pulled(self, X: Tensor, input_values: Tensor, travelled: float) -> Tensor:
        """α ∘ X for X (fan-out, r) in input directions with these λa."""
        a, d = self.spectra.largest
        U, output_values = self.spectra.outputs, self.spectra.output_values
        scale = travelled * self.weight * a * d
        inputs = (input_values / a).to(X.dtype)
        if U is None or output_values is None:
            return X * soft_share(scale * inputs)
        everywhere = self.everywhere / d
        base = soft_share(scale * (everywhere + self.spectra.unseen_outputs / d) * inputs)
        values = (output_values / d).to(X.dtype) + everywhere
        more = soft_share(scale * torch.outer(values, inputs)).sub_(base)
        return (X * base).addmm_(U.T, (U @ X).mul_(more))

    def protected_part_(self, D: Tensor, bias: Tensor | None, travelled: float = 1.0) -> None:
        """See `LayerProjector`."""
        V, values = self.spectra.inputs, self.spectra.input_values
        if V is None:
            D.copy_(self._pulled(D, values, travelled))
            return
        X = _input_coordinates(D, bias, V)
        if self.spectra.unseen == 0:
            _from_input_coordinates(self._pulled(X, values, travelled), V, D, bias)
            return
        # ΔW = X V + a remainder outside of V, where all directions have the same λa: shrink that as a whole.
        A = V[:, : D.shape[1]]
        unseen = values.new_full((1,), self.spectra.unseen)
        outside = D.addmm(X, A, alpha=-1)
        inside = self._pulled(X, values, travelled)
        torch.addmm(self._pulled(outside, unseen, travelled), inside, A, out=D)
        if bias is not None:
            left = (bias - X @ V[:, -1])[:, None]
            torch.addmv(self._pulled(left, unseen, travelled)[:, 0], inside, V[:, -1], out=bias)


def _input_coordinates(D: Tensor, bias: Tensor | None, V: Tensor) -> Tensor:
    """ΔW Vᵀ (fan-out, r)."""
    X = D @ V[:, : D.shape[1]].T
    if bias is not None:
        X.addr_(bias, V[:, -1])
    return X


def _from_input_coordinates(X: Tensor, V: Tensor, D: Tensor, bias: Tensor | None) -> None:
    """Overwrite ΔW by X V."""
    torch.mm(X, V[:, : D.shape[1]], out=D)
    if bias is not None:
        torch.mv(X, V[:, -1], out=bias)


def soft_weights(products: Tensor, ridge: float, mean: float, least: Tensor | float = 0.0) -> Tensor:
    """α = λ / (λ + ridge · mean), zero where λ <= 0 or λ < least; ridge = 0 gives α ∈ {0, 1}."""
    kept = (products > 0) & (products >= least)
    return torch.where(kept, products / (products + ridge * mean).clamp_min(torch.finfo(products.dtype).tiny), 0.0)


def energy_threshold(products: Tensor, energy: float) -> Tensor:
    """The smallest λ among the largest ones that hold the given share of Σ λ.

    >>> energy_threshold(torch.tensor([6.0, 3.0, 1.0]), 0.9)
    tensor(3.)
    """
    ordered = products.flatten().sort(descending=True).values
    enough = ordered.cumsum(0) >= energy * ordered.sum() * (1 - 1e-12)
    return ordered[int(enough.to(torch.int8).argmax())]


@dataclass(frozen=True)
class LayerPlace:
    """Where a layer is among the protected parameters.

    Args:
        weight: index of the weight.
        bias: index of the bias, if it has one.
        transposed: whether the weight is stored as (fan-in, fan-out).
        tokens: whether it is an embedding, whose inputs are tokens.
    """

    weight: int
    bias: int | None
    transposed: bool
    tokens: bool = False

    def span(self, layer: "LayerProjector | None", tensors: Sequence[Tensor]) -> Span | None:
        """The directions in which a layer is pulled: none while nothing is remembered of it."""
        t, turned = tensors[self.weight], self.transposed and not self.tokens
        n = len(t) if turned else t[0].numel()
        if layer is None:
            return Span(t.detach().new_empty(0, n), None, turned)
        V = layer.spectra.outputs if self.tokens else layer.spectra.inputs
        if V is None:
            return None
        return Span(V[:, :n], None if self.bias is None or self.tokens else V[:, n], turned)


@dataclass(eq=False)
class LayersProjector(Projector):
    """A `LayerProjector` per layer, and a projector on a basis for the parameters that belong to no layer.

    Args:
        parameters: the protected parameters.
        layers: projectors by layer; a layer of which nothing is remembered has none.
        places: where each layer's weight and bias are.
        others: the projector of the parameters that belong to no layer, None where there is none.
        other_indices: which parameters these are.
        anchor: how the weights that are pulled back to are stored, None where nothing is pulled.
    """

    parameters: ProtectedParameters
    layers: dict[str, LayerProjector]
    places: dict[str, LayerPlace]
    others: Projector | None
    other_indices: tuple[int, ...]
    anchor: Anchor | None = None

    @property
    def empty(self) -> bool:
        """Whether no layer and no other parameter is protected yet."""
        return not self.layers and (self.others is None or self.others.empty)

    @property
    def hard(self) -> bool:
        """Whether every part is hard."""
        return all(layer.hard for layer in self.layers.values()) and (self.others is None or self.others.hard)

    def span(self, index: int) -> Span | None:
        """See `Projector`: of a layer the directions of its inputs, of an embedding those of its outputs."""
        return self._spans.get(index) if self.anchor is not None and self.anchor.in_span else None

    @cached_property
    def _spans(self) -> dict[int, Span | None]:
        tensors = self.parameters.tensors
        return {place.weight: place.span(self.layers.get(name), tensors) for name, place in self.places.items()}

    def protected_part_(self, v: Tensor, travelled: float = 1.0) -> Tensor:
        """A v, layer by layer; a layer of which nothing is remembered has A = 0."""
        pieces = self.parameters.unflatten(v)
        for name, place in self.places.items():
            layer, bias = self.layers.get(name), None if place.bias is None else pieces[place.bias]
            W = pieces[place.weight].flatten(1)
            if layer is not None:
                layer.protected_part_(W.T if place.transposed else W, bias, travelled)
            else:
                W.zero_()
                if bias is not None:
                    bias.zero_()
        if self.other_indices:
            vector = torch.cat([pieces[i].flatten() for i in self.other_indices])
            if self.others is None or self.others.empty:
                vector.zero_()
            else:
                vector = self.others.protected_part_(vector, travelled)
            sizes = [pieces[i].numel() for i in self.other_indices]
            for i, part in zip(self.other_indices, vector.split(sizes), strict=True):
                pieces[i].copy_(part.view(pieces[i].shape))
        return v
