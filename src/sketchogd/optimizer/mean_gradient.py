"""The mean gradient of recent steps, from what Adam and its kin keep of them.

A correction c that is added to m steps must not carry the noise of one batch's gradient into all of them: m times the
same noise moves weights √m times as far as m independent ones. Adam keeps an exponential mean of what it was given,

    M = (1 − β) Σ_j β^(k−j) (g_j + c_j),    of which    C = (1 − β) Σ_j β^(k−j) c_j

is known, since c_j changes at every m-th step only: (M − C) / (1 − β^k) is the mean gradient of the batches. C is kept
in one byte per number; where β^m is next to nothing it is the last c itself and is not kept.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Adam, Adamax, NAdam, Optimizer, RAdam

from ..linalg.stacks import converted
from ..model.parameters import ProtectedParameters, local
from .finite import numbers_in
from .reference import ROUNDED, Copy, copies_of, take_all_, tensors_of

NEGLIGIBLE = 0.05
"""What counts in a mean with less than this share is left out."""


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
            zeros = [torch.zeros(copy.shape, device=copy.numbers.device) for copy in last]
            self.corrections = copies_of(zeros, ROUNDED, [copy.span for copy in last])
        means, device = means_of(optimizer, self.parameters), self.parameters.device
        for places in self.parameters.portions():
            for (beta, _), some in _alike(means, places):
                kept = [self.corrections[i] for i in some]
                added = converted(tensors_of([last[i] for i in some]), torch.float32, device)
                take_all_(kept, torch._foreach_lerp(added, tensors_of(kept), beta**steps))

    def of(
        self, optimizer: Optimizer, gradients: Sequence[Tensor | None], last: Sequence[Copy] | None
    ) -> Iterator[tuple[list[int], list[Tensor]]]:
        """Mean gradients with those of this step, a few at a time, with their places.

        Where the mean is not known they are the gradients of this step alone.

        Args:
            optimizer: whose means they are.
            gradients: of this step; None where there is none.
            last: the last correction, which stands for C where that is not kept.
        """
        means, where = means_of(optimizer, self.parameters), (self.parameters.dtype, self.parameters.device)
        corrections = self.corrections or last
        for places, now in some_at_a_time(self.parameters, gradients):
            found = dict(zip(places, now, strict=True))
            for (beta, steps), some in _alike(means, places):
                if steps != self._known and beta**self._known >= NEGLIGIBLE:
                    continue
                before = converted([means[i].total for i in some], *where)  # type: ignore[union-attr]
                if corrections is not None:
                    share = 1.0 if self.corrections is not None else 1 - beta**steps
                    kept = converted(tensors_of([corrections[i] for i in some]), *where)
                    before = torch._foreach_add(before, kept, alpha=-share)  # type: ignore[assignment]
                mean = torch._foreach_lerp([found[i] for i in some], before, beta)
                torch._foreach_div_(mean, 1 - beta ** (steps + 1))
                found |= zip(some, mean, strict=True)
            yield places, [found[i] for i in places]


class Mean(NamedTuple):
    """The exponential mean of a parameter: M, β, and the number of steps k."""

    total: Tensor
    beta: float
    steps: float


def means_of(optimizer: Optimizer, parameters: ProtectedParameters) -> list[Mean | None]:
    """Of every parameter; None where the optimizer keeps none, or has not taken a step yet."""
    groups = {id(t): group for group in optimizer.param_groups for t in group["params"]}
    states = [optimizer.state.get(t, {}) for t in parameters.tensors]
    kept = [i for i, t in enumerate(parameters.tensors) if id(t) in groups and "exp_avg" in states[i]]
    found: list[Mean | None] = [None] * len(states)
    if keeps_mean(optimizer):
        for i, steps in zip(kept, numbers_in([states[i]["step"] for i in kept]), strict=True):
            beta = float(groups[id(parameters.tensors[i])]["betas"][0])
            found[i] = Mean(local(states[i]["exp_avg"]), beta, steps)
    return found


def some_at_a_time(
    parameters: ProtectedParameters, gradients: Sequence[Tensor | None]
) -> Iterator[tuple[list[int], list[Tensor]]]:
    """Yield places and gradients as parts of the vector of parameters; those that are None are left out."""
    for portion in parameters.portions():
        held = [(i, gradient) for i in portion if (gradient := gradients[i]) is not None]
        yield [i for i, _ in held], converted([gradient for _, gradient in held], parameters.dtype, parameters.device)


def _alike(means: Sequence[Mean | None], places: Sequence[int]) -> Iterable[tuple[tuple[float, float], list[int]]]:
    """Those of these places that have means, by β and k."""
    found: dict[tuple[float, float], list[int]] = {}
    for i in places:
        mean = means[i]
        if mean is not None:
            found.setdefault((mean.beta, mean.steps), []).append(i)
    return found.items()
