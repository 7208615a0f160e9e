"""How the columns of a gradient sketch are distributed over R processes.

* `FlatShard`, for models that are whole in every process (DDP): process r holds columns r·c to (r + 1)·c, c = ⌈p / R⌉,
  so that R processes together hold a sketch R times larger than one could. A projection needs one all-reduce of k
  numbers and, since every process needs the whole update, one all-gather of p.
* `ParameterShards`, for DTensor models (FSDP2): process r holds the columns of its parameter shards. A projection needs
  one all-reduce of k numbers; nothing is gathered. With a mesh of two dimensions (HSDP) every replica is split alike.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from ..model.parameters import ProtectedParameters
from ..sketch.columns import Columns
from .group import Group


class FlatShard(Columns):
    """Every process has whole vectors and one contiguous range of the columns of the sketch."""

    def __init__(self, d: int, group: Group) -> None:
        self.group = group
        self.chunk = -(-d // group.size)
        super().__init__(d, (self.of_process(d, group.rank),), widest=self.chunk)

    def of_process(self, d: int, r: int) -> range:
        """Return the columns of process r; the last processes may have fewer, or none."""
        return range(min(r * self.chunk, d), min((r + 1) * self.chunk, d))

    def total(self, x: Tensor) -> Tensor:
        """See `Columns`: one all-reduce."""
        return self.group.total(x)

    def largest(self, x: float) -> float:
        """See `Columns`: one all-reduce of a number."""
        return self.group.largest(x)

    def of(self, v: Tensor) -> Tensor:
        """See `Columns`: a slice of v, which is whole."""
        return v[self.ranges[0].start : self.ranges[0].stop]

    def complete_(self, v: Tensor) -> Tensor:
        """See `Columns`: one all-gather of v."""
        mine = v.new_zeros(self.chunk)
        mine[: self.width] = self.of(v)
        return v.copy_(self.group.gather(mine)[: self.d])

    def vector_total(self, x: Tensor) -> Tensor:
        """Return x: every process has computed it from all of v."""
        return x


class ParameterShards(Columns):
    """Every process has the entries of vectors and sketch that belong to its shards of the parameters.

    Raises ValueError for placements other than FSDP2's: rows distributed over one mesh dimension as by torch.chunk, and
    replicas of these over another one before it.

    Args:
        parameters: the parameters.
        group: the processes that hold parts of one replica.
        everyone: these and those of other replicas.
    """

    def __init__(self, parameters: ProtectedParameters, group: Group, everyone: Group) -> None:
        self.group = group
        self.everyone = everyone
        self.parts = group.size
        _require_fully_sharded(parameters)
        starts = [sum(shape.numel() for shape in parameters.shapes[:i]) for i in range(len(parameters))]
        pieces = zip(parameters.names, parameters.tensors, starts, strict=True)
        ranges = tuple(_piece(name, t, start, group) for name, t, start in pieces)
        super().__init__(parameters.p, ranges, widest=int(group.largest(sum(map(len, ranges)))))

    def total(self, x: Tensor) -> Tensor:
        """See `Columns`: one all-reduce."""
        return self.group.total(x)

    def largest(self, x: float) -> float:
        """See `Columns`: one all-reduce of a number, over all replicas."""
        return self.everyone.largest(x)

    def of(self, v: Tensor) -> Tensor:
        """Return v: it has this process's entries only."""
        return v

    def complete_(self, v: Tensor) -> Tensor:
        """Return v: no process needs the entries of others."""
        return v

    def vector_total(self, x: Tensor) -> Tensor:
        """See `Columns`: one all-reduce."""
        return self.group.total(x)

    def largest_of(self, x: Tensor) -> Tensor:
        """See `Columns`: one all-reduce."""
        return self.group.maximum(x)


def _require_fully_sharded(parameters: ProtectedParameters) -> None:
    """Raise ValueError for parameters that are split otherwise than by fully_shard, as by tensor parallelism."""
    from torch.distributed.fsdp import FSDPModule

    sharded = {
        id(p) for module in parameters.model.modules() if isinstance(module, FSDPModule) for p in module.parameters()
    }
    for name, t in zip(parameters.names, parameters.tensors, strict=True):
        if isinstance(t, DTensor) and id(t) not in sharded:
            raise ValueError(
                f"parameter {name!r} is split by tensor parallelism (it is a DTensor that no fully_shard made), which "
                "cuts what layers compute with as well: their inputs and sensitivities are not whole in any process. "
                "Use fully_shard(model) in its place, or choose other parameters with parameters="
            )


def _piece(name: str, t: Tensor, start: int, group: Group) -> range:
    """Return the columns in this process of a parameter whose entries begin at column `start`."""
    if not isinstance(t, DTensor):
        raise ValueError(
            f"parameter {name!r} is whole in every process while others are split; shard the whole model, "
            "fully_shard(model) after its parts, or choose the split ones with parameters="
        )
    if t.placements not in ((Shard(0),), (Replicate(), Shard(0))):
        raise ValueError(
            f"parameter {name!r} is placed {t.placements} on a mesh of {t.device_mesh.ndim} dimensions; protected "
            "parameters must be split along their first dimension over one mesh dimension, as fully_shard does, and "
            "may be replicated over one before it (HSDP). Tensor parallelism beside it is not possible"
        )
    rows = t.shape[0] if t.ndim else 1
    each = -(-rows // group.size)
    row = t.numel() // rows if rows else 0
    first, last = (min(r * each, rows) for r in (group.rank, group.rank + 1))
    piece = range(start + first * row, start + last * row)
    if len(piece) != t.to_local().numel():
        raise ValueError(f"parameter {name!r} has {t.to_local().numel()} numbers here; {len(piece)} were expected")
    return piece


def gathered(columns: Columns, rows: Tensor, group: Group) -> Tensor | None:
    """Gather all d columns of rows (m, width), row by row; returns (m, d) on the CPU in process 0, None elsewhere."""
    places = [torch.tensor([[part.start, part.stop] for part in columns.ranges], device=group.device).reshape(-1, 2)]
    places = list(group.gather(places[0][None]))
    out = torch.empty(len(rows), columns.d, dtype=rows.dtype) if group.rank == 0 else None
    for i, row in enumerate(rows):
        mine = row.new_zeros(columns.widest)
        mine[: columns.width] = row
        whole = group.gather(mine[None])
        if out is None:
            continue
        for held, ranges in zip(whole.cpu(), places, strict=True):
            sizes = [stop - start for start, stop in ranges.tolist()]
            for (start, stop), part in zip(ranges.tolist(), held[: sum(sizes)].split(sizes), strict=True):
                out[i, start:stop] = part
    return out


def gathered_rows(t: Tensor, rows: int, group: Group) -> Tensor | None:
    """Gather a tensor (rows, …) split as by `fully_shard`; returns it on the CPU in process 0, None elsewhere."""
    each = -(-rows // group.size)
    mine = t.new_zeros(each, *t.shape[1:])
    mine[: len(t)] = t
    whole = group.gather(mine)[:rows]
    return whole.cpu() if group.rank == 0 else None


def cut(columns: Columns, rows: Tensor) -> Tensor:
    """Return the columns of whole rows (m, d) that this process holds, (m, width)."""
    return torch.cat([rows[:, part.start : part.stop] for part in columns.ranges], dim=1)


def mesh_of(tensors: Sequence[Tensor]) -> Any:
    """Return the device mesh of the first DTensor among the tensors, or None."""
    return next((t.device_mesh for t in tensors if isinstance(t, DTensor)), None)
