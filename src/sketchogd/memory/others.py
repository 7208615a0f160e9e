"""Parameters that belong to no layer (norms, free parameters, recurrent cells): a small sketch of their gradients."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..model.batches import Output
from ..model.gradients import GradientSignals
from ..model.parameters import ProtectedParameters
from ..projector.base import Projector
from ..projector.rules import BasisSpectra, Rule
from ..sketch import Sketch
from .staging import Commit, staged_rows


class OtherParameters:
    """These parameters, the sketch of their gradients, and how the gradients are made.

    Args:
        parameters: the parameters.
        sketch: an unbound sketch.
        output: the scalar of an example whose gradient is sketched.
    """

    def __init__(self, parameters: ProtectedParameters, sketch: Sketch, output: Output) -> None:
        self.parameters = parameters
        self.sketch = sketch.bind(parameters.p, parameters.dtype, parameters.device)
        self.signals = GradientSignals(parameters, output)

    def stage(self, inputs: Any, targets: Any) -> Commit:
        """Compute the gradients of a batch; the returned function sketches them."""
        chunks = staged_rows(self.signals, inputs, targets, self.sketch.require_finite)

        def commit() -> None:
            for rows in chunks():
                self.sketch.observe(rows)

        return commit

    def projector(self, rule: Rule, weight: float) -> Projector | None:
        """The projector of these parameters; None where nothing is remembered of them."""
        values, B = self.sketch.spectrum()
        if not len(values):
            return None
        mean = self.sketch.energy / self.parameters.p
        return rule.on_basis(BasisSpectra(B, values, mean, dtype=B.dtype), weight)

    def indices(self, parameters: Sequence[Tensor]) -> tuple[int, ...]:
        """Where they are among all protected parameters."""
        places = {id(t): i for i, t in enumerate(parameters)}
        return tuple(places[id(t)] for t in self.parameters.tensors)
