"""Projectors of one layer of a layer memory, or of many alike ones at once, in the eigenvectors of its two factors.

Letters: ΔW (fan-out, fan-in + 1) an update of a layer's weight with the bias as its last column; V_a (r, fan-in + 1)
and V_δ (s, fan-out) eigenvectors of the inputs and of the sensitivities as rows, λa and λδ their eigenvalues; L alike
layers in a stack, where V_a and V_δ have rows of zeros up to the largest r and s.

Where FSDP2 splits a weight over processes, each has some rows of ΔW, or some columns of one that is stored transposed
(`Part`), and of V_δ or V_a it takes the same ones. What is a sum over all of them (`LayerStack.summand`) is summed over
processes first: V_δ ΔW, or ΔW V_aᵀ.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..linalg.stacks import stacked
from .base import between, soft_share

Total = Callable[[Tensor], Tensor]


def _here(t: Tensor) -> Tensor:
    """The sum over processes of what one has whole."""
    return t


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
        whole: whether the anchor keeps all numbers of these weights, whatever its form is for others.
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
    whole: bool = False

    @property
    def kind(self) -> Hashable:
        """Equal for spectra that may be in one stack, where weights have one shape."""
        parts = (self.inputs, self.input_values, self.outputs, self.output_values)
        return tuple(None if part is None else (part.dtype, part.device) for part in parts)


@dataclass(frozen=True)
class Part:
    """Which part of ΔW is in this process.

    Args:
        rows: of the fan-out outputs; None for all.
        columns: of the fan-in inputs; None for all. The bias is a column that every process has.
    """

    rows: slice | None = None
    columns: slice | None = None


WHOLE = Part()
"""All of it."""


class LayerProjector(ABC):
    """ΔW ← ΔW − A ΔW for one layer."""

    spectra: LayerSpectra

    @property
    @abstractmethod
    def hard(self) -> bool:
        """Whether A² = A."""

    @property
    @abstractmethod
    def kind(self) -> Hashable:
        """Equal for layers that may be in one stack, where weights have one shape."""

    @staticmethod
    @abstractmethod
    def stack(layers: Sequence[Any], part: Part = WHOLE) -> "LayerStack":
        """Layers of one kind, to be computed with at once, of which this process has the same part."""

    def protected_part_(self, D: Tensor, bias: Tensor | None, travelled: float = 1.0) -> None:
        """Overwrite ΔW, given as D (fan-out, fan-in) and its bias column, by its protected part."""
        M = D if bias is None else torch.cat([D, bias[:, None]], 1)
        M = self.stack([self]).protected_part(M[None], travelled)[0]
        D.copy_(M[:, : D.shape[1]])
        if bias is not None:
            bias.copy_(M[:, -1])


class LayerStack(ABC):
    """Alike layers. `spectra` are theirs, and `part` what this process has of their ΔW."""

    spectra: list[LayerSpectra]
    part: Part

    @abstractmethod
    def protected_part(self, M: Tensor, travelled: float, total: Tensor | None = None) -> Tensor:
        """A ΔW of every layer, for M (L, fan-out, fan-in + 1) or the part of it here; M may be overwritten.

        `total` is the sum of all processes' `summand`, where they have parts.
        """

    def relaxed(
        self, Y: Tensor, D: Tensor, totals: Sequence[Tensor | None] = (None, None), total: Total = _here
    ) -> Tensor:
        """See `Projector.relaxed_`, for tensions Y and displacements D of every layer.

        `totals` are those of both, and `total` sums over processes, where they have parts.
        """
        return torch.zeros_like(Y)

    def summand(self, M: Tensor) -> Tensor | None:
        """What must be summed over processes for a part M of ΔW; None where nothing must.

        V_δ M (L, s, n) for rows, or M V_aᵀ (L, fan-out, r) for columns, without that of the bias.
        """
        V, U = self._inputs(M.shape[2]), self._outputs()
        if self.part.rows is not None and U is not None:
            return U @ M if V is None or self._outside else (U @ M) @ V.mT
        if self.part.columns is not None and V is not None:
            n = _size(self.part.columns)
            return M[:, :, :n] @ V[:, :, :n].mT
        return None

    @property
    @abstractmethod
    def _outside(self) -> bool:
        """Whether A is not zero outside of V_a."""

    def _inputs(self, n: int) -> Tensor | None:
        """V_a (L, r, n), those of its columns that M has."""
        columns = self.part.columns
        found = [
            each.inputs[:, :n]
            if columns is None
            else torch.cat([each.inputs[:, columns], each.inputs[:, each.inputs.shape[1] - n + _size(columns) :]], 1)
            for each in self.spectra
            if each.inputs is not None
        ]
        return stacked(found) if found else None

    def _outputs(self) -> Tensor | None:
        """V_δ (L, s, fan-out), those of its columns that M has as rows."""
        rows = self.part.rows or slice(None)
        found = [each.outputs[:, rows] for each in self.spectra if each.outputs is not None]
        return stacked(found) if found else None

    def _coordinates(self, M: Tensor, V: Tensor | None, total: Tensor | None) -> Tensor:
        """X = ΔW V_aᵀ for the rows of M."""
        if V is None:
            return M
        if self.part.columns is None or total is None:
            return M @ V.mT
        n = _size(self.part.columns)
        return total if M.shape[2] == n else total.baddbmm(M[:, :, n:], V[:, :, n:].mT)

    def _input_values(self) -> Tensor:
        """λa over the largest (L, 1, r); where V_a is the identity, of the columns of M."""
        values = stacked([each.input_values for each in self.spectra]) / self._largest[0][:, :, 0]
        if self.part.columns is not None and self.spectra[0].inputs is None:
            values = values[:, self.part.columns]
        return values[:, None, :]

    def _output_values(self) -> Tensor | None:
        """λδ over the largest (L, s, 1)."""
        found = [each.output_values for each in self.spectra if each.output_values is not None]
        return (stacked(found) / self._largest[1][:, :, 0])[:, :, None] if found else None

    @cached_property
    def _largest(self) -> tuple[Tensor, Tensor]:
        """The largest λa and λδ (L, 1, 1), relative to which products are taken, so that none overflows."""
        values = [each.output_values for each in self.spectra if each.output_values is not None]
        a = stacked([each.input_values for each in self.spectra]).amax(1)[:, None, None]
        return a, stacked(values).amax(1)[:, None, None] if values else torch.ones_like(a)

    def _constants(self, numbers: Sequence[float]) -> Tensor:
        """A number per layer (L, 1, 1)."""
        return torch.tensor(numbers, dtype=torch.float64, device=self._largest[0].device)[:, None, None]


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
    def kind(self) -> Hashable:
        """See `LayerProjector`."""
        return ShrinkingLayer, self.ridge, self.energy, self.spectra.kind

    @staticmethod
    def stack(layers: "Sequence[ShrinkingLayer]", part: Part = WHOLE) -> "ShrinkingStack":
        """See `LayerProjector`."""
        return ShrinkingStack([layer.spectra for layer in layers], layers[0].ridge, layers[0].energy, part)

    @property
    def alpha(self) -> Tensor:
        """α (s, r), or (1, r) where every output direction is protected."""
        return self.stack([self]).alpha[0]


@dataclass(eq=False)
class ShrinkingStack(LayerStack):
    """See `ShrinkingLayer`."""

    spectra: list[LayerSpectra]
    ridge: float
    energy: float
    part: Part = WHOLE

    @property
    def _outside(self) -> bool:
        """See `LayerStack`."""
        return False

    @property
    def alpha(self) -> Tensor:
        """α (L, s, r), or (L, 1, r)."""
        return soft_weights(self._products(torch.float64), self.ridge, self._mean, self._least)

    @cached_property
    def _mean(self) -> Tensor:
        a, d = self._largest
        return self._constants([each.mean for each in self.spectra]) / a / d

    @cached_property
    def _least(self) -> Tensor | float:
        """The smallest product that counts, relative to the largest, (L, 1, 1)."""
        if self.energy >= 1.0:
            return 0.0
        products = replace(self, part=WHOLE)._products(torch.float64)
        return torch.stack([energy_threshold(each, self.energy) for each in products])[:, None, None]

    def _products(self, dtype: torch.dtype) -> Tensor:
        """λδ_i λa_j relative to the largest, (L, s, r), or (L, 1, r) where every output direction is protected."""
        inputs, outputs = self._input_values().to(dtype), self._output_values()
        return inputs if outputs is None else outputs.to(dtype) * inputs

    def _shrunk(self, X: Tensor) -> Tensor:
        """α ∘ X, in X's own precision where α has no jump that rounding could move; X is overwritten."""
        if self.ridge == 0 or self.energy < 1.0:
            return X.mul_(self.alpha)
        products = self._products(X.dtype)
        return X.mul_(products).div_(products + self.ridge * self._mean.to(X.dtype))

    def protected_part(self, M: Tensor, travelled: float, total: Tensor | None = None) -> Tensor:
        """See `LayerStack`."""
        V, U = self._inputs(M.shape[2]), self._outputs()
        if U is None:
            X = self._shrunk(self._coordinates(M, V, total))
        else:
            rows = self.part.rows is not None and total is not None
            X = U.mT @ self._shrunk(total if rows else U @ self._coordinates(M, V, total))  # type: ignore[arg-type]
        return X if V is None else X @ V


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

    @property
    def kind(self) -> Hashable:
        """See `LayerProjector`."""
        return PullingLayer, self.spectra.unseen == 0, self.spectra.kind

    @staticmethod
    def stack(layers: "Sequence[PullingLayer]", part: Part = WHOLE) -> "PullingStack":
        """See `LayerProjector`."""
        spectra = [layer.spectra for layer in layers]
        return PullingStack(spectra, [layer.weight for layer in layers], [layer.everywhere for layer in layers], part)


@dataclass(eq=False)
class PullingStack(LayerStack):
    """See `PullingLayer`.

    α depends on a row of V_δ and one of V_a. Outside of V_δ it is b, the same for all rows, so that all of it is
    X ∘ b + V_δᵀ ((V_δ X) ∘ m) for coordinates X, m being what is more inside; and outside of V_a b and m are the same
    for all columns, b₀ and m₀: what is inside of V_a is taken out of M ∘ b₀ + V_δᵀ ((V_δ M) ∘ m₀) and put in anew.
    """

    spectra: list[LayerSpectra]
    weights: list[float]
    everywhere: list[float]
    part: Part = WHOLE

    @property
    def _outside(self) -> bool:
        """See `LayerStack`."""
        return self.spectra[0].unseen != 0

    @cached_property
    def _values(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Relative to the largest: weight (L, 1, 1), λa (L, 1, r), λδ + everywhere (L, s, 1), that outside of V_δ."""
        (a, d), weights, everywhere = self._largest, self._constants(self.weights), self._constants(self.everywhere)
        outside = everywhere + self._constants([each.unseen_outputs for each in self.spectra])
        inputs, outputs = self._input_values(), self._output_values()
        if self._outside:
            unseen = self._constants([each.unseen for each in self.spectra])
            inputs = torch.cat([inputs, (unseen / a).to(inputs)], 2)
        seen = None if outputs is None else outputs + (everywhere / d).to(outputs)
        return weights * a * d, inputs, seen, outside / d

    def _shares(self, dtype: torch.dtype, travelled: float) -> tuple[Tensor, Tensor | None]:
        """b (L, 1, r) and m (L, s, r), with b₀ and m₀ as one more column unless λa = 0 there."""
        weight, inputs, outputs, outside = self._values
        scale = travelled * weight
        if outputs is None:
            return soft_share(scale.to(dtype) * inputs.to(dtype)), None
        base = soft_share((scale * outside).to(dtype) * inputs.to(dtype))
        return base, soft_share(outputs.to(dtype) * (scale.to(dtype) * inputs.to(dtype))).sub_(base)

    def protected_part(self, M: Tensor, travelled: float, total: Tensor | None = None) -> Tensor:
        """See `LayerStack`."""
        V, U = self._inputs(M.shape[2]), self._outputs()
        base, more = self._shares(M.dtype, travelled)
        X, UX, UM = self._seen(M, V, U, total)
        if V is None:
            return _scaled(M, U, base, more, UX)
        if not self._outside:
            return _scaled(X, U, base, more, UX) @ V
        base, base_outside = base[:, :, :-1] - base[:, :, -1:], base[:, :, -1:]
        more_outside = None
        if more is not None:
            more, more_outside = more[:, :, :-1] - more[:, :, -1:], more[:, :, -1:]
        inside = _scaled(X, U, base, more, UX)
        return _scaled(M, U, base_outside, more_outside, UM).baddbmm_(inside, V)

    def _seen(
        self, M: Tensor, V: Tensor | None, U: Tensor | None, total: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """X = M V_aᵀ, V_δ X, and V_δ M where something is pulled outside of V_a."""
        rows = self.part.rows is not None and total is not None
        if V is None:
            return M, None if U is None else total if rows else U @ M, None
        X = self._coordinates(M, V, total)
        UM = None if U is None or not self._outside else total if rows else U @ M
        UX = None if U is None else U @ X if not rows else total if UM is None else UM @ V.mT
        return X, UX, UM

    def relaxed(
        self, Y: Tensor, D: Tensor, totals: Sequence[Tensor | None] = (None, None), total: Total = _here
    ) -> Tensor:
        """See `LayerStack`.

        Products of directions that are kept have coordinates of their own. All products with what lies outside of V_δ,
        of V_a, or of both, have one stiffness for each direction that is kept, and of these y's part along D counts.
        """
        V, U = self._inputs(Y.shape[2]), self._outputs()
        (Xy, UXy, UY), (Xd, UXd, UD) = (self._seen(M, V, U, sums) for M, sums in zip((Y, D), totals, strict=True))
        weight, inputs, seen, outside = self._values
        weight, inputs, outside = (t.to(Y.dtype) for t in (weight, inputs, outside))
        n = inputs.shape[2] - self._outside
        kept, beyond = weight * inputs[:, :, :n], weight * inputs[:, :, n:]
        if U is None or seen is None or UXy is None or UXd is None:
            found = between(Xy, kept, Xd, weight)
            if V is None or not self._outside:
                return found if V is None else found @ V
            return self._along(Y - Xy @ V, beyond, D - Xd @ V, (2,), weight, total).baddbmm_(found, V)
        outputs = seen.to(Y.dtype)
        found = self._along(Xy - U.mT @ UXy, outside * kept, Xd - U.mT @ UXd, (1,), weight, total)
        found = found.baddbmm_(U.mT, between(UXy, outputs * kept, UXd, weight))
        if V is None:
            return found
        found = found @ V
        if self._outside and UY is not None and UD is not None:
            y, d = UY - UXy @ V, UD - UXd @ V
            found.baddbmm_(U.mT, self._along(y, outputs * beyond, d, (2,), weight, total))
            y, d = Y - Xy @ V - U.mT @ y, D - Xd @ V - U.mT @ d
            found += self._along(y, outside * beyond, d, (1, 2), weight, total)
        return found

    def _along(
        self, y: Tensor, stiffness: Tensor, d: Tensor, dims: tuple[int, ...], largest: Tensor, total: Total
    ) -> Tensor:
        """`between` for the coordinate along d, over these dimensions, which all have this stiffness."""

        def summed(t: Tensor) -> Tensor:
            if 1 in dims and self.part.rows is not None:
                return total(t.sum(dims, keepdim=True))
            if 2 in dims and self.part.columns is not None:  # the bias, a last column, is the same in all processes
                n = _size(self.part.columns)
                return total(t[:, :, :n].sum(dims, keepdim=True)) + t[:, :, n:].sum(dims, keepdim=True)
            return t.sum(dims, keepdim=True)

        square = summed(d * d)
        return d * between(summed(y * d), stiffness * square, torch.ones_like(square), largest * square)


def _scaled(X: Tensor, U: Tensor | None, base: Tensor, more: Tensor | None, UX: Tensor | None) -> Tensor:
    """X ∘ base + Uᵀ ((U X) ∘ more) for U X, which is overwritten."""
    found = X * base
    return found if U is None or UX is None or more is None else found.baddbmm_(U.mT, UX.mul_(more))


def _size(part: slice) -> int:
    return int(part.stop - part.start)


def soft_weights(products: Tensor, ridge: float, mean: Tensor | float, least: Tensor | float = 0.0) -> Tensor:
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
