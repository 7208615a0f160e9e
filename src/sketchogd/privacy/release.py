"""One release: examples go into sums of bounded contributions, noise is added once, and a memory is told the estimates.

Until `finish` the sums are without noise. They are in no memory and in no file, and an error throws them away.
"""

import secrets
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from ..memory.staging import Commit
from ..model.batches import Output, evaluating, every_logit, logits_of, per_example
from ..model.calls import Call
from .mechanism.histogram import empty
from .mechanism.sums import Noisy, Sum, Sums
from .units import Unit

EXAMPLES = "examples"
"""The name of the sum of all weights."""

ALONE = 1e-2
"""By how much, relative to its largest output, an example's outputs may differ from those it has without the others."""


class Release(ABC):
    """The sums of one task.

    Args:
        unit: the unit of privacy.
        device: where sums are.
    """

    def __init__(self, unit: Unit, device: torch.device) -> None:
        self.unit = unit
        self.device = device
        self.observed = 0
        """How many examples came: not to be kept, nor shown to whom the guarantee is for."""

    sums: Sums

    @abstractmethod
    def stage(self, inputs: Any, targets: Any, weights: Tensor) -> Commit:
        """Compute what a batch adds to the sums; the returned function adds it.

        Args:
            inputs: of the batch.
            targets: of the batch.
            weights: (b,), which sum to at most 1 for each unit.
        """

    @abstractmethod
    def _take(self, found: dict[str, Noisy], weight: float) -> list[str]:
        """Give the memory what follows from released sums; returns the sketches of which noise hides every direction.

        `weight` estimates the sum of all weights.
        """

    def observe(self, inputs: Any, targets: Any, weights: Tensor | None, b: int) -> None:
        """Add a batch of b examples with weights (b,), None for 1 each; nothing is added on an error."""
        weights = torch.ones(b, dtype=torch.float64) if weights is None else weights[:b]
        self.stage(inputs, targets, weights.to(self.device))()
        self.observed += b

    def finish(self, noise: float) -> list[str]:
        """Add noise of this multiplier, once, and give the memory what follows from that.

        Returns the names of sketches of which noise hides every direction.
        """
        found = self.sums.released(noise)
        return self._take(found, max(1.0, float(found[EXAMPLES].value)))

    def examples(self, weight: float) -> int:
        """About how many examples have these weights in all."""
        return max(1, round(weight * self.unit.most))

    def count(self) -> Sum:
        """The sum of all weights, of norm 1 for a unit."""
        return Sum(EXAMPLES, torch.zeros((), dtype=torch.float64, device=self.device))

    def scale(self, name: str, signed: bool = False) -> Sum:
        """A histogram of magnitudes."""
        return Sum(name, empty(self.device, signed))


def outputs_of(call: Call, output: Output) -> Tensor:
    """What is remembered of a batch: all logits (b, …), or the scalars (b,)."""
    with torch.no_grad(), evaluating(call.model):
        found = call.run()
        return logits_of(found) if output is every_logit else per_example(output, found, call.targets)


def require_alone(call: Call, output: Output, outputs: Tensor) -> None:
    """Raise ValueError where an example's outputs depend on the other examples of its batch.

    What one example adds would then depend on the others, and nothing bounds it. One example, drawn anew for each
    batch, is run alone.

    Args:
        call: how the model is called with the batch.
        output: the scalar of an example.
        outputs: what it is for the batch.
    """
    b = len(outputs)
    if b < 2:
        return
    i = secrets.randbelow(b)
    alone, theirs = outputs_of(call.part(slice(i, i + 1)), output).flatten(), outputs[i].detach().flatten()
    if not bool(theirs.isfinite().all()):
        return  # which is said with the layer's name, where gradients are read
    if not torch.allclose(alone, theirs, rtol=0.0, atol=ALONE * float(theirs.abs().max()) + 1e-6):
        raise ValueError(
            "the outputs of an example depend on the other examples of its batch, so that nothing bounds what one "
            "example adds. Give normalisation layers running statistics, and leave out whatever looks across a batch"
        )
