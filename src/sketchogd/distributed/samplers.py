"""Which examples are a process's own: dealing them out without padding, and leaving out what a sampler padded."""

from typing import Any

from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data.distributed import DistributedSampler

from .group import Group


def deal(dataset: Dataset[Any], group: Group | None = None) -> Subset[Any]:
    """The examples rank, rank + R, rank + 2R, … of a data set that every process has: each example in one process.

    Without a group that of all processes. Nothing is repeated: the last processes may get one example fewer.
    """
    import torch.distributed as dist

    rank, size = (dist.get_rank(), dist.get_world_size()) if group is None else (group.rank, group.size)
    return Subset(dataset, range(rank, len(dataset), size))  # type: ignore[arg-type]


def own_examples(batches: Any) -> int | None:
    """How many examples of a loader are not padding, for this process; None where nothing is padded.

    A DistributedSampler fills up its last round with examples from the beginning, so that all processes get equally
    many. These copies come last: process r of R has ⌈(n − r) / R⌉ examples of n, and one more is a copy. Other loaders
    cannot be looked into; what they give is taken as it is.
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
