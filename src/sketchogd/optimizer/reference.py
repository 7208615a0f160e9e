"""The weights that a displacement is counted from: a copy of each parameter, in full or rounded to one byte per number.

Rounded, a row w of a tensor is kept as c q with c = max |w| / 127 and whole numbers q from −127 to 127, so that no
number is off by more than c / 2. A network hardly notices such a rounding, and a rounded anchor is never written into
the weights: they are pulled towards it, most where remembered outputs depend on them most.

Where nothing is pulled outside of some directions, only coordinates in these are kept (`projector.span`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..linalg.stacks import alike, stacked, unstacked
from ..model.parameters import ProtectedParameters, local
from ..projector.base import Anchor
from ..projector.span import Span, coordinates, within

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
        take_all_([self], [t])

    def subtract_from_(self, t: Tensor) -> None:
        """Overwrite t by t − copy, or by its part within the span."""
        subtract_all_([self], [t])

    def tensor(self) -> Tensor:
        """What was copied, up to rounding; with a span its part within."""
        return tensors_of([self])[0]

    @property
    def _key(self) -> tuple[Any, ...]:
        """Equal for copies that can be stacked."""
        n, bias = (None, None) if self.span is None else (self.span.basis.shape[1], self.span.transposed)
        shape = self.shape if self.span is None else (self.numbers.shape[0],)
        return self.scales is None, self.numbers.dtype, self.numbers.device, shape, n, bias

    @property
    def _nbytes(self) -> int:
        return 4 * self.shape.numel()

    def parts(self) -> Iterator[tuple[str, Tensor]]:
        """Its tensors, each with a suffix for the name of the parameter."""
        yield "", self.numbers
        if self.scales is not None:
            yield ".scales", self.scales


def _groups(copies: Sequence[Copy]) -> Iterator[tuple[list[int], list[Copy]]]:
    """The copies in stacks, with their places."""
    for places in alike([copy._key for copy in copies], [copy._nbytes for copy in copies]):
        yield places, [copies[i] for i in places]


def _kept(copies: Sequence[Copy]) -> Tensor:
    """The numbers of alike copies as a stack (L, …)."""
    numbers = stacked([copy.numbers for copy in copies])
    scales = [copy.scales for copy in copies if copy.scales is not None]
    return numbers * stacked(scales) if scales else numbers


def _spans(copies: Sequence[Copy]) -> list[Span] | None:
    spans = [copy.span for copy in copies if copy.span is not None]
    return spans or None


def tensors_of(copies: Sequence[Copy]) -> list[Tensor]:
    """What was copied, for many copies at once; one without rounding is not copied again."""
    found: dict[int, Tensor] = {}
    for places, some in _groups(copies):
        spans = _spans(some)
        if spans is not None:
            found |= zip(places, within(spans, _kept(some), [copy.shape for copy in some]), strict=True)
        elif some[0].scales is None:
            found |= zip(places, [copy.numbers for copy in some], strict=True)
        else:
            found |= zip(places, _kept(some).unbind(), strict=True)
    return [found[i] for i in range(len(copies))]


def take_all_(copies: Sequence[Copy], tensors: Sequence[Tensor]) -> None:
    """Overwrite copies by copies of these tensors."""
    for places, some in _groups(copies):
        given, spans = [tensors[i] for i in places], _spans(some)
        if spans is not None:
            given = coordinates(spans, given)
        if some[0].scales is None:
            torch._foreach_copy_([copy.numbers for copy in some], given)
            continue
        X = stacked(given)
        scales = _scales(X)
        shapes = [copy.numbers.shape for copy in some]
        whole = (X / scales).round_().clamp_(-_LEVELS, _LEVELS).to(torch.int8)
        torch._foreach_copy_([copy.scales for copy in some], list(scales.unbind()))  # type: ignore[misc]
        torch._foreach_copy_([copy.numbers for copy in some], unstacked(whole, shapes))


def _scales(X: Tensor) -> Tensor:
    """c of a stack of tensors (L, …), one per row; float32."""
    if not X.numel():
        return torch.ones(*X.shape[:2], *[1] * (X.ndim - 2), device=X.device) if X.ndim > 2 else X.new_ones(len(X), 1)
    largest = X.abs()
    largest = largest.amax(tuple(range(2, X.ndim)), keepdim=True) if X.ndim > 2 else _of_vectors(largest)
    return (largest / _LEVELS).to(torch.float32).clamp_min_(torch.finfo(torch.float32).tiny)


def _of_vectors(largest: Tensor) -> Tensor:
    """A vector is one row."""
    return largest.amax(1, keepdim=True) if largest.ndim > 1 else largest


def subtract_all_(copies: Sequence[Copy], tensors: Sequence[Tensor]) -> None:
    """Overwrite tensors t by t − copy or, where a copy has a span, by its part within."""
    for places, some in _groups(copies):
        given, spans = [tensors[i] for i in places], _spans(some)
        if spans is None:
            kept = [copy.numbers for copy in some] if some[0].scales is None else list(_kept(some).unbind())
            torch._foreach_sub_(given, kept)
            continue
        X = stacked(coordinates(spans, given)) - _kept(some)
        torch._foreach_copy_(given, within(spans, X, [t.shape for t in given]))


def displacement(
    parameters: ProtectedParameters, reference: Sequence[Copy], weights: Sequence[Tensor] | None = None
) -> Tensor:
    """Return the weights, by default the model's, less their copies, as a vector (width,)."""
    now = [local(t.detach()) for t in parameters.tensors] if weights is None else list(weights)
    v = parameters.flatten(now)
    subtract_all_(reference, parameters.unflatten(v))
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
