"""Parameters that belong to no layer (norms, free parameters, recurrent cells): small sketches of their gradients.

Each module has a sketch of its own for them. A sketch of all together sees that what one norm changes another one may
take back, but has no more directions than one norm needs: training then goes where nothing is kept.

Gradients are per-example ones of one forward and backward pass (`model.call_gradients`). The first batch decides
whether that is right for a model; where it is not, they are computed one example at a time (`model.gradients`). Where
examples are not independent (batch normalisation without running statistics), the sketch is of sums over a batch with
random signs, whose expected second moment is that of its examples.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import NonFiniteError
from ..model.batches import Output, batch_size, map_tensors
from ..model.call_gradients import CallGradients, ExampleGradients, close
from ..model.gradients import GradientSignals
from ..model.parameters import ProtectedParameters
from ..model.sensitivities import COMBINATIONS, Reading
from ..model.signs import sign_rows
from ..projector.base import Projector
from ..projector.kronecker import LayerSpectra
from ..projector.modules import ModulesProjector
from ..projector.rules import BasisSpectra, Rule
from ..seeds import derive_seed
from ..sketch.columns import Columns
from .layout import OfNoLayer
from .staging import Commit, staged_rows
from .state import seen_in

CALLS, EXAMPLES, TOGETHER = "calls", "examples", "together"
"""Ways of computing gradients: from recorded calls, by `GradientSignals`, or summed over a batch with random signs."""

_WAYS = (CALLS, EXAMPLES, TOGETHER)
"""Each is right wherever one before it is."""


class OtherParameters:
    """These parameters, the sketches of their gradients, and how the gradients are made.

    After the first batch, `way` is CALLS, EXAMPLES or TOGETHER.

    Args:
        parameters: the parameters.
        parts: all of them, in their order, with unbound sketches.
        output: the scalar of an example whose gradient is sketched.
        apart: whether each part has a projector of its own, which knows what its sketch lacks. There is one if not.
    """

    def __init__(
        self, parameters: ProtectedParameters, parts: Sequence[OfNoLayer], output: Output, apart: bool
    ) -> None:
        self.parameters = parameters
        self.parts = parts
        self.apart = apart
        for part in parts:
            part.sketch.bind(part.p, parameters.dtype, parameters.device)
        self.signals = GradientSignals(parameters, output)
        self.way: str | None = None
        self._calls = CallGradients(parameters)

    def stage(self, reading: Reading, targets: Any, weights: Tensor) -> Commit:
        """Compute what a batch adds to the sketches; the returned function adds it.

        Args:
            reading: a forward pass that watches these parameters; its graph is kept.
            targets: the second argument of the scalar.
            weights: the scalar of an example as weights (b, …) of the reading's outputs.
        """
        found = None if self.way == TOGETHER else self._calls.read(reading, weights)
        way = self._agreed(reading, targets, found)
        chunks: Callable[[], Iterator[Tensor]]
        if way == CALLS and found is not None:
            chunks = self._chunks(found, len(weights))
        elif way != TOGETHER and reading.protected is not None:
            b = len(weights)  # every process makes as many passes as the one that has most examples
            examples = [min(i, b - 1) for i in range(reading.protected.most(b))]
            rows = torch.stack(list(self._one_at_a_time(reading.call.inputs, targets, examples)))[:b]
            self.require_finite(rows)
            chunks = lambda: iter([rows])  # noqa: E731
        elif way == TOGETHER:
            rows = torch.cat(list(self._together(reading, weights)))
            self.require_finite(rows)
            chunks = lambda: iter([rows])  # noqa: E731
        else:
            chunks = staged_rows(self.signals, reading.call.inputs, targets, self.require_finite)

        def commit() -> None:
            for rows in chunks():
                for part in self.parts:
                    part.sketch.observe(rows[:, part.place])

        return commit

    def require_finite(self, rows: Tensor) -> float:
        """See `Sketch`, of rows of all these parameters."""
        return self.parts[0].sketch.require_finite(rows)

    def _agreed(self, reading: Reading, targets: Any, found: ExampleGradients | None) -> str:
        """The way for this batch. Where parameters are split, all processes take the same."""
        choose = reading.anywhere(self.way is None)
        way = self._chosen(reading.call.inputs, targets, found) if choose or self.way is None else self.way
        if reading.protected is None:
            return way
        if choose:
            way = _WAYS[reading.protected.most(_WAYS.index(way))]
            self.way = None if self.way is None else way
        return _WAYS[reading.protected.most(_WAYS.index(EXAMPLES if way == CALLS and found is None else way))]

    def _chosen(self, inputs: Any, targets: Any, found: ExampleGradients | None) -> str:
        b = batch_size(inputs)
        ends = sorted({0, b - 1}) if not self.parameters.split else [0, b - 1]  # as many passes in every process
        try:
            expected = torch.stack(list(self._one_at_a_time(inputs, targets, ends)))
        except (RuntimeError, ValueError):
            if b == 1:
                raise
            # One example alone is not what the model computes, so it says nothing of examples in a batch.
            way = TOGETHER if found is None else CALLS
        else:
            way = CALLS if found is not None and close(found.rows(ends), expected) else EXAMPLES
            if not bool(expected.isfinite().all()):
                return way
        self.way = way
        return way

    def _one_at_a_time(self, inputs: Any, targets: Any, examples: Sequence[int]) -> Iterator[Tensor]:
        for i in examples:
            x, y = (map_tensors(lambda t: t[i : i + 1], value) for value in (inputs, targets))  # noqa: B023
            yield self.parameters.row(self.signals.total(x, y))

    def _chunks(self, found: ExampleGradients, b: int) -> Callable[[], Iterator[Tensor]]:
        """The gradients of a batch in chunks, all of which are finite; a single one is computed now."""
        size = -(-b // max(1, -(-b // self.signals.chunk)))
        chunks = [range(start, min(b, start + size)) for start in range(0, b, size)]
        if len(chunks) == 1:
            rows = found.rows(chunks[0])
            self.require_finite(rows)
            return lambda: iter([rows])
        finite = torch.cat([found.rows(rows).isfinite().all(1) for rows in chunks])
        bad = (~finite).nonzero().flatten().tolist()
        if bad:
            raise NonFiniteError(
                f"the gradients of examples {bad[:8]} of {b} contain NaN or infinity; nothing was observed. "
                "Leave these examples out, or look for a division by zero in the model",
                bad,
            )
        return lambda: (found.rows(rows) for rows in chunks)

    def _together(self, reading: Reading, weights: Tensor) -> Iterator[Tensor]:
        """COMBINATIONS rows (1, p): the gradients of Σ_e ± s_e / √COMBINATIONS."""
        for signs in sign_rows(
            weights.reshape(len(weights), -1)[:, :1], COMBINATIONS, derive_seed(reading.seed, "together")
        ):
            signed = weights * signs.view(-1, *[1] * (weights.ndim - 1))
            tensors = list(map(reading.gathered.tensor, self.parameters.tensors))
            found = torch.autograd.grad(reading.outputs, tensors, signed, retain_graph=True, allow_unused=True)
            yield self.parameters.row(found)[None]

    def seen(self) -> list[bool]:
        """For each parameter whether anything observed depends on it: whether it has columns that are not zero."""
        return seen_in([part.sketch for part in self.parts], self.parameters)

    @property
    def remembered(self) -> int:
        """The parts of which something is remembered."""
        return sum(part.sketch.count > 0 for part in self.parts)

    def projector(self, rule: Rule, weight: float, columns: Columns) -> Projector | None:
        """The projector of these parameters; None where nothing is remembered of them.

        Args:
            rule: makes it.
            weight: what a square change of an output weighs.
            columns: which entries of their vector are in this process.
        """
        found = [(part, *part.sketch.spectrum()) for part in self.parts]
        seen = [(part, values, B, part.sketch.energy) for part, values, B in found if len(values)]
        if not seen:
            return None
        if not self.apart:
            [(part, values, B, energy)] = seen
            return rule.on_basis(BasisSpectra(B, values, energy / part.p, dtype=B.dtype, columns=columns), weight)
        layers = []
        for part, values, B, energy in seen:
            unknown = part.p - len(values)
            left = max(0.0, energy - float(values.sum())) / unknown if unknown else 0.0
            spectra = LayerSpectra(B, values, None, None, energy / part.p, left, whole=True)
            layers.append(rule.on_layer(spectra, weight))
        return ModulesProjector([part.place for part, *_ in seen], layers, columns)

    def indices(self, parameters: Sequence[Tensor]) -> tuple[int, ...]:
        """Where they are among all protected parameters."""
        places = {id(t): i for i, t in enumerate(parameters)}
        return tuple(places[id(t)] for t in self.parameters.tensors)
