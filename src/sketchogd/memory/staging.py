"""Gradients of a batch that are to be added to sketches, computed and checked before any sketch changes."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from ..model.batches import batch_size
from ..model.gradients import GradientSignals

Commit = Callable[[], None]
"""Adds to a memory what was computed before."""


def staged_rows(
    signals: GradientSignals, inputs: Any, targets: Any, check: Callable[[Tensor], Any]
) -> Callable[[], Iterator[Tensor]]:
    """Return a function that yields the gradients of a batch in chunks.

    The gradients of a batch of one chunk are computed now. Those of a larger batch would not fit into memory together:
    they are known to be finite now, at the price of one backward pass, and computed when they are asked for.

    Args:
        signals: computes gradients.
        inputs: of the batch.
        targets: of the batch.
        check: raises NonFiniteError for rows that cannot be added.
    """
    if batch_size(inputs) > signals.chunk:
        signals.require_finite(inputs, targets)
        return lambda: signals.chunks(inputs, targets)
    rows = list(signals.chunks(inputs, targets))
    for chunk in rows:
        check(chunk)
    return lambda: iter(rows)
