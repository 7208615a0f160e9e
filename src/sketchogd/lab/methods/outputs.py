"""Which output of an example a memory remembers, by name. C logits of one example."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sketchogd.lab.names import unknown
from sketchogd.model.batches import Output, log_likelihood, logits_of, true_logit
from sketchogd.seeds import derive_seed

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
    """The output that a memory protects, by name; None for its usual one."""

    output: str | None = None

    def function(self) -> Output | None:
        """What `so.protect` takes as its output. Raises ValueError for an unknown name."""
        if self.output is None:
            return None
        if self.output not in OUTPUTS:
            raise ValueError(unknown("output", str(self.output), OUTPUTS))
        return OUTPUTS[self.output]

    def targets(self, targets: Tensor, *seed: int | str) -> Tensor:
        """The targets (n,) of a task, or, for "random", integers whose bits are the signs of the logits."""
        if self.output != "random":
            return targets
        generator = torch.Generator().manual_seed(derive_seed(*seed))
        return torch.randint(0, 2**MOST_SIGNS, targets.shape, generator=generator).to(targets.device)


AS_USUAL = Remembered()
