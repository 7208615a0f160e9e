"""What A-GEM and replay do at a step, for many runs at once: draw stored examples, and change gradients by theirs.

Letters: R runs of a group that draw equally many examples, m; N examples that they keep, all together.
"""

from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor, nn

from sketchogd.lab.methods.baselines import AGEM, Replay
from sketchogd.lab.methods.learner import Baseline
from sketchogd.paper.published_agem import PublishedAGEM
from sketchogd.lab.runs.sidebyside.stacked import Backward, Stack, gradients

Learner = AGEM | Replay
Weights = dict[str, Tensor]


class Recall:
    """The examples of R runs out of the S of a stack: inputs (N, …), targets (N,), heads (N,), and the next draws."""

    def __init__(self, members: Sequence[tuple[int, Learner]], m: int, stack: Stack, device: torch.device) -> None:
        self.stores = [learner.store for _, learner in members]
        self.m = m
        first = members[0][1]
        self.projects = isinstance(first, AGEM)
        self.body = first.body.names if isinstance(first, PublishedAGEM) else None
        self.which = torch.tensor([s for s, _ in members], device=device)
        self.stack = stack
        self.all = len(members) == len(next(iter(stack.weights.values())))
        # Within a task nothing but the trained weights moves.
        self.still = {n: t.index_select(0, self.which) for n, t in stack.weights.items() if n not in stack.trained}
        self.inputs = torch.cat([store.tensors()["inputs"] for store in self.stores])
        self.targets = torch.cat([store.tensors()["targets"] for store in self.stores])
        self.heads = torch.cat([store.groups for store in self.stores]).to(device)
        sizes = torch.tensor([len(store) for store in self.stores])
        self.starts = (sizes.cumsum(0) - sizes).view(-1, 1, 1)
        self.rows = torch.zeros(len(members), 0, 0, dtype=torch.int64, device=device)
        self._ahead: Tensor | None = None

    def draw_ahead(self, steps: int) -> None:
        """Draw the batches of the `steps` steps after the planned ones now, while a GPU is busy with those."""
        drawn = [torch.stack([store.rows(self.m) for _ in range(steps)]) for store in self.stores]
        self._ahead = torch.stack(drawn) + self.starts

    def plan(self, steps: int) -> None:
        """Have the batches of the next `steps` steps on the device: rows (R, steps, m)."""
        if self._ahead is None:
            self.draw_ahead(steps)
        rows, self._ahead = self._ahead, None
        assert rows is not None
        if self.rows.shape == rows.shape:
            self.rows.copy_(rows)  # a graph reads them where they stood when it was captured
        else:
            self.rows = rows.to(self.rows.device)

    def drawn(self, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs (R, m, …), targets (R, m) and heads (R, m) of the stored examples of step `at` (1,)."""
        rows = self.rows.index_select(1, at).squeeze(1)
        return self.inputs[rows], self.targets[rows], self.heads[rows]

    @property
    def is_replay(self) -> bool:
        """Whether it is replay for all runs of the stack: then a step on the `union` is all there is to do."""
        return self.all and not self.projects

    def union(self, x: Tensor, y: Tensor, head: int, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The batches x, y (S, b, …) of a head, the stored examples of step `at` (1,) after them, and all heads."""
        inputs, targets, heads = self.drawn(at)
        return torch.cat([x, inputs], 1), torch.cat([y, targets], 1), torch.cat([torch.full_like(y, head), heads], 1)

    @torch.no_grad()
    def change_(self, found: Weights, at: Tensor, b: int, backward: Backward, net: nn.Module) -> None:
        """Change the gradients `found` (S, …) of batches of b by those of the stored examples of step `at` (1,)."""
        weights, theirs = self.stack.weights, found
        if not self.all:
            weights = self.still | {name: weights[name].index_select(0, self.which) for name in self.stack.trained}
            theirs = {name: g.index_select(0, self.which) for name, g in found.items()}
        inputs, targets, heads = self.drawn(at)
        if self.body is not None:  # as in `PublishedAGEM`: all go through the first one's head, and heads stay
            heads = heads[:, :1].expand_as(heads)
        _, recalled = gradients(backward, net, weights, inputs, targets, heads)
        if self.body is not None:
            for name in theirs.keys() - self.body:
                theirs[name].zero_()
            recalled = {name: recalled[name] for name in self.body}
        if self.projects:
            project_on_half_spaces_(theirs, recalled)
        else:
            average_(theirs, recalled, b, self.m)
        if not self.all:
            for name, g in theirs.items():
                found[name].index_copy_(0, self.which, g)


def recalls(learners: Sequence[tuple[int, Baseline]], stack: Stack, device: torch.device) -> list[Recall]:
    """The runs of a group that keep examples, each with its number, in parts that draw equally many."""
    parts: dict[tuple[type, int], list[tuple[int, Learner]]] = {}
    for s, learner in learners:
        if recalls_examples(learner) and len(learner.store):
            parts.setdefault((type(learner), min(learner.batch, len(learner.store))), []).append((s, learner))
    return [Recall(members, m, stack, device) for (_, m), members in parts.items()]


def recalls_examples(learner: Baseline) -> TypeGuard[Learner]:
    """Whether all that a method does at a step is done here."""
    return type(learner) in (AGEM, PublishedAGEM, Replay)


def project_on_half_spaces_(found: Weights, recalled: Weights) -> None:
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
