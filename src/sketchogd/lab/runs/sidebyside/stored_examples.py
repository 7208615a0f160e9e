"""What A-GEM and replay do at a step, for many runs at once: draw stored examples, and change gradients by theirs.

`register_change` adds another learner that keeps examples. Letters: S runs of a stack; R of them that draw equally
many examples, m; N examples that they keep in all.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor, nn

from sketchogd.lab.methods.baselines import AGEM, Replay
from sketchogd.lab.methods.baselines.examples import ExampleStore
from sketchogd.lab.methods.learner import Learner
from sketchogd.lab.runs.sidebyside.stacked import Backward, Stack, gradients

Weights = dict[str, Tensor]


class Recalling(Protocol):
    """A learner that draws `batch` of its stored examples at each step and keeps nothing else."""

    store: ExampleStore
    batch: int


def project_on_half_spaces_(found: Weights, recalled: Weights, n: int, m: int) -> None:
    """`agem.project_on_half_space_` for R models, in place."""
    g = torch.cat([found[name].flatten(1) for name in recalled], 1)
    r = torch.cat([t.flatten(1) for t in recalled.values()], 1)
    product, size = (g * r).sum(1), r.square().sum(1)
    r *= (-product.clamp(max=0.0) / size.clamp_min(torch.finfo(size.dtype).tiny)).unsqueeze(1)
    for (name, t), change in zip(recalled.items(), r.split([t[0].numel() for t in recalled.values()], 1), strict=True):
        found[name].add_(change.reshape(t.shape))


def average_(found: Weights, recalled: Weights, n: int, m: int) -> None:
    """(n g + m r) / (n + m) as in `Replay.before_step`, for R models, in place."""
    for name, g in found.items():
        g.mul_(n / (n + m)).add_(recalled[name], alpha=m / (n + m))


@dataclass(frozen=True)
class GradientChange:
    """How the learners of one class change gradients at a step.

    Args:
        change_: change_(found, recalled, n, m) changes the gradients `found` (R, …) of batches of n examples, in place,
            by the gradients `recalled` (R, …) of batches of m stored ones.
        body: the names of the parameters of a learner that are trained once examples are stored. The examples of a
            memory batch then all go through the head of the first. None: all parameters, and each example's own head.
    """

    change_: Callable[[Weights, Weights, int, int], None]
    body: Callable[[Any], Collection[str]] | None = None

    @property
    def averages(self) -> bool:
        """Whether a step on both batches together is all there is to do."""
        return self.change_ is average_


CHANGES: dict[type[Learner], GradientChange] = {
    AGEM: GradientChange(project_on_half_spaces_),
    Replay: GradientChange(average_),
}
"""The learners whose steps are taken here: each exact class with its change."""


def register_change(kind: type[Learner], change: GradientChange) -> None:
    """Have learners of a class, which must be `Recalling`, change gradients here instead of by their hooks."""
    CHANGES[kind] = change


def recalls_examples(learner: Learner) -> TypeGuard[Recalling]:
    """Whether all that a learner does at a step is done here."""
    return type(learner) in CHANGES


class Recall:
    """The stored examples of R learners of one class: inputs (N, …), targets (N,), heads (N,), and the next draws.

    Args:
        members: the learners, each with its number in the stack.
        change: that of their class.
        m: examples that each draws at a step.
        stack: the weights of all S runs.
        device: where the heads and the draws are kept.
    """

    def __init__(
        self,
        members: Sequence[tuple[int, Recalling]],
        change: GradientChange,
        m: int,
        stack: Stack,
        device: torch.device,
    ) -> None:
        self.stores = [learner.store for _, learner in members]
        self.change, self.m = change, m
        self.body = None if change.body is None else change.body(members[0][1])
        self.which = torch.tensor([s for s, _ in members], device=device)
        self.stack = stack
        self.all = len(members) == len(next(iter(stack.weights.values())))
        # Within a task only the trained weights change.
        self.still = {n: t.index_select(0, self.which) for n, t in stack.weights.items() if n not in stack.trained}
        self.inputs = torch.cat([store.tensors()["inputs"] for store in self.stores])
        self.targets = torch.cat([store.tensors()["targets"] for store in self.stores])
        self.heads = torch.cat([store.groups for store in self.stores]).to(device)
        sizes = torch.tensor([len(store) for store in self.stores])
        self.decode = self.stores[0].encoding.decode
        self.starts = (sizes.cumsum(0) - sizes).view(-1, 1, 1)
        self.rows = torch.zeros(len(members), 0, 0, dtype=torch.int64, device=device)
        self._ahead: Tensor | None = None

    def draw_ahead(self, steps: int) -> None:
        """Draw the batches of the `steps` steps after the planned ones now, while a GPU is busy with those."""
        drawn = [torch.stack([store.rows(self.m) for _ in range(steps)]) for store in self.stores]
        self._ahead = torch.stack(drawn) + self.starts

    def plan(self, steps: int) -> None:
        """Move the draws of the next `steps` steps to the device: rows (R, steps, m)."""
        if self._ahead is None:
            self.draw_ahead(steps)
        rows, self._ahead = self._ahead, None
        assert rows is not None
        if self.rows.shape == rows.shape:
            self.rows.copy_(rows)  # a captured graph reads this very tensor
        else:
            self.rows = rows.to(self.rows.device)

    def drawn(self, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs (R, m, …), targets (R, m) and heads (R, m) of the stored examples of step `at` (1,)."""
        rows = self.rows.index_select(1, at).squeeze(1)
        return self.decode(self.inputs[rows]), self.targets[rows].long(), self.heads[rows].long()

    @property
    def is_replay(self) -> bool:
        """Whether all runs of the stack average, so that a step on the `union` is all there is to do."""
        return self.all and self.change.averages

    def union(self, x: Tensor, y: Tensor, head: int, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The batches x, y (S, b, …) of a head followed by the stored examples of step `at` (1,), and all heads."""
        inputs, targets, heads = self.drawn(at)
        return torch.cat([x, inputs], 1), torch.cat([y, targets], 1), torch.cat([torch.full_like(y, head), heads], 1)

    @torch.no_grad()
    def change_(self, found: Weights, at: Tensor, b: int, backward: Backward, net: nn.Module) -> None:
        """Change the gradients of batches by those of stored examples, in place.

        Args:
            found: the gradients (S, …).
            at: the number (1,) of the step.
            b: examples in a batch.
            backward: the passes of the stack's models.
            net: one of the models.
        """
        weights, theirs = self.stack.weights, found
        if not self.all:
            weights = self.still | {name: weights[name].index_select(0, self.which) for name in self.stack.trained}
            theirs = {name: g.index_select(0, self.which) for name, g in found.items()}
        inputs, targets, heads = self.drawn(at)
        if self.body is not None:
            heads = heads[:, :1].expand_as(heads)
        _, recalled = gradients(backward, net, weights, inputs, targets, heads)
        if self.body is not None:
            for name in theirs.keys() - self.body:
                theirs[name].zero_()
            recalled = {name: recalled[name] for name in self.body}
        self.change.change_(theirs, recalled, b, self.m)
        if not self.all:
            for name, g in theirs.items():
                found[name].index_copy_(0, self.which, g)


def recalls(learners: Sequence[tuple[int, Learner]], stack: Stack, device: torch.device) -> list[Recall]:
    """The learners that keep examples, each with its number in the stack, by class and number of examples drawn."""
    parts: dict[tuple[type[Any], int], list[tuple[int, Recalling]]] = {}
    for s, learner in learners:
        if recalls_examples(learner) and len(learner.store):
            parts.setdefault((type(learner), min(learner.batch, len(learner.store))), []).append((s, learner))
    return [Recall(members, CHANGES[kind], m, stack, device) for (kind, m), members in parts.items()]
