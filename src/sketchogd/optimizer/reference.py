"""The weights that a displacement is counted from: a copy of each parameter, in full or rounded to one byte per number.

Rounded, a row w of a tensor is kept as c q with c = max |w| / 127 and whole numbers q from −127 to 127, so that no
number is off by more than c / 2. A network hardly notices such a rounding, and a rounded anchor is never written into
the weights: they are pulled towards it, most where remembered outputs depend on them most.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..model.parameters import ProtectedParameters, local
from ..projector.base import Anchor

_LEVELS = 127

FULL = Anchor()
"""In the dtype of the weights."""


@dataclass(frozen=True)
class Copy:
    """The numbers of a parameter or, with `scales` (float32, one per row), the whole numbers q."""

    numbers: Tensor
    scales: Tensor | None = None

    @staticmethod
    def of(t: Tensor, anchor: Anchor = FULL) -> "Copy":
        """A copy of t in memory of its own."""
        copy = Copy.like(t, anchor)
        copy.take_(t)
        return copy

    @staticmethod
    def like(t: Tensor, anchor: Anchor = FULL) -> "Copy":
        """Room for a copy of t; its numbers are not set."""
        if anchor.dtype is None:
            return Copy(torch.empty_like(t))
        shape = [_rows(t), *[1] * (t.ndim - 1)] if t.ndim else []
        return Copy(torch.empty_like(t, dtype=torch.int8), torch.empty(shape, device=t.device))

    def take_(self, t: Tensor) -> None:
        """Overwrite the copy by a copy of t."""
        if self.scales is None:
            self.numbers.copy_(t)
            return
        largest = t.abs().amax(tuple(range(1, t.ndim)), keepdim=True) if t.numel() else torch.zeros(())
        self.scales.copy_(largest / _LEVELS).clamp_min_(torch.finfo(torch.float32).tiny)
        self.numbers.copy_((t / self.scales).round_().clamp_(-_LEVELS, _LEVELS))

    def subtract_from_(self, t: Tensor) -> None:
        """Overwrite t by t − copy."""
        t -= self.tensor()

    def tensor(self) -> Tensor:
        """What was copied, up to rounding."""
        return self.numbers if self.scales is None else self.numbers * self.scales

    def parts(self) -> Iterator[tuple[str, Tensor]]:
        """Its tensors, each with a suffix for the name of the parameter."""
        yield "", self.numbers
        if self.scales is not None:
            yield ".scales", self.scales


def displacement(
    parameters: ProtectedParameters, reference: Sequence[Copy], weights: Sequence[Tensor] | None = None
) -> Tensor:
    """Return the weights, by default the model's, less their copies, as a vector (width,)."""
    v = torch.empty(parameters.width, dtype=parameters.dtype, device=parameters.device)
    for i, ((parameter, place), before) in enumerate(zip(parameters.slices(), reference, strict=True)):
        out = v[place].view(before.numbers.shape)
        out.copy_(local(parameter.detach()) if weights is None else weights[i])
        before.subtract_from_(out)
    return v


def copies_nbytes(tensors: Iterable[Tensor], anchor: Anchor = FULL) -> int:
    """The bytes of copies of these tensors."""
    rounded = anchor.dtype is not None
    return sum(t.numel() + 4 * _rows(t) if rounded else t.numel() * t.element_size() for t in tensors)


def _rows(t: Tensor) -> int:
    """The number of scales that t has; a vector is one row."""
    return t.shape[0] if t.ndim > 1 else 1
