"""What a layer memory keeps of a model: two sketches for each layer, and one of gradients for what is in no layer.

Letters as in `layers`: a input rows, δ sensitivities, λ eigenvalues, V eigenvectors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import NonFiniteError
from ..model.batches import batch_size
from ..model.layers import Layer, Use, input_rows, sensitivity_rows
from ..projector import LayerProjector, Pull
from ..sketch import Sketch


@dataclass
class LayerPair:
    """The sketches of one layer; an embedding has exact token counts in place of an input sketch."""

    layer: Layer
    inputs: Sketch | None
    counts: Tensor | None
    outputs: Sketch | None

    def sketches(self) -> Iterator[tuple[str, Sketch]]:
        """Those there are, by what they are of."""
        if self.inputs is not None:
            yield "inputs", self.inputs
        if self.outputs is not None:
            yield "outputs", self.outputs

    def observe(self, use: Use, deltas: Sequence[Tensor | None], dtype: torch.dtype) -> None:
        """Add the rows of one use of the layer, and of the gradients of some scalars with respect to its output."""
        if self.inputs is not None:
            self.inputs.observe(input_rows(use, dtype))
        seen = [sensitivity_rows(use, delta, dtype) for delta in deltas if delta is not None]
        if self.outputs is not None and seen:
            self.outputs.observe(torch.cat(seen))

    def shrinking(self, ridge: float, energy: float) -> LayerProjector | None:
        """The projector that shrinks each displacement once; None where nothing was seen of the layer."""
        found = self._spectra()
        return None if found is None else LayerProjector(*found, ridge, self._mean, energy)

    def pulling(self, weight: float, damping: float) -> LayerProjector | None:
        """The projector that pulls back to the anchor; `weight` is that of a square change of a logit of an example."""
        found = self._spectra()
        if found is None:
            return None
        V_a, input_values, _, output_values = found
        rows = self._trace if self.inputs is None else self.inputs.count
        everywhere = 0.0 if output_values is None else damping * float(output_values.max())
        unseen = 0 if V_a is None else self.layer.width - len(V_a)
        rest = max(0.0, self._trace - float(input_values.sum())) / unseen if unseen else 0.0
        pull = Pull(weight / max(1, rows), everywhere, rest)
        return LayerProjector(*found, 0.0, self._mean, pull=pull)

    def _spectra(self) -> tuple[Tensor | None, Tensor, Tensor | None, Tensor | None] | None:
        """V_a, λa, V_δ, λδ; None where all of a factor is zero."""
        if self.inputs is None:
            assert self.counts is not None
            input_values, V_a = self.counts, None
        else:
            input_values, V_a = self.inputs.spectrum()
        output_values, V_d = (None, None) if self.outputs is None else self.outputs.spectrum()
        if not bool((input_values > 0).any()) or (output_values is not None and not bool((output_values > 0).any())):
            return None
        return V_a, input_values, V_d, output_values

    @property
    def _trace(self) -> float:
        """That of Σ a aᵀ, all of it, kept or not."""
        return float(self.counts.sum()) if self.counts is not None else self.inputs.energy  # type: ignore[union-attr]

    @property
    def _mean(self) -> float:
        """The mean of λδ λa over all pairs of directions."""
        inputs = self._trace / self.layer.width
        return inputs if self.outputs is None else inputs * self.outputs.energy / self.layer.fan_out


def require_finite_uses(uses: Sequence[Use], deltas: Sequence[Sequence[Tensor | None]], inputs: object) -> None:
    """Raise NonFiniteError, with the layer and the examples, unless all inputs and sensitivities are finite."""
    b = batch_size(inputs)
    for i, use in enumerate(uses):
        for what, tensor in [("input", use.input), *(("sensitivity", delta[i]) for delta in deltas)]:
            if tensor is None or not tensor.is_floating_point() or bool(tensor.isfinite().all()):
                continue
            first = len(tensor) == b
            bad = (~tensor.isfinite().flatten(1).all(1)).nonzero().flatten().tolist() if first else []
            which = f" of examples {bad[:8]}" if bad else ""
            raise NonFiniteError(
                f"the {what} of layer {use.layer.name!r}{which} contains NaN or infinity; nothing was observed. "
                "Leave these examples out, or look for a division by zero in the model",
                bad,
            )
