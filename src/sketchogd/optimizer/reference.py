"""A copy of a parameter that displacements are counted from: in full, or rounded to one byte a number.

Rounded, a row w of a tensor is kept as c q, c = max |w| / 127 and q whole numbers from −127 to 127, so that no number
is off by more than c / 2. A network hardly notices such a rounding of its weights, and an anchor is never put into them
as it is: weights are pulled towards it, most where remembered outputs depend on them most.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_LEVELS = 127


@dataclass(frozen=True)
class Copy:
    """The numbers of a parameter, or, with `scales` (float32, one a row), the whole numbers q."""

    numbers: Tensor
    scales: Tensor | None = None

    @staticmethod
    def of(t: Tensor, rounded: bool = False) -> "Copy":
        """A copy of t with memory of its own."""
        copy = Copy.like(t, rounded)
        copy.take_(t)
        return copy

    @staticmethod
    def like(t: Tensor, rounded: bool = False) -> "Copy":
        """Room for a copy of t; its numbers are not set."""
        if not rounded:
            return Copy(torch.empty_like(t))
        shape = [_rows(t), *[1] * (t.ndim - 1)] if t.ndim else []
        return Copy(torch.empty_like(t, dtype=torch.int8), torch.empty(shape, device=t.device))

    def take_(self, t: Tensor) -> None:
        """Copy t in the place of what was copied."""
        if self.scales is None:
            self.numbers.copy_(t)
            return
        largest = t.abs().amax(tuple(range(1, t.ndim)), keepdim=True) if t.numel() else torch.zeros(())
        self.scales.copy_(largest / _LEVELS).clamp_min_(torch.finfo(torch.float32).tiny)
        self.numbers.copy_((t / self.scales).round_().clamp_(-_LEVELS, _LEVELS))

    def subtract_from_(self, t: Tensor) -> None:
        """t − copy in the place of t."""
        t -= self.numbers if self.scales is None else self.numbers * self.scales

    def parts(self) -> Iterator[tuple[str, Tensor]]:
        """Its tensors, with what is added to a parameter's name for each."""
        yield "", self.numbers
        if self.scales is not None:
            yield ".scales", self.scales


def copies_nbytes(tensors: Iterable[Tensor], rounded: bool = False) -> int:
    """The bytes of copies of these tensors."""
    return sum(t.numel() + 4 * _rows(t) if rounded else t.numel() * t.element_size() for t in tensors)


def _rows(t: Tensor) -> int:
    """How many scales t has: a vector is one row."""
    return t.shape[0] if t.ndim > 1 else 1
