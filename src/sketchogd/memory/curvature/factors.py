"""The two factors of a layer: what is kept of its inputs and of its output sensitivities.

Letters as in `layers`: a input rows, δ sensitivities, λ eigenvalues, V eigenvectors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...errors import NonFiniteError
from ...model.batches import batch_size
from ...model.layers import Layer, Use, input_rows, sensitivity_rows
from ...projector.kronecker import LayerSpectra
from ...sketch import Sketch


@dataclass
class LayerFactors:
    """The sketches of one layer; an embedding has exact token counts in place of an input sketch."""

    layer: Layer
    inputs: Sketch | None
    counts: Tensor | None
    outputs: Sketch | None

    def sketches(self) -> Iterator[tuple[str, Sketch]]:
        """The existing sketches, keyed "inputs" and "outputs"."""
        if self.inputs is not None:
            yield "inputs", self.inputs
        if self.outputs is not None:
            yield "outputs", self.outputs

    @property
    def dtype(self) -> torch.dtype:
        """In which rows are summed."""
        sketch = self.inputs or self.outputs
        return torch.float32 if sketch is None else sketch.dtype

    @property
    def trace(self) -> float:
        """That of the input factor, of directions kept or not."""
        return float(self.counts.sum()) if self.inputs is None and self.counts is not None else self.inputs.energy  # type: ignore[union-attr]

    def observe(self, use: Use, deltas: Sequence[Tensor | None]) -> None:
        """Add the rows of one use of the layer, and of the gradients of some scalars with respect to its output."""
        if self.inputs is not None:
            self.inputs.observe(input_rows(use, self.dtype))
        seen = [sensitivity_rows(use, delta, self.dtype) for delta in deltas if delta is not None]
        if self.outputs is not None and seen:
            self.outputs.observe(torch.cat(seen))

    def observe_gradients(self, G: Tensor) -> None:
        """Add gradients G (n, fan-out, width) of the weight: their rows to the input factor, columns to the other."""
        if self.counts is not None:
            self.counts += G.double().square().sum((0, 1))
        if self.inputs is not None:
            self.inputs.observe(G.flatten(0, 1))
        if self.outputs is not None:
            self.outputs.observe(G.mT.flatten(0, 1))

    def spectra(self) -> LayerSpectra | None:
        """The eigenpairs of both factors; None where all of a factor is zero."""
        V_a, input_values = None, self.counts
        if self.inputs is not None:
            input_values, V_a = self.inputs.spectrum()
        assert input_values is not None
        output_values, V_d = (None, None) if self.outputs is None else self.outputs.spectrum()
        if not bool((input_values > 0).any()) or (output_values is not None and not bool((output_values > 0).any())):
            return None
        trace, mean, unseen_outputs = self.trace, self.trace / self.layer.width, 0.0
        unseen = 0.0 if V_a is None else _tail(trace, input_values, self.layer.width)
        if self.outputs is not None and output_values is not None:
            mean *= self.outputs.energy / self.layer.fan_out
            unseen_outputs = _tail(self.outputs.energy, output_values, self.layer.fan_out)
        found = LayerSpectra(V_a, input_values, V_d, output_values, mean, unseen, unseen_outputs)
        return replace(found, tokens=self.layer.tokens)


def _tail(energy: float, values: Tensor, d: int) -> float:
    """The mean eigenvalue of the directions of d beyond those kept."""
    return max(0.0, energy - float(values.sum())) / (d - len(values)) if d > len(values) else 0.0


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
