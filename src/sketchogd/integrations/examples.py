"""Batches of examples to remember: some of a data set, chosen at random, and with several processes a part each."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Subset

from ..seeds import derive_seed


def processes() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def batches_of(
    source: Any, examples: int | None, batch_size: int, collate: Callable[[Any], Any] | None
) -> tuple[Iterable[Any], int | None]:
    """Batches of examples, and how many examples to take of them: the arguments of `Protection.remember`.

    Args:
        source: a data set with `__len__` and `__getitem__`, of which examples are chosen by a seed; or a stream
            (IterableDataset) or a DataLoader, whose first examples are taken.
        examples: how many, None for all; with several processes, of all of them together.
        batch_size: examples per batch.
        collate: makes a batch of a list of examples; None for torch's way.
    """
    each = None if examples is None else -(-examples // processes())
    if isinstance(source, DataLoader):
        return source, each
    if isinstance(source, IterableDataset):
        return DataLoader(source, batch_size, collate_fn=collate), each
    if examples is not None and examples < len(source):
        generator = torch.Generator().manual_seed(derive_seed(0, "examples", len(source)))
        source = Subset(source, torch.randperm(len(source), generator=generator)[:examples].tolist())
    sampler: Any = DistributedSampler(source, shuffle=False) if processes() > 1 else None
    return DataLoader(source, batch_size, sampler=sampler, collate_fn=collate), None


def collating_like(collate: Callable[[Any], Any] | None, example: Any) -> Callable[[Any], Any] | None:
    """The same for examples that have more columns than this one, such as the text that its tokens were made of."""
    if collate is None or not isinstance(example, Mapping):
        return collate
    return lambda features: collate([{key: f[key] for key in f if key in example} for f in features])
