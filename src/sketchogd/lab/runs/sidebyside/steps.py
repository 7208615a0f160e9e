"""The steps of one task for all runs of a group: one vectorised step, what each method adds to it, and projections.

Steps are taken in blocks. The steps of a run between two projections are joint: the displacement over them is projected
once. On a GPU a block with its projections is captured in a CUDA graph the second time it is taken, and replayed from
then on.

Letters: S runs, b examples in a batch, n examples of a task.
"""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from sketchogd.lab.runs.config import RunConfig, Training
from sketchogd.lab.runs.sidebyside.lane import Data, Lane
from sketchogd.lab.runs.sidebyside.partition import BLOCK, projects
from sketchogd.lab.runs.sidebyside.stacked import Backward, Stack, gradients, step_, written_out
from sketchogd.lab.runs.sidebyside.stored_examples import recalls

LONGEST = 200
"""The most steps of a block, and so of a CUDA graph."""

Block = tuple[int, int]
"""Steps in a block, and examples of its last one."""


def steps_between_projections(configs: Sequence[RunConfig]) -> list[int]:
    """After how many steps each run projects; runs that never do take as many at once as the most frequent one."""
    often = min((c.method.every for c in configs if projects(c)), default=BLOCK)
    return [c.method.every if projects(c) else often for c in configs]


class TaskSteps:
    """Takes the steps of one task. Made anew for each task, so that its graphs do not outlive it.

    Args:
        lanes: the S runs.
        stack: their weights.
        optimizer: steps on the stack; not used where plain SGD is all there is to do.
        data: the task.
        training: how it is trained.
        head: the head of the task.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        stack: Stack,
        optimizer: torch.optim.Optimizer,
        data: Data,
        training: Training,
        head: int,
    ) -> None:
        self.lanes, self.stack, self.optimizer = lanes, stack, optimizer
        self.data, self.training, self.head = data, training, head
        self.device = data.device
        self.every = steps_between_projections([lane.config for lane in lanes])
        self.waiting = [0] * len(lanes)
        # Stored examples are recalled for all runs at once; the hooks of other methods are called one run at a time.
        self.recalls = recalls([(s, lane.learner) for s, lane in enumerate(lanes)], stack, self.device)
        self.hooked = [(s, lane) for s, lane in enumerate(lanes) if lane.hooked]
        self.offsets = torch.tensor([lane.data for lane in lanes], device=self.device)[:, None]
        self.columns = torch.arange(training.batch, device=self.device)
        self.graphs: dict[Block, Any] = {}
        self.branches: dict[int, Any] = {}
        # Captured graphs read and write these very tensors.
        self.order = torch.zeros(len(lanes), data.n, dtype=torch.int64, device=self.device)
        self.at = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.loss = torch.zeros(len(lanes), device=self.device)

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch; the last may have fewer examples."""
        return -(-self.data.n // self.training.batch)

    @functools.cached_property
    def backward(self) -> Backward:
        """The passes of the models, as they are in the first block of the task."""
        return written_out(self.lanes[0].heads.model, self.data.x.ndim == 2)

    def begin_epoch(self, orders: Sequence[Tensor]) -> None:
        """Go through the examples in these orders, one (n,) per run; losses are summed anew."""
        self.order.copy_(torch.stack(list(orders)).to(self.device) + self.offsets * self.data.n)
        self.at.zero_()
        self.loss.zero_()
        for recall in self.recalls:
            recall.plan(self.per_epoch)

    def draw_ahead(self) -> None:
        """Draw the stored examples of the next epoch."""
        for recall in self.recalls:
            recall.draw_ahead(self.per_epoch)

    def skip_first(self, losses: Tensor) -> None:
        """Count the first step as taken elsewhere, with these losses (S,)."""
        self.loss += losses
        self.at += 1

    def take(self, first: int) -> None:
        """Take the steps of the epoch from number `first` on, in blocks.

        A block that has all steps of a run between two projections is captured with its projection. Where they are more
        than `LONGEST` or than another run waits for, or an epoch ends before, they are several blocks, and the
        projection after the last of them is not captured.
        """
        b, done = self.training.batch, first
        while done < self.per_epoch:
            count = min(*map(operator.sub, self.every, self.waiting), self.per_epoch - done, LONGEST)
            last = b if done + count < self.per_epoch else self.data.n - (self.per_epoch - 1) * b
            after = [s for s, every in enumerate(self.every) if every != count]
            for s in after:
                self.waiting[s] = (self.waiting[s] + count) % self.every[s]
            with self._joint(count, after):
                self._run((count, last))
            done += count

    def _run(self, block: Block) -> None:
        """Take a block; the first of its kind without a graph, because leaks are measured there."""
        if self.graphs.get(block) is not None:
            self.graphs[block].replay()
        elif block in self.graphs:
            self.graphs[block] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graphs[block], capture_error_mode="relaxed"):  # capturing does not run it
                self._block(*block)
            self.graphs[block].replay()
        else:
            self._block(*block)
            if self.device.type == "cuda":
                self.graphs[block] = None

    def _block(self, count: int, last: int) -> None:
        """Steps on `count` batches, the last of which has `last` examples; runs that wait for so many project them."""
        with self._joint(count, [s for s, every in enumerate(self.every) if every == count]):
            for i in range(count):
                self._step(last if i + 1 == count else self.training.batch)

    @contextlib.contextmanager
    def _joint(self, count: int, lanes: Sequence[int]) -> Iterator[None]:
        with contextlib.ExitStack() as joint:
            for s in lanes:
                joint.enter_context(self.lanes[s].learner.joint(count, more=self.waiting[s] > 0))
            yield

    def _step(self, b: int) -> None:
        """One step of every run, on the next b examples of its order."""
        rows = self.order.index_select(1, self.at * self.training.batch + self.columns[:b])
        x, y = self.data.x[rows], self.data.y[rows]
        plain = not self.hooked and self.training.optimizer == "sgd"
        if plain and all(recall.is_replay for recall in self.recalls):
            losses = self._plain_step(x, y)
        else:
            losses = self._changed_step(x, y)
        self.loss += losses.mean(1)
        self.at += 1

    def _plain_step(self, x: Tensor, y: Tensor) -> Tensor:
        """A step down the loss, on stored examples as well for replay; the losses (S, b) of the batches."""
        b, heads = y.shape[1], None
        for recall in self.recalls:  # one at most, as each has all runs
            x, y, heads = recall.union(x, y, self.head, self.at)
        net = self.lanes[0].heads.model
        return step_(self.backward, net, self.stack.weights, x, y, self.training.lr, heads)[:, :b]

    def _changed_step(self, x: Tensor, y: Tensor) -> Tensor:
        """A step of the optimizer on gradients that methods change before; the losses (S, b) of the batches."""
        net = self.lanes[0].heads.model
        losses, found = gradients(self.backward, net, self.stack.weights, x, y)
        for recall in self.recalls:
            recall.change_(found, self.at, y.shape[1], self.backward, net)
        for name, leaf in self.stack.trained.items():
            leaf.grad = found[name]
        with self._own_streams() as own:
            for s, lane in self.hooked:
                with own(s):
                    self.stack.lend_gradients(s, lane.heads.model)
                    lane.learner.before_step(x[s], y[s], self.head)
        self.optimizer.step()
        with self._own_streams() as own:
            for s, lane in self.hooked:
                with own(s):
                    lane.learner.after_step()
        return losses

    @contextlib.contextmanager
    def _own_streams(self) -> Iterator[Callable[[int], contextlib.AbstractContextManager[Any]]]:
        """While a graph is captured, give the hooks of each run a stream of their own, to run concurrently."""
        if self.device.type != "cuda" or len(self.hooked) < 2 or not torch.cuda.is_current_stream_capturing():
            yield lambda s: contextlib.nullcontext()
            return
        main = torch.cuda.current_stream()
        branches = {s: self.branches.setdefault(s, torch.cuda.Stream()) for s, _ in self.hooked}
        for branch in branches.values():
            branch.wait_stream(main)
        yield lambda s: torch.cuda.stream(branches[s])
        for branch in branches.values():
            main.wait_stream(branch)
