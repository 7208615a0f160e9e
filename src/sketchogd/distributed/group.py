"""The processes that protect one model together: a torch process group, and the few collectives that are used.

Letters: R processes, numbered 0..R-1 within the group. Nothing here is home-made: every method is one or two calls of
torch.distributed, with an error that says what to do when another process is gone.
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

# The names of these two changed in torch 2.13, which warns about the old ones.
_gather_into: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Group:
    """A process group, with tensors moved to where its backend can take them (NCCL: the GPU).

    Every method is called by all processes of the group together. Raises ProtectionError when one of them is gone:
    at once where the backend notices (gloo, a process that died), otherwise after the timeout of the process group,
    which `torch.distributed.init_process_group(timeout=...)` sets.
    """

    def __init__(self, process_group: dist.ProcessGroup, device: torch.device) -> None:
        self.process_group = process_group
        self.rank = dist.get_rank(process_group)
        self.size = dist.get_world_size(process_group)
        self.device = _meeting_place(process_group, device)

    def __repr__(self) -> str:
        return f"<Group: process {self.rank} of {self.size}, {dist.get_backend(self.process_group)}>"

    def total(self, x: Tensor) -> Tensor:
        """The sum over all processes, in the place of x."""
        return self._reduced(x, dist.ReduceOp.SUM)

    def largest(self, x: float) -> float:
        """The largest of one number a process; NaN counts as infinite."""
        number = torch.tensor(math.inf if math.isnan(x) else x, dtype=torch.float64, device=self.device)
        return float(self._reduced(number, dist.ReduceOp.MAX))

    def largest_of(self, numbers: list[int]) -> list[int]:
        """The largest of each of several integers."""
        return [int(n) for n in self._reduced(torch.tensor(numbers, device=self.device), dist.ReduceOp.MAX)]

    def _reduced(self, x: Tensor, operation: Any) -> Tensor:
        there = x.to(self.device).contiguous()
        with self._together("an all-reduce"):
            dist.all_reduce(there, operation, group=self.process_group)
        return x if there is x else x.copy_(there)

    def numbers(self, mine: int) -> list[int]:
        """One integer of every process, in their order."""
        return [int(n) for n in self.gather(torch.tensor([mine], device=self.device))]

    def gather(self, x: Tensor) -> Tensor:
        """The tensors of all processes, of equal shapes (n, …), one below the other (R n, …)."""
        there = x.to(self.device).contiguous()
        out = there.new_empty(self.size * there.shape[0], *there.shape[1:])
        with self._together("an all-gather"):
            _gather_into(out, there, group=self.process_group)
        return out.to(x.device)

    def scatter_sums(self, x: Tensor) -> Tensor:
        """The sum over all processes of x[r], x (R, …), to process r."""
        there = x.to(self.device).contiguous()
        out = there.new_empty(there[0].numel())
        with self._together("a reduce-scatter"):
            _reduce_scatter(out, there.view(-1), group=self.process_group)
        return out.view(there[0].shape).to(x.device)

    def exchange(self, parts: list[Tensor], sizes: list[int]) -> list[Tensor]:
        """Send parts[r] to process r, and receive from each one a flat part, of `sizes[r]` numbers."""
        flat = torch.cat([part.reshape(-1) for part in parts]).to(self.device)
        out = flat.new_empty(sum(sizes))
        with self._together("an all-to-all"):
            dist.all_to_all_single(out, flat, sizes, [part.numel() for part in parts], group=self.process_group)
        return list(out.to(parts[0].device).split(sizes))

    def broadcast(self, tree: Any, source: int) -> Any:
        """What process `source` has: tensors in tuples, lists and mappings, with anything that can be pickled."""
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
        """Give every process the buffers (BatchNorm's statistics) of process 0, as DDP does before a forward pass."""
        for dtype in dict.fromkeys(t.dtype for t in model.buffers()):
            buffers = [local(t) for t in model.buffers() if t.dtype == dtype]
            flat = torch.cat([t.detach().reshape(-1) for t in buffers]).to(self.device)
            with self._together("a broadcast"):
                dist.broadcast(flat, src=dist.get_global_rank(self.process_group, 0), group=self.process_group)
            for t, part in zip(buffers, flat.split([t.numel() for t in buffers]), strict=True):
                t.detach().copy_(part.view(t.shape))

    @contextmanager
    def _together(self, what: str) -> Iterator[None]:
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
    """Where tensors must be for the backend: on the GPU for NCCL, in main memory for gloo."""
    backends = str(dist.get_backend_config(process_group))
    if device.type == "cuda" and "cuda:nccl" in backends:
        return device
    if "cpu:gloo" in backends:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device()) if "cuda:nccl" in backends else device


@dataclass(frozen=True)
class _Form:
    """Stands for a tensor in a structure that is sent."""

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
