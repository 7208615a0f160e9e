"""Which examples belong to a process: partitioning without padding, and ignoring the padding of a sampler."""

from typing import Any

from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data.distributed import DistributedSampler

from .group import Group


def deal(dataset: Dataset[Any], group: Group | None = None) -> Subset[Any]:
    """Partition a data set over R processes; returns examples r, r + R, r + 2R, … in process r.

    Every process passes the same data set. Every example goes to exactly one process, so that the last ones may get one
    example fewer. `group` defaults to all processes.
    """
    import torch.distributed as dist

    rank, size = (dist.get_rank(), dist.get_world_size()) if group is None else (group.rank, group.size)
    return Subset(dataset, range(rank, len(dataset), size))  # type: ignore[arg-type]


def own_examples(batches: Any) -> int | None:
    """Return how many examples a loader yields in this process before its padding; None if it does not pad.

    A DistributedSampler pads its last round with examples from the beginning, so that all processes get equally many.
    These copies come last: process r of R has ⌈(n − r) / R⌉ of n examples, and any further one is a copy. Padding by
    other samplers cannot be detected; all their examples count.
    """
    if not isinstance(batches, DataLoader):
        return None
    sampler: Any = batches.sampler
    if not isinstance(sampler, DistributedSampler):
        sampler = getattr(batches.batch_sampler, "sampler", None)
    if not isinstance(sampler, DistributedSampler) or sampler.drop_last:
        return None
    n = len(sampler.dataset)  # type: ignore[arg-type]
    return len(range(sampler.rank, n, sampler.num_replicas))
