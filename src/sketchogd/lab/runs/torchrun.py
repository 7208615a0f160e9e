"""One run by several processes: each computes on its share of every batch and remembers its share of every task.

`Alone` is one process; `Together` are those that torchrun started. The first of them keeps the records and announces
which run is next; the others follow. The numbers are those of a single process, up to the order of sums.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from sketchogd.lab import records

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from sketchogd.lab.runs.config import RunConfig


class Processes(ABC):
    """The processes of a run: `group` for the protection, `own` the share of a batch that this process takes."""

    group: "ProcessGroup | None" = None
    own: slice = slice(None)

    @abstractmethod
    def backward(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy of a batch; its gradients are added to `.grad`."""

    @abstractmethod
    def from_first(self, value: Any) -> Any:
        """The value that the first process passed."""


class Alone(Processes):
    """A single process."""

    def backward(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """One forward and backward pass."""
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        return loss.detach()

    def from_first(self, value: Any) -> Any:
        """The value."""
        return value


class Together(Processes):
    """The processes of the default process group."""

    def __init__(self) -> None:
        self.group = dist.group.WORLD
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.own = slice(self.rank, None, self.size)

    def backward(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """A pass over this process's examples, and one all-reduce of gradients and loss.

        BatchNorm in training mode needs the statistics of the whole batch, so every process then takes all of it.
        """
        if any(isinstance(module, _BatchNorm) and module.training for module in model.modules()):
            return Alone().backward(model, inputs, targets)
        mine = targets[self.own]
        # A process without examples takes one with weight 0, so that the same parameters get gradients everywhere.
        x, y, weight = (inputs[self.own], mine, 1.0) if len(mine) else (inputs[:1], targets[:1], 0.0)
        loss = cross_entropy(model(x), y, reduction="sum") * (weight / len(targets))
        loss.backward()
        moved = [p for p in model.parameters() if p.grad is not None]
        flat = torch.cat([loss.detach().reshape(1), *(p.grad.flatten() for p in moved if p.grad is not None)])
        dist.all_reduce(flat)
        total, *parts = flat.split([1, *(p.numel() for p in moved)])
        for p, part in zip(moved, parts, strict=True):
            p.grad = part.view_as(p).clone()
        return total[0]

    def from_first(self, value: Any) -> Any:
        """One broadcast."""
        sent = [value]
        dist.broadcast_object_list(sent, src=0)
        return sent[0]


def run_all(
    configs: Sequence["RunConfig"],
    root: Path,
    run: Callable[["RunConfig", Path | None, Processes], Any],
    tell: Callable[[str, str, str], None],
) -> None:
    """Do the runs one after another, each by all processes; the first one records them and reports how each ended.

    Args:
        configs: the runs, the same in all processes.
        root: the folder of all runs.
        run: run(config, folder, processes) does one; the folder is None in all processes but the first.
        tell: called as tell(name, status, message) with "finished", "failed", "skipped" or "busy".

    Raises:
        RecordError: a folder holds a run with other settings; nothing is started.
    """
    processes = Together()
    by_name = {config.name: config for config in configs}
    if processes.rank:
        while (name := processes.from_first(None)) is not None:
            try:
                run(by_name[name], None, processes)
            except Exception as error:  # the first process meets the same and records it
                tell(name, "failed", f"{type(error).__name__}: {error}")
        return
    plan = records.plan(root, {name: config.record() for name, config in by_name.items()})
    state = {name: kind for kind, names in plan.items() for name in names}
    try:
        if plan[records.State.DIFFERENT]:
            raise records.RecordError(
                f"{root / plan[records.State.DIFFERENT][0]}: holds a run with other settings; use another folder or "
                "delete it"
            )
        for name, config in by_name.items():
            if state.get(name) in (records.State.FINISHED, records.State.RUNNING):
                finished = state[name] is records.State.FINISHED
                tell(name, "skipped" if finished else "busy", "" if finished else "another process works on it")
                continue
            processes.from_first(name)
            try:
                run(config, root / name, processes)
            except Exception as error:
                tell(name, "failed", f"{type(error).__name__}: {error}")
            else:
                tell(name, "finished", "")
    finally:
        processes.from_first(None)
