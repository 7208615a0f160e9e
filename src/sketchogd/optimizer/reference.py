"""The weights that a displacement is counted from: a copy of each parameter, in full or rounded to one byte per number.

Rounded, a row w of a tensor is kept as c q with c = max |w| / 127 and whole numbers q from −127 to 127, so that no
number is off by more than c / 2. A network hardly notices such a rounding, and a rounded anchor is never written into
the weights: they are pulled towards it, most where remembered outputs depend on them most.

Where nothing is pulled outside of some directions, only coordinates in these are kept (`projector.span`).
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..linalg.stacks import alike, stacked, unstacked
from ..model.parameters import ProtectedParameters, local
from ..projector.base import Anchor
from ..projector.span import Span, add_within_, coordinates, within

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
        subtract_all_([t], [self])

    def tensor(self) -> Tensor:
        """What was copied, up to rounding; with a span its part within."""
        return tensors_of([self])[0]

    @property
    def _key(self) -> Hashable:
        """Equal for copies that can be stacked."""
        kind = self.scales is None, self.numbers.dtype, self.numbers.device
        if self.span is None:
            return *kind, self.shape
        return *kind, len(self.numbers), self.span.basis.shape[1], self.span.transposed

    @property
    def _nbytes(self) -> int:
        return 4 * self.shape.numel()

    def parts(self) -> Iterator[tuple[str, Tensor]]:
        """Its tensors, each with a suffix for the name of the parameter."""
        yield "", self.numbers
        if self.scales is not None:
            yield ".scales", self.scales


def copies_of(tensors: Sequence[Tensor], anchor: Anchor, spans: Sequence[Span | None]) -> list[Copy]:
    """Copies of many tensors in memory of their own."""
    copies = [Copy.like(t, anchor, span) for t, span in zip(tensors, spans, strict=True)]
    take_all_(copies, tensors)
    return copies


def take_all_(copies: Sequence[Copy], tensors: Sequence[Tensor]) -> None:
    """Overwrite copies by copies of these tensors."""
    for places, some, spans in _stacks(copies):
        given = [tensors[i] for i in places]
        if spans:
            given = coordinates(spans, given)
        if some[0].scales is None:
            torch._foreach_copy_([copy.numbers for copy in some], given)
            continue
        X = stacked(given)
        scales = _scales(X)
        whole = (X / scales).round_().clamp_(-_LEVELS, _LEVELS)
        torch._foreach_copy_([copy.scales for copy in some], list(scales.unbind()))  # type: ignore[misc]
        torch._foreach_copy_([copy.numbers for copy in some], unstacked(whole, [copy.numbers.shape for copy in some]))


def tensors_of(copies: Sequence[Copy]) -> list[Tensor]:
    """What was copied; where it is kept in full, the copy itself."""
    found: dict[int, Tensor] = {}
    for places, some, spans in _stacks(copies):
        if spans:
            numbers = within(spans, _numbers(some), [copy.shape for copy in some])
        else:
            numbers = [some[0].numbers] if some[0].scales is None and len(some) == 1 else _whole(some)
        found |= zip(places, numbers, strict=True)
    return [found[i] for i in range(len(copies))]


def add_all_(tensors: Sequence[Tensor], copies: Sequence[Copy], factor: Tensor | None = None) -> None:
    """Overwrite tensors t by t + copy, or t + factor · copy."""
    for places, some, spans in _stacks(copies):
        given = [tensors[i] for i in places]
        t = given[0]
        alone = len(some) == 1 and factor is None and t.device == some[0].numbers.device
        if alone and spans and t.is_contiguous() and t.dtype == spans[0].basis.dtype:
            add_within_(spans[0], _numbers(some)[0], t)
        elif alone and not spans and some[0].scales is not None:
            t.addcmul_(some[0].numbers, some[0].scales)
        else:
            found = within(spans, _numbers(some), [copy.shape for copy in some]) if spans else _whole(some)
            if factor is not None:
                found = torch._foreach_mul(found, factor.to(found[0]))  # type: ignore[assignment]
            torch._foreach_add_(given, [part.to(each.device) for part, each in zip(found, given, strict=True)])


def subtract_all_(tensors: Sequence[Tensor], copies: Sequence[Copy]) -> None:
    """Overwrite tensors t by t − copy or, where a copy has a span, by its part within."""
    for places, some, spans in _stacks(copies):
        given = [tensors[i] for i in places]
        if spans:
            X = stacked(coordinates(spans, given)) - _numbers(some)
            torch._foreach_copy_(given, within(spans, X, [t.shape for t in given]))
        elif some[0].scales is not None and len(some) == 1:
            given[0].addcmul_(some[0].numbers, some[0].scales, value=-1)
        else:
            torch._foreach_sub_(given, _whole(some))


def _stacks(copies: Sequence[Copy]) -> Iterator[tuple[list[int], list[Copy], list[Span]]]:
    """Alike copies with their places, and with their spans if they have some."""
    if not copies:
        return
    keys, nbytes = [copy._key for copy in copies], [copy._nbytes for copy in copies]
    for places in alike(keys, nbytes, copies[0].numbers.device):
        some = [copies[i] for i in places]
        yield places, some, [copy.span for copy in some if copy.span is not None]


def _whole(copies: Sequence[Copy]) -> list[Tensor]:
    """What was copied, of alike copies without a span."""
    return [copy.numbers for copy in copies] if copies[0].scales is None else list(_numbers(copies).unbind())


def _numbers(copies: Sequence[Copy]) -> Tensor:
    """The numbers of alike copies (L, …) times their scales."""
    numbers = stacked([copy.numbers for copy in copies])
    scales = [copy.scales for copy in copies if copy.scales is not None]
    return numbers * stacked(scales) if scales else numbers


def _scales(X: Tensor) -> Tensor:
    """c for every row of tensors (L, …), or for each of them if they have less than two dimensions; float32."""
    rows = X.flatten(2) if X.ndim > 2 else X.reshape(len(X), 1, X.shape[1] if X.ndim > 1 else 1)
    largest = rows.abs().amax(2) if rows.shape[2] else rows.new_zeros(rows.shape[:2])
    scales = (largest / _LEVELS).to(torch.float32).clamp_min_(torch.finfo(torch.float32).tiny)
    return scales.view(*scales.shape, *[1] * (X.ndim - 2)) if X.ndim > 1 else scales[:, 0]


def displacement(
    parameters: ProtectedParameters, reference: Sequence[Copy], weights: Sequence[Tensor] | None = None
) -> Tensor:
    """Return the weights, by default the model's, less their copies, as a vector (width,)."""
    now = [local(t.detach()) for t in parameters.tensors] if weights is None else list(weights)
    v = parameters.flatten(now)
    subtract_all_(parameters.unflatten(v), reference)
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
