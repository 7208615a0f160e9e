"""The processes that protect one model together: a torch process group and the collectives that the library uses.

Letters: R processes, numbered 0..R-1 within the group. Every method consists of one or two calls of torch.distributed;
if another process is gone, the error says what to do.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import ProtectionError
from ..model.batches import map_tensors
from ..model.parameters import local

# torch 2.13 renamed these two functions and deprecated the old names.
_gather_into: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Group:
    """A process group whose collectives accept tensors on any device and move them to where the backend needs them.

    All processes of the group must call each method together. Methods raise ProtectionError if a process is gone: at
    once if the backend notices (gloo, when a process died), otherwise after the timeout of the process group, set by
    `torch.distributed.init_process_group(timeout=...)`.
    """

    def __init__(self, process_group: dist.ProcessGroup, device: torch.device) -> None:
        self.process_group = process_group
        self.rank = dist.get_rank(process_group)
        self.size = dist.get_world_size(process_group)
        self.device = _meeting_place(process_group, device)

    def __repr__(self) -> str:
        return f"<Group: process {self.rank} of {self.size}, {dist.get_backend(self.process_group)}>"

    def total(self, x: Tensor) -> Tensor:
        """Sum x over all processes, in place; returns x."""
        return self._reduced(x, dist.ReduceOp.SUM)

    def largest(self, x: float) -> float:
        """Return the maximum of a number over all processes; NaN counts as infinite."""
        number = torch.tensor(math.inf if math.isnan(x) else x, dtype=torch.float64, device=self.device)
        return float(self._reduced(number, dist.ReduceOp.MAX))

    def maximum(self, x: Tensor) -> Tensor:
        """Take the elementwise maximum of x over all processes, in place; returns x."""
        return self._reduced(x, dist.ReduceOp.MAX)

    def largest_of(self, numbers: list[int]) -> list[int]:
        """Return the elementwise maximum of a list of integers over all processes."""
        return [int(n) for n in self._reduced(torch.tensor(numbers, device=self.device), dist.ReduceOp.MAX)]

    def _reduced(self, x: Tensor, operation: Any) -> Tensor:
        there = x.to(self.device).contiguous()
        with self._together("an all-reduce"):
            dist.all_reduce(there, operation, group=self.process_group)
        return x if there is x else x.copy_(there)

    def numbers(self, mine: int) -> list[int]:
        """Return the integers of all processes, in the order of the processes."""
        return [int(n) for n in self.gather(torch.tensor([mine], device=self.device))]

    def gather(self, x: Tensor) -> Tensor:
        """Concatenate the tensors of all processes, of equal shapes (n, …), to (R n, …)."""
        there = x.to(self.device).contiguous()
        out = there.new_empty(self.size * there.shape[0], *there.shape[1:])
        with self._together("an all-gather"):
            _gather_into(out, there, group=self.process_group)
        return out.to(x.device)

    def texts(self, mine: str) -> list[str]:
        """Return the texts of all processes, in the order of the processes."""
        found: list[str] = [""] * self.size
        with self._together("an all-gather"):
            dist.all_gather_object(found, mine, group=self.process_group)
        return found

    def scatter_sums(self, x: Tensor) -> Tensor:
        """Sum x (R, …) over all processes; returns entry r of the sum in process r."""
        there = x.to(self.device).contiguous()
        out = there.new_empty(there[0].numel())
        with self._together("a reduce-scatter"):
            _reduce_scatter(out, there.view(-1), group=self.process_group)
        return out.view(there[0].shape).to(x.device)

    def exchange(self, parts: list[Tensor], sizes: list[int]) -> list[Tensor]:
        """Send parts[r] to process r; returns the flat tensors received from all processes, of lengths `sizes`."""
        flat = torch.cat([part.reshape(-1) for part in parts]).to(self.device)
        out = flat.new_empty(sum(sizes))
        with self._together("an all-to-all"):
            dist.all_to_all_single(out, flat, sizes, [part.numel() for part in parts], group=self.process_group)
        return list(out.to(parts[0].device).split(sizes))

    def broadcast(self, tree: Any, source: int) -> Any:
        """Return the tree of process `source`: tensors and picklable objects in tuples, lists and mappings."""
        root = dist.get_global_rank(self.process_group, source)
        form = [map_tensors(lambda t: _Form(t.shape, t.dtype), tree) if self.rank == source else None]
        sent: Iterator[Tensor] = iter(_tensors(tree))
        with self._together("a broadcast"):
            dist.broadcast_object_list(form, src=root, group=self.process_group, device=self.device)

            def receive(leaf: _Form) -> Tensor:
                t = torch.empty(leaf.shape, dtype=leaf.dtype, device=self.device)
                t = next(sent).detach().to(self.device).contiguous() if self.rank == source else t
                dist.broadcast(t, src=root, group=self.process_group)
                return t

            return _filled(form[0], receive)

    def same_buffers(self, model: nn.Module) -> None:
        """Copy the model's buffers (BatchNorm statistics) from process 0 to all, as DDP does before a forward pass."""
        for dtype in dict.fromkeys(t.dtype for t in model.buffers()):
            buffers = [local(t) for t in model.buffers() if t.dtype == dtype]
            flat = torch.cat([t.detach().reshape(-1) for t in buffers]).to(self.device)
            with self._together("a broadcast"):
                dist.broadcast(flat, src=dist.get_global_rank(self.process_group, 0), group=self.process_group)
            for t, part in zip(buffers, flat.split([t.numel() for t in buffers]), strict=True):
                t.detach().copy_(part.view(t.shape))

    @contextmanager
    def _together(self, what: str) -> Iterator[None]:
        """Raise ProtectionError, with what to do, in place of the RuntimeError of a failed collective."""
        try:
            yield
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
            raise ProtectionError(
                f"process {self.rank} of {self.size}: {what} was not completed ({reason}). Another process died, "
                "raised an error or is further behind than the timeout of the process group. Start the run again from "
                "the last saved memory; torchrun --max-restarts does it by itself"
            ) from error


def _meeting_place(process_group: dist.ProcessGroup, device: torch.device) -> torch.device:
    """Return the device on which the backend needs tensors: a GPU for NCCL, the CPU for gloo."""
    backends = str(dist.get_backend_config(process_group))
    if device.type == "cuda" and "cuda:nccl" in backends:
        return device
    if "cpu:gloo" in backends:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device()) if "cuda:nccl" in backends else device


@dataclass(frozen=True)
class _Form:
    """A placeholder for a tensor in a tree that is sent."""

    shape: torch.Size
    dtype: torch.dtype


def _tensors(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(found.append, tree)
    return found


def _filled(tree: Any, make: Callable[[_Form], Tensor]) -> Any:
    if isinstance(tree, _Form):
        return make(tree)
    if isinstance(tree, Mapping):
        return {key: _filled(value, make) for key, value in tree.items()}
    return tuple(_filled(value, make) for value in tree) if isinstance(tree, (tuple, list)) else tree
