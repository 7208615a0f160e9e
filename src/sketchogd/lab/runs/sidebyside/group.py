"""Many runs in one loop: their weights stand side by side, and one vectorised step trains all of them.

A small network's step is mostly the cost of asking for it. Here S runs of the same benchmark and training, with any
seeds and methods, share the asking: every parameter is one tensor (S, …), a run's own model has views into it, and a
step is one forward pass and one backward pass, written out (`stacked`). On a GPU the steps between two projections,
with the projections, are captured in a CUDA graph once a task and replayed. Everything else (remembering, evaluating,
records) is done for each run by the code that does it for a single one, and every random choice is the same, so a run
comes out as `train.run` would give it, up to rounding.

Letters: S runs, b examples in a batch, n examples of a task, T tasks.
"""

import contextlib
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sketchogd.lab.methods.learner import Baseline
from sketchogd.lab.methods.baselines.examples import bytes_of_example
from sketchogd.lab import models, records
from sketchogd.lab.records import metrics
from sketchogd.lab.runs import train
from sketchogd.lab.runs.config import RunConfig, make_optimizer, stream_of
from sketchogd.lab.runs.sidebyside.partition import BLOCK, projects
from sketchogd.lab.runs.sidebyside.lane import Data, Lane
from sketchogd.lab.methods import Setup, build
from sketchogd.lab.runs.sidebyside.stored_examples import Recall, recalls
from sketchogd.lab.runs.evaluate import count_right, use_head
from sketchogd.lab.runs.sidebyside.stacked import Backward, gradients, stacked, stacked_optimizer, step_, written_out
from sketchogd.lab.streams import record

LONGEST = 200
"""The most steps of a block, and so of a CUDA graph."""

Block = tuple[int, int]
"""Steps in a block, and examples of its last one."""


def run(
    configs: Sequence[RunConfig],
    folders: Sequence[str | Path],
    *,
    data_folder: str | Path | None = None,
    device: str | torch.device = "cpu",
    progress: train.Progress | None = None,
) -> list[metrics.Summary | FloatingPointError]:
    """Do the runs of one group (see `grouping`), each in its folder, as `train.run` would; nothing is resumed.

    A run whose loss is no longer finite is marked failed, and its error stands in the place of its summary.

    Raises:
        RecordError: a folder holds a run of another config, or another process works on it.
    """
    with contextlib.ExitStack() as held:
        places = [records.RunFolder(folder) for folder in folders]
        for config, place in zip(configs, places, strict=True):
            held.enter_context(place.hold())
            train.begin(place, config, device)
        try:
            return Group(configs, places, data_folder, torch.device(device), progress).train()
        except BaseException as error:
            for place in places:
                place.fail(error)
            raise


class Group:
    """Runs of one group (see `grouping`) with their weights side by side, and the loop that trains them."""

    def __init__(
        self,
        configs: Sequence[RunConfig],
        places: Sequence[records.RunFolder],
        data_folder: str | Path | None,
        device: torch.device,
        progress: train.Progress | None,
    ) -> None:
        first = configs[0]
        self.training, self.device, self.progress = first.training, device, progress
        often = min((c.method.every for c in configs if projects(c)), default=BLOCK)
        self.every = [c.method.every if projects(c) else often for c in configs]
        self.waiting = [0] * len(configs)
        self.steps = 0
        self.spent: dict[str, float] = {}
        self.last: dict[str, float] = {}
        # Streams that do not depend on the seed are one; models with frozen features need one data set a seed.
        self.known = record(first.benchmark)
        by_seed = self.known.seeded or bool(self.training.frozen)
        keys = [c.seed if by_seed else 0 for c in configs]
        unique = list(dict.fromkeys(keys))
        streams = [stream_of(configs[keys.index(key)], data_folder) for key in unique]
        self.data = Data(streams, device)
        self.data.load_tests()
        self.stream = streams[0]
        self.example = self.data.tests[0][0][0][:1].cpu()
        self.heads = [recipe.head for recipe in self.stream.recipes]
        T = len(self.stream)
        self.head = self.heads[0]
        self.lanes = []
        nets = [self.known.network(self.stream, config.seed).to(device) for config in configs]
        # Each run's own optimizer never steps; it freezes what is frozen and carries the hooks of the protection.
        self.idle = [make_optimizer(net, self.training) for net in nets]
        self.stack = stacked(nets)
        self.optimizer = stacked_optimizer(list(self.stack.trained.values()), first)
        for i, (config, place, model) in enumerate(zip(configs, places, nets, strict=True)):
            learner = self._learner(config, model, self.idle[i], unique.index(keys[i]))
            blank = np.full((T, T), np.nan)
            self.lanes.append(Lane(config, place, model, learner, unique.index(keys[i]), blank, blank[0].copy()))
        self.offsets = torch.tensor([lane.data for lane in self.lanes], device=device)
        # Stored examples are recalled for all runs at once; what other methods do at a step is done for one at a time.
        self.recalls: list[Recall] = []
        self.hooked = [(s, lane) for s, lane in enumerate(self.lanes) if lane.hooked]
        self.backward: Backward
        self.branches: dict[int, Any] = {}
        self.columns = torch.arange(self.training.batch, device=device)
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        self.loss = torch.zeros(len(self.lanes), device=device)

    def _learner(self, config: RunConfig, model: nn.Module, idle: torch.optim.Optimizer, data: int) -> Baseline:
        def loss_of_head(inputs: Tensor, targets: Tensor, head: int) -> Tensor:
            use_head(model, head)
            loss = cross_entropy(model(inputs), targets)
            use_head(model, self.head)
            return loss

        protected = self.known.protected
        size = bytes_of_example(*self.data.tests[data][0])
        return build(config.method, Setup(model, idle, loss_of_head, len(self.stream), size, protected, config.seed))

    # ---------------------------------------------------------------- the loop

    def train(self) -> list[metrics.Summary | FloatingPointError]:
        """All tasks, one after another."""
        T, epochs = len(self.stream), self.training.epochs
        scores = self._evaluate(range(T))
        for lane, row in zip(self.lanes, scores, strict=True):
            lane.initial[:] = row
        for t in range(T):
            self.train_task(t)
            self._tell((t + 1) * epochs, f"remembering task {t + 1} of {T}")
            self.remember_task()
            for lane, row in zip(self.lanes, self._evaluate(range(T)), strict=True):
                if lane.error is None:
                    lane.matrix[t] = row
                    lane.place.save_accuracy(lane.matrix, lane.initial)
        return [lane.error or self._finish(lane) for lane in self.lanes]

    def remember_task(self) -> None:
        """Let every method take what it keeps from the task at hand."""
        with self._measuring("remember"):
            for lane in self.lanes:
                if lane.error is None:
                    lane.learner.end_task(*self.data.of(lane), self.head)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # remembering takes much for a moment, which other processes may need

    def train_task(self, t: int) -> None:
        """All epochs of task t."""
        epochs, T = self.training.epochs, len(self.stream)
        self.head = self.heads[t]
        for lane in self.lanes:
            use_head(lane.model, self.head)
        frozen = self.training.eval_after_first_step
        self.data.load(t, self._features() if frozen and t else None)
        order: Tensor | None = None
        graphs: dict[Block, Any] = {}
        self.waiting = [0] * len(self.lanes)
        self.recalls = recalls([(s, lane.learner) for s, lane in enumerate(self.lanes)], self.stack, self.device)
        for epoch in range(epochs):
            drawn = [
                torch.randperm(self.data.n, generator=train.generator(lane.config.seed, "order", t, epoch))
                for lane in self.lanes
            ]
            rows = torch.stack(drawn).to(self.device) + self.offsets[:, None] * self.data.n
            order = rows if order is None else order.copy_(rows)  # a graph reads it where it stood when captured
            self.at.zero_()
            self.loss.zero_()
            per_epoch = -(-self.data.n // self.training.batch)
            for recall in self.recalls:
                recall.plan(per_epoch)
            with self._measuring("train"):
                done = 0
                if frozen and self.steps == 0:
                    done = self._first_step(order)
                self._tell(t * epochs + epoch, f"task {t + 1} of {T}")
                self._steps(order, graphs, done, per_epoch)
                for recall in self.recalls if epoch + 1 < epochs else ():
                    recall.draw_ahead(per_epoch)
            self._record(t, epoch, per_epoch)

    def _steps(self, order: Tensor, graphs: dict[Block, Any], done: int, steps: int) -> None:
        """The steps `done` … of an epoch, in blocks; of each run the joint displacement of `every` steps is projected.

        A block that has them all is captured with its projection. Where they are more than `LONGEST` or than another
        run waits for, or an epoch ends before, there are several blocks, with the projection after the last, outside.
        """
        b = self.training.batch
        self.backward = written_out(self.lanes[0].model, self.data.x.ndim == 2)
        while done < steps:
            count = min(*map(operator.sub, self.every, self.waiting), steps - done, LONGEST)
            last = b if done + count < steps else self.data.n - (steps - 1) * b
            after = [s for s, every in enumerate(self.every) if every != count]
            for s in after:
                self.waiting[s] = (self.waiting[s] + count) % self.every[s]
            with self._joint(count, after):
                self._run((count, last), order, graphs)
            done += count
            self.steps += count

    def _run(self, block: Block, order: Tensor, graphs: dict[Block, Any]) -> None:
        """A block. On a GPU the first of its kind is taken eagerly, as leaks are measured there; others are replays."""
        if graphs.get(block) is not None:
            graphs[block].replay()
        elif block in graphs:
            graphs[block] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[block], capture_error_mode="relaxed"):  # capturing does not run it
                self._block(order, *block)
            graphs[block].replay()
        else:
            self._block(order, *block)
            if self.device.type == "cuda":
                graphs[block] = None

    def _block(self, order: Tensor, count: int, last: int) -> None:
        """Steps on `count` batches, the last of which has `last` examples; runs that wait for so many project them."""
        with self._joint(count, [s for s, every in enumerate(self.every) if every == count]):
            for i in range(count):
                self._step(order, last if i + 1 == count else self.training.batch)

    @contextlib.contextmanager
    def _joint(self, count: int, lanes: Sequence[int]) -> Iterator[None]:
        with contextlib.ExitStack() as joint:
            for s in lanes:
                joint.enter_context(self.lanes[s].learner.joint(count, more=self.waiting[s] > 0))
            yield

    def _step(self, order: Tensor, b: int) -> None:
        """One step of every run, on the b examples that are next in its order."""
        rows = order.index_select(1, self.at * self.training.batch + self.columns[:b])
        x, y = self.data.x[rows], self.data.y[rows]
        net, leaves, weights, backward = self.lanes[0].model, self.stack.trained, self.stack.weights, self.backward
        if not self.hooked and self.training.optimizer == "sgd" and all(recall.is_replay for recall in self.recalls):
            heads = None
            for recall in self.recalls:  # one at most, as each has all runs
                x, y, heads = recall.union(x, y, self.head, self.at)
            losses = step_(backward, net, weights, x, y, self.training.lr, heads)
            self.loss += losses[:, :b].mean(1)
            self.at += 1
            return
        losses, found = gradients(backward, net, weights, x, y)
        for recall in self.recalls:
            recall.change_(found, self.at, b, backward, net)
        for name, leaf in leaves.items():
            leaf.grad = found[name]
        with self._own_streams() as own:
            for s, lane in self.hooked:
                with own(s):
                    self.stack.lend_gradients(s, lane.model)
                    lane.learner.before_step(x[s], y[s], self.head)
        self.optimizer.step()
        with self._own_streams() as own:
            for s, lane in self.hooked:
                with own(s):
                    lane.learner.after_step()
        self.loss += losses.mean(1)
        self.at += 1

    @contextlib.contextmanager
    def _own_streams(self) -> Iterator[Callable[[int], contextlib.AbstractContextManager[Any]]]:
        """Inside a graph the hooks of different runs are branches that run at the same time."""
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

    def _first_step(self, order: Tensor) -> int:
        """The only step in training mode, one run at a time; after it the frozen layers give fixed features."""
        b = self.training.batch
        for s, lane in enumerate(self.lanes):
            rows = order[s, :b]
            lane.model.train()
            loss = cross_entropy(lane.model(self.data.x[rows]), self.data.y[rows])
            named = {name: p for name, p in lane.model.named_parameters() if p.requires_grad}
            gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
            with torch.no_grad():
                for p, gradient in zip(named.values(), gradients, strict=True):
                    if gradient is not None:
                        p.sub_(gradient, alpha=self.training.lr)
                self.loss[s] += loss.detach()
            lane.model.eval()
        features = self._features()
        self.data.tests = [
            [(feature(x), y) for x, y in tests] for feature, tests in zip(features, self.data.tests, strict=True)
        ]
        self.data.load(0, features)
        self.at += 1
        self.steps += 1
        return 1

    def _features(self) -> list[Callable[[Tensor], Tensor]]:
        """For each stream what the frozen layers of its first run make of images; runs of a seed have the same ones."""
        found: list[Callable[[Tensor], Tensor]] = []
        for data in range(len(self.data.streams)):
            model = next(lane.model for lane in self.lanes if lane.data == data)
            assert isinstance(model, models.LeNet)
            found.append(model.frozen_features)
        return found

    # ---------------------------------------------------------------- what is measured

    @torch.no_grad()
    def _evaluate(self, tasks: Sequence[int]) -> list[list[float]]:
        """Accuracies, a list a run with one number a task."""
        with self._measuring("evaluate"):
            right = []
            for lane in self.lanes:
                tests = self.data.tests[lane.data]
                with lane.learner.preview():
                    counts = [count_right(lane.model, *tests[t], self.heads[t], self.head) for t in tasks]
                right.append(torch.stack(counts))
            sizes = torch.tensor([len(self.data.tests[0][t][1]) for t in tasks])
            shares: list[list[float]] = (torch.stack(right).cpu().double() / sizes).tolist()
        return shares

    def _record(self, t: int, epoch: int, per_epoch: int) -> None:
        means = (self.loss / per_epoch).tolist()
        for lane, mean in zip(self.lanes, means, strict=True):
            if lane.error is None and not np.isfinite(mean):
                lane.error = FloatingPointError(f"the loss of task {t + 1}, epoch {epoch + 1} is {mean}; lower lr")
                lane.place.fail(lane.error)
        if not self.training.curve:
            return
        for lane, mean, scores in zip(self.lanes, means, self._evaluate(range(t + 1)), strict=True):
            event = {"event": "evaluation", "task": t, "epoch": epoch + 1, "accuracy": scores, "loss": mean}
            if lane.error is None:
                lane.place.append(event)

    def _finish(self, lane: Lane) -> metrics.Summary:
        S = len(self.lanes)
        timings = {what: seconds / S for what, seconds in self.spent.items()}
        timings["total"] = sum(timings.values())
        timings["side_by_side"] = S
        summary = metrics.summary(lane.matrix, lane.initial)
        kept = train.ledger(lane.learner)
        for entry in kept["entries"]:
            if entry["name"] == "inputs":
                # Examples are kept here as frozen layers see them; what counts is the image that a single run keeps.
                entry["shape"] = [entry["shape"][0], *self.example.shape[1:]]
                entry["nbytes"] = self.example.nbytes * entry["shape"][0]
        kept["nbytes"] = sum(entry["nbytes"] for entry in kept["entries"])
        train.conclude(lane.place, lane.model, self.known.protected, lane.learner, summary, kept, timings, self.steps)
        return summary

    @contextlib.contextmanager
    def _measuring(self, what: str) -> Iterator[None]:
        self._wait()
        start = time.perf_counter()
        yield
        self._wait()
        self.last[what] = time.perf_counter() - start
        self.spent[what] = self.spent.get(what, 0.0) + self.last[what]

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _tell(self, epochs: float, doing: str) -> None:
        if self.progress is not None:
            self.progress(epochs, len(self.stream) * self.training.epochs, doing)
