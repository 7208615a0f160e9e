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
from .reference import ROUNDED, Copies, Stack

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
        self.corrections: Copies | None = None
        self._known = 0

    def reset(self) -> None:
        """Forget the corrections; means are used again when those of before hardly count in them."""
        self.corrections, self._known = None, 0

    def began(self, optimizer: Optimizer, last: Copies, steps: int, every: int) -> None:
        """Note that the last correction was added to so many steps; `added` takes it into C, one stack at a time."""
        self._known += steps
        if not keeps_corrections(optimizer, every):
            self.corrections = None
        elif self.corrections is None:
            zero = torch.zeros((), device=self.parameters.device)
            zeros = [zero.expand(copy.shape) for copy in last]
            self.corrections = Copies.of(zeros, ROUNDED, [copy.span for copy in last], self.parameters)

    def added(self, means: "Sequence[Mean | None]", k: int, last: Sequence[Tensor], steps: int) -> None:
        """Take what the k-th stack of the last correction holds into C."""
        if self.corrections is None:
            return
        stack = self.corrections.stacks[k]
        where = self.parameters.dtype, self.parameters.device
        kept, last = converted(stack.tensors(), *where), converted(last, *where)
        for (beta, _), some in _alike([means[i] for i in stack.places]):
            mixed = torch._foreach_lerp([last[j] for j in some], [kept[j] for j in some], beta**steps)
            for j, t in zip(some, mixed, strict=True):
                kept[j] = t
        stack.take_(kept)

    def of(
        self, means: "Sequence[Mean | None]", gradients: Sequence[Tensor | None], last: Copies | None
    ) -> Iterator[tuple[list[int], list[Tensor]]]:
        """Mean gradients with those of this step, a few at a time, with their places.

        Where the mean is not known they are the gradients of this step alone.

        Args:
            means: what the optimizer keeps.
            gradients: of this step; None where there is none.
            last: the last correction, which stands for C where that is not kept.
        """
        corrections, where = self.corrections or last, (self.parameters.dtype, self.parameters.device)
        parts: list[tuple[list[int], Stack | None]] = [(places, None) for places in self.parameters.portions()]
        if corrections is not None:
            parts = [(stack.places, stack) for stack in corrections.stacks]
        for places, stack in parts:
            known = [means[i] if self._knows(means[i]) and gradients[i] is not None else None for i in places]
            held = [i for i in places if gradients[i] is not None]
            found = dict(
                zip(held, converted([g for i in held if (g := gradients[i]) is not None], *where), strict=True)
            )
            kept = None if stack is None or not any(known) else converted(stack.tensors(), *where)
            for (beta, steps), some in _alike(known):
                before = converted([known[j].total for j in some], *where)  # type: ignore[union-attr]
                if kept is not None:
                    share = 1.0 if self.corrections is not None else 1 - beta**steps
                    added = torch._foreach_add(before, [kept[j] for j in some], alpha=-share)
                    before = list(added)
                mean = torch._foreach_lerp([found[places[j]] for j in some], before, beta)
                torch._foreach_div_(mean, 1 - beta ** (steps + 1))
                found |= zip([places[j] for j in some], mean, strict=True)
            yield held, [found[i] for i in held]

    def _knows(self, mean: "Mean | None") -> bool:
        return mean is not None and (mean.steps == self._known or mean.beta**self._known < NEGLIGIBLE)


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


def _alike(means: Sequence[Mean | None]) -> Iterable[tuple[tuple[float, float], list[int]]]:
    """The places of means, by β and k."""
    found: dict[tuple[float, float], list[int]] = {}
    for i, mean in enumerate(means):
        if mean is not None:
            found.setdefault((mean.beta, mean.steps), []).append(i)
    return found.items()
