"""Which two factors a layer memory keeps of a layer's block of Σ vec(G) vec(G)ᵀ, and what a batch adds to them.

* `PartialTraces`: M_a = Σ Gᵀ G and M_δ = Σ G Gᵀ (`traces`), the factors of Shampoo (Gupta et al. 2018) for each output;
  the block is taken as M_δ ⊗ M_a / Tr M_a.
* `SinglePositions`: M_a = Σ a aᵀ and M_δ = Σ δ δᵀ over single positions (`positions`), the factors of K-FAC
  (Martens, Grosse 2015); the block is taken as M_δ ⊗ M_a over the number of positions, which is too little where a
  weight is used at several positions of an example.

What a batch adds is computed first and added when nothing can fail any more.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...model.batches import batch_size
from ...model.layers import EXAMPLES_FIRST, MIXED, orders_of_positions
from ...model.sensitivities import Reading
from ...projector.kronecker import LayerSpectra
from ...projector.rules import STRENGTH
from ...sketch import FlatTailSketch, ProductSketch, Sketch
from ..staging import Commit
from .factors import LayerFactors, require_finite_uses
from .positions import Product, products_of
from .traces import TraceSums, explicit_gradients

Factors = Mapping[str, LayerFactors]

RELATIVE_STRENGTH = 3.0
"""The usual strength where changes are measured against the spread of the outputs, and count for every layer."""

GATHERED_BYTES = 256 << 20
"""Sensitivities of several scalars that are kept to be added together, which takes fewer and larger kernels.

Those of a large vocabulary take more than this and are added one scalar at a time.
"""

SPREADLESS = 1e-12
"""Outputs whose mean square spread is less than this are all the same."""


class Curvature(ABC):
    """Which factors are kept, and the unit in which changes of outputs are measured."""

    name: str
    strength: float
    """The usual strength of a pull, in this unit."""
    sketch: type[Sketch]
    """The usual sketch of a factor."""

    @abstractmethod
    def unit(self, spread: float, numbers: int) -> float:
        """The square change that counts as one, from Σ (z − z̄)² of the outputs and how many numbers these are."""

    @abstractmethod
    def together(self, parts: int) -> int:
        """How many times the sum over so many parts of the model a pull counts, for what they move together."""

    tied: bool
    """Whether the weight of an embedding that is an output layer too is a layer; otherwise it belongs to none."""

    @abstractmethod
    def stage(self, factors: Factors, reading: Reading, scale: float = 1.0) -> Commit:
        """Compute what a batch adds to the factors, which stay as they are; the returned function adds it.

        Sensitivities are multiplied by `scale`.

        Raises NonFiniteError, with the layer, if an input or a sensitivity is not finite.
        """

    @abstractmethod
    def spectra(self, factors: LayerFactors) -> LayerSpectra | None:
        """The eigenpairs of a layer's factors with their scale; None where all of a factor is zero."""


class SinglePositions(Curvature):
    """Second moments of single positions, as in version 0.1, with changes in the outputs' own units."""

    name = "positions"
    tied = False
    strength = STRENGTH
    sketch = ProductSketch

    def unit(self, spread: float, numbers: int) -> float:
        """See `Curvature`: a mean square change of 1."""
        return float(numbers)

    def together(self, parts: int) -> int:
        """See `Curvature`: 1, as in version 0.1."""
        return 1

    def stage(self, factors: Factors, reading: Reading, scale: float = 1.0) -> Commit:
        """See `Curvature`; one forward pass and one backward pass per logit or combination of logits."""
        sketches = {(name, part): sketch for name, each in factors.items() for part, sketch in each.sketches()}
        products, seen, uses = None, [], reading.uses_of_tokens()
        outputs = any(part == "outputs" for _, part in sketches)
        if all(Product.possible(sketch) for sketch in sketches.values()):
            products = products_of(uses, _deltas(reading, scale) if outputs else iter(()), sketches)
            if reading.anywhere(products is None):
                reading = reading.again()
                uses = reading.uses_of_tokens() if products is None else uses
                for _ in _deltas(reading, scale) if outputs and products is not None else ():
                    pass  # another process makes these passes
        if products is None:
            # A sketch of another kind, or numbers that are not finite or that float32 cannot square: row by row.
            seen = list(_deltas(reading, scale)) if outputs else []
            require_finite_uses(uses, seen, reading.inputs)

        def commit() -> None:
            for product in products or ():
                product.commit()
            for i, use in enumerate(uses):
                own = factors[use.layer.name]
                if products is None:
                    own.observe(use, [delta[i] for delta in seen])
                if own.counts is not None:
                    own.counts += torch.bincount(use.input.flatten(), minlength=len(own.counts))

        return commit

    def spectra(self, factors: LayerFactors) -> LayerSpectra | None:
        """See `Curvature`."""
        found = factors.spectra()
        rows = factors.trace if factors.inputs is None else factors.inputs.count
        return None if found is None else replace(found, scale=1 / max(1, rows), unseen_outputs=0.0)


class PartialTraces(Curvature):
    """Partial traces of the block itself, exact in trace and marginals for any sharing of weights.

    Changes of outputs are measured against their spread, so that a strength means the same for any network.
    """

    name = "traces"
    tied = True
    strength = RELATIVE_STRENGTH
    sketch = FlatTailSketch

    def unit(self, spread: float, numbers: int) -> float:
        """See `Curvature`: a change of all outputs by their spread; where they have none, a mean square change of 1."""
        return spread if spread > SPREADLESS * numbers else float(numbers)

    def together(self, parts: int) -> int:
        """See `Curvature`: by Cauchy and Schwarz (Σ x)² is at most so many times Σ x²."""
        return parts

    def __init__(self) -> None:
        self._orders: dict[tuple[Any, ...], list[str]] = {}

    def stage(self, factors: Factors, reading: Reading, scale: float = 1.0) -> Commit:
        """See `Curvature`; one more backward pass for inputs of a new shape, to see which positions belong together."""
        b = batch_size(reading.inputs)
        # Experts that see some of the positions see others in every batch, so shapes belong to the key.
        key = tuple((use.layer.name, len(use.input) / b, use.input.shape[1:]) for use in reading.uses)
        orders = self._orders.get(key)
        if reading.anywhere(orders is None and b > 1):
            if orders is None and b > 1:
                orders = self._orders[key] = orders_of_positions(reading.uses, reading.outputs)
            else:
                reading.accompany(1)
        orders = [EXAMPLES_FIRST] * len(reading.uses) if orders is None else orders  # of a single example
        signed = MIXED in orders
        if all(Product.possible(sketch) for each in factors.values() for _, sketch in each.sketches()):
            sums = TraceSums(factors, reading.uses, orders, b)
            with torch.no_grad(), torch.autocast(_device(reading), enabled=False):
                for passes in _gathered(_deltas(reading, scale, signed)):
                    sums.add(passes)
            held = sums.hold()
            if not reading.anywhere(not held):
                return sums.commit
            reading = reading.again()
            if held:
                for _ in _deltas(reading, scale, signed):
                    pass  # another process makes these passes
                return sums.commit
        seen = list(_deltas(reading, scale, signed))
        require_finite_uses(reading.uses, seen, reading.inputs)

        def commit() -> None:
            with torch.no_grad():
                for deltas in seen:
                    for name, G in explicit_gradients(reading.uses, orders, deltas, b):
                        factors[name].observe_gradients(G)

        return commit

    def spectra(self, factors: LayerFactors) -> LayerSpectra | None:
        """See `Curvature`."""
        found = factors.spectra()
        if found is None or factors.trace <= 0:
            return None
        return replace(found, scale=1 / factors.trace)


def _deltas(reading: Reading, scale: float, signed: bool = False) -> Iterator[Sequence[Tensor]]:
    for deltas in reading.deltas(signed):
        yield deltas if scale == 1.0 else [delta if delta is None else delta * scale for delta in deltas]


def _gathered(passes: Iterator[Sequence[Tensor]]) -> Iterator[list[Sequence[Tensor]]]:
    """As many passes at a time as GATHERED_BYTES hold."""
    found: list[Sequence[Tensor]] = []
    for deltas in passes:
        found.append(deltas)
        if (len(found) + 1) * sum(delta.nbytes for delta in deltas if delta is not None) > GATHERED_BYTES:
            yield found
            found = []
    if found:
        yield found


def _device(reading: Reading) -> str:
    return reading.outputs.device.type


CURVATURES: dict[str, type[Curvature]] = {"traces": PartialTraces, "positions": SinglePositions}
"""By the name that files have."""
