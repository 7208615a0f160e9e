"""What of an example a memory remembers: which output, by name, and gradients scaled by a power of their norm.

Letters: C logits of one example, g the gradient of its output, q the power.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sketchogd.batches import Output, log_likelihood, logits_of, true_logit
from sketchogd.lab.registry import unknown
from sketchogd.parameters import ProtectedParameters
from sketchogd.signals import GradientSignals
from sketchogd.testmatrix import derive_seed

MOST_SIGNS = 62
"""Signs that fit into one random integer."""


def largest_logit(output: Any, target: Tensor) -> Tensor:
    """The logit of the class that is predicted.

    >>> largest_logit(torch.tensor([0.1, 0.7, 0.5]), torch.tensor(0))
    tensor(0.7000)
    """
    return logits_of(output).max(-1).values


def loss(output: Any, target: Tensor) -> Tensor:
    """The cross-entropy."""
    return -log_likelihood(output, target)


def margin(output: Any, target: Tensor) -> Tensor:
    """The true logit minus the largest other one.

    >>> margin(torch.tensor([0.5, 2.0, 1.0]), torch.tensor(1))
    tensor(1.)
    """
    logits = logits_of(output)
    true = torch.arange(logits.shape[-1], device=logits.device) == target
    return true_logit(logits, target) - logits.masked_fill(true, -torch.inf).max(-1).values


def signed_logits(output: Any, target: Tensor) -> Tensor:
    """Σ ± logit_c / √C, where bit c of the target is set for a minus; its mean square change is that of all logits.

    >>> signed_logits(torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.tensor(0b0010))
    tensor(5.5000)
    """
    logits = logits_of(output)
    C = logits.shape[-1]
    if C > MOST_SIGNS:
        raise ValueError(f"a random combination is of at most {MOST_SIGNS} logits; got {C}")
    bits = (target >> torch.arange(C, device=logits.device)) & 1
    return (logits * (1 - 2 * bits)).sum() / C**0.5


OUTPUTS: dict[str, Output] = {
    "true": true_logit,
    "predicted": largest_logit,
    "loss": loss,
    "margin": margin,
    "random": signed_logits,
}
"""Every output by its name. "random" has random integers for targets."""


@dataclass(frozen=True)
class Remembered:
    """An output by name, None for the memory's usual one, and q: a gradient memory is shown g ‖g‖^q in place of g."""

    output: str | None = None
    power: float = 0.0

    def function(self) -> Output | None:
        """What `so.protect` takes as its output. Raises ValueError for an unknown name."""
        chosen = self._plain()
        return chosen if self.power == 0 else _scaled(chosen or true_logit)

    def targets(self, targets: Tensor, *seed: int | str) -> Tensor:
        """The targets (n,) of a task, or, for "random", integers whose bits are the signs of the logits."""
        if self.output != "random":
            return targets
        generator = torch.Generator().manual_seed(derive_seed(*seed))
        return torch.randint(0, 2**MOST_SIGNS, targets.shape, generator=generator).to(targets.device)

    def batches(
        self, parameters: ProtectedParameters, inputs: Tensor, targets: Tensor, size: int
    ) -> Iterator[tuple[Tensor, Any]]:
        """The batches that a memory observes; with a power, a target is (target, ‖g‖^q), and gradients are made twice.

        The output times ‖g‖^q has the scaled gradient, so any memory of gradients can be shown it.
        """
        signals = None if self.power == 0 else GradientSignals(parameters, self._plain() or true_logit)
        for x, y in zip(inputs.split(size), targets.split(size), strict=True):
            if signals is None:
                yield x, y
                continue
            norms = torch.cat([rows.norm(dim=1) for rows in signals.chunks(x, y)])
            yield x, (y, torch.where(norms > 0, norms**self.power, 0.0))

    def _plain(self) -> Output | None:
        if self.output is None:
            return None
        if self.output not in OUTPUTS:
            raise ValueError(unknown("output", str(self.output), OUTPUTS))
        return OUTPUTS[self.output]


def _scaled(output: Output) -> Output:
    def scaled(result: Any, target: Any) -> Tensor:
        return output(result, target[0]) * target[1]

    return scaled


AS_USUAL = Remembered()
