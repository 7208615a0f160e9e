"""The mean gradient of recent steps, from what Adam and its kin keep of them.

A correction c that is added to m steps must not carry the noise of one batch's gradient into all of them: m times the
same noise moves weights √m times as far as m independent ones. Adam keeps an exponential mean of what it was given,

    M = (1 − β) Σ_j β^(k−j) (g_j + c_j),    of which    C = (1 − β) Σ_j β^(k−j) c_j

is known, since c_j changes at every m-th step only: (M − C) / (1 − β^k) is the mean gradient of the batches. C is kept
in one byte per number; where β^m is next to nothing it is the last c itself and is not kept.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Adam, Adamax, NAdam, Optimizer, RAdam

from ..model.parameters import ProtectedParameters, local
from .reference import ROUNDED, Copy

NEGLIGIBLE = 0.05
"""What counts in a mean with less than this share is left out."""


class Mean(NamedTuple):
    """The exponential mean of a parameter: M, β, and the number of steps k."""

    total: Tensor
    beta: float
    steps: float


def keeps_mean(optimizer: Optimizer) -> bool:
    """Whether an optimizer keeps an exponential mean of gradients (torch's Adam and its kin do; SGD, Lion … do not)."""
    kin = isinstance(optimizer, Adam | Adamax | NAdam | RAdam)
    return kin and not any(group["maximize"] for group in optimizer.param_groups)


def keeps_corrections(optimizer: Optimizer, every: int) -> bool:
    """Whether the mean of corrections is kept beside the last one."""
    return keeps_mean(optimizer) and float(optimizer.param_groups[0]["betas"][0]) ** every >= NEGLIGIBLE


class MeanGradients:
    """Mean gradients of the parameters, and the mean of the corrections that were added to them.

    Args:
        parameters: the protected parameters.
    """

    def __init__(self, parameters: ProtectedParameters) -> None:
        self.parameters = parameters
        self.corrections: list[Copy] | None = None
        self._known = 0

    def reset(self) -> None:
        """Forget the corrections; means are used again when those of before hardly count in them."""
        self.corrections, self._known = None, 0

    def added(self, optimizer: Optimizer, last: Sequence[Copy], steps: int, every: int) -> None:
        """Take the last correction, which was added to so many steps, into C."""
        self._known += steps
        if not keeps_corrections(optimizer, every):
            self.corrections = None
            return
        if self.corrections is None:
            zeros = (torch.zeros(copy.shape, device=copy.numbers.device) for copy in last)
            self.corrections = [Copy.of(zero, ROUNDED, copy.span) for zero, copy in zip(zeros, last, strict=True)]
        for mean, correction, kept in zip(self._means(optimizer), last, self.corrections, strict=True):
            if mean is not None:
                kept.take_(torch.lerp(correction.tensor().float(), kept.tensor(), mean.beta**steps))

    def of(
        self, optimizer: Optimizer, gradients: Sequence[Tensor | None], last: Sequence[Copy] | None
    ) -> Iterator[Tensor | None]:
        """Mean gradients with those of this step; the latter alone where the mean is not known.

        Args:
            optimizer: whose means they are.
            gradients: of this step.
            last: the last correction, which stands for C where that is not kept.
        """
        corrections: Sequence[Copy | None] = self.corrections or last or [None] * len(gradients)
        for mean, gradient, correction in zip(self._means(optimizer), gradients, corrections, strict=True):
            if mean is None or gradient is None or not self._is_known(mean):
                yield gradient
                continue
            gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
            before = mean.total.to(gradient)
            if correction is not None:
                share = 1.0 if self.corrections is not None else 1 - mean.beta**mean.steps
                before = before - share * correction.tensor().to(gradient)
            yield torch.lerp(gradient, before, mean.beta) / (1 - mean.beta ** (mean.steps + 1))

    def _is_known(self, mean: Mean) -> bool:
        return mean.steps == self._known or mean.beta**self._known < NEGLIGIBLE

    def _means(self, optimizer: Optimizer) -> Iterator[Mean | None]:
        """Of every parameter; None where the optimizer keeps none, or has not taken a step yet."""
        groups = {id(t): group for group in optimizer.param_groups for t in group["params"]}
        for t in self.parameters.tensors:
            state, group = optimizer.state.get(t, {}), groups.get(id(t))
            if group is None or "exp_avg" not in state or not keeps_mean(optimizer):
                yield None
            else:
                yield Mean(local(state["exp_avg"]), float(group["betas"][0]), float(state["step"]))
