"""The weights that a displacement is counted from: a copy of each parameter, in full or rounded to one byte per number.

Rounded, a row w of a tensor is kept as c q with c = max |w| / 127 and whole numbers q from −127 to 127, so that no
number is off by more than c / 2. A network hardly notices such a rounding, and a rounded anchor is never written into
the weights: they are pulled towards it, most where remembered outputs depend on them most.

Where nothing is pulled outside of some directions, only coordinates in these are kept (`projector.span`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..model.parameters import ProtectedParameters, local
from ..projector.base import Anchor
from ..projector.span import Span

_LEVELS = 127

FULL = Anchor()
"""In the dtype of the weights."""

ROUNDED = Anchor("int8")
"""In one byte per number."""


@dataclass(frozen=True)
class Copy:
    """The numbers of a parameter or, with `scales` (float32, one per row), the whole numbers q.

    Args:
        numbers: of the parameter, of its shape, or with a span its coordinates (m, r).
        scales: c.
        span: the directions of the coordinates.
        shape: of the parameter.
    """

    numbers: Tensor
    scales: Tensor | None = None
    span: Span | None = None
    shape: torch.Size = field(default_factory=torch.Size)

    @staticmethod
    def of(t: Tensor, anchor: Anchor = FULL, span: Span | None = None) -> "Copy":
        """A copy of t in memory of its own."""
        copy = Copy.like(t, anchor, span)
        copy.take_(t)
        return copy

    @staticmethod
    def like(t: Tensor, anchor: Anchor = FULL, span: Span | None = None) -> "Copy":
        """Room for a copy of t; its numbers are not set."""
        numbers = t if span is None else t.new_empty(len(span.matrix(t)), len(span.basis))
        if anchor.dtype is None or (anchor.in_span and span is None):
            return Copy(torch.empty_like(numbers), None, span, t.shape)
        if anchor.in_span:
            return Copy(torch.empty_like(numbers, dtype=torch.float16), None, span, t.shape)
        shape = [_rows(numbers), *[1] * (numbers.ndim - 1)] if numbers.ndim else []
        rounded = torch.empty_like(numbers, dtype=torch.int8)
        return Copy(rounded, torch.empty(shape, device=t.device), span, t.shape)

    def take_(self, t: Tensor) -> None:
        """Overwrite the copy by a copy of t."""
        if self.span is not None:
            t = self.span.coordinates(t)
        if self.scales is None:
            self.numbers.copy_(t)
            return
        largest = t.abs().amax(tuple(range(1, t.ndim)), keepdim=True) if t.numel() else torch.zeros(())
        self.scales.copy_(largest / _LEVELS).clamp_min_(torch.finfo(torch.float32).tiny)
        self.numbers.copy_((t / self.scales).round_().clamp_(-_LEVELS, _LEVELS))

    def subtract_from_(self, t: Tensor) -> None:
        """Overwrite t by t − copy, or by its part within the span."""
        if self.span is None:
            t -= self._kept()
        else:
            t.copy_(self.span.within(self.span.coordinates(t) - self._kept(), t.shape))

    def tensor(self) -> Tensor:
        """What was copied, up to rounding; with a span its part within."""
        return self._kept() if self.span is None else self.span.within(self._kept(), self.shape)

    def _kept(self) -> Tensor:
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
        now = local(parameter.detach()) if weights is None else weights[i]
        out = v[place].view(now.shape)
        out.copy_(now)
        before.subtract_from_(out)
    return v


def copies_nbytes(tensors: Sequence[Tensor], anchor: Anchor = FULL, spans: Sequence[Span | None] | None = None) -> int:
    """The bytes of copies of these tensors, by coordinates where there is a span."""
    return sum(_copy_nbytes(t, anchor, span) for t, span in zip(tensors, spans or [None] * len(tensors), strict=True))


def _copy_nbytes(t: Tensor, anchor: Anchor, span: Span | None) -> int:
    rows, numbers = _rows(t), t.numel()
    if span is not None:
        rows = len(span.matrix(t))
        numbers = rows * len(span.basis)
    if anchor == ROUNDED:
        return numbers + 4 * rows
    return numbers * (2 if anchor.in_span and span is not None else t.element_size())


def _rows(t: Tensor) -> int:
    """The number of scales that t has; a vector is one row."""
    return t.shape[0] if t.ndim > 1 else 1
