"""The weights that a displacement is counted from: a copy of each parameter, in full or rounded to one byte per number.

Rounded, a row w of a tensor is kept as c q with c = max |w| / 127 and whole numbers q from −127 to 127, so that no
number is off by more than c / 2. A network hardly notices such a rounding, and a rounded anchor is never written into
the weights: they are pulled towards it, most where remembered outputs depend on them most.

Where nothing is pulled outside of some directions, only coordinates in these are kept (`projector.span`).
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import overload

import torch
from torch import Tensor

from ..linalg.stacks import alike, stacked, unstacked
from ..model.parameters import ProtectedParameters, local
from ..projector.base import Anchor
from ..projector.span import Span, Spans
from ..sketch.columns import UNSPLIT, Columns

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
        return Copies.of([t], anchor, [span])[0]

    @staticmethod
    def like(t: Tensor, anchor: Anchor = FULL, span: Span | None = None) -> "Copy":
        """Room for a copy of t; its numbers are not set."""
        # coordinates are in memory as (r, m), so that stacks of other r are made without a kernel for each
        numbers = t if span is None else t.new_empty(len(span.basis), len(span.matrix(t))).T
        if anchor.dtype is None or (anchor.in_span and span is None):
            return Copy(torch.empty_like(numbers), None, span, t.shape)
        if anchor.in_span:
            return Copy(torch.empty_like(numbers, dtype=torch.float16), None, span, t.shape)
        shape = [_rows(numbers), *[1] * (numbers.ndim - 1)] if numbers.ndim else []
        rounded = torch.empty_like(numbers, dtype=torch.int8)
        return Copy(rounded, torch.empty(shape, device=t.device), span, t.shape)

    def take_(self, t: Tensor) -> None:
        """Overwrite the copy by a copy of t."""
        Copies([self]).take_([t])

    def subtract_from_(self, t: Tensor) -> None:
        """Overwrite t by t − copy, or by its part within the span."""
        Copies([self]).subtract_from_([t])

    def tensor(self) -> Tensor:
        """What was copied, up to rounding; with a span its part within."""
        return Copies([self]).stacks[0].tensors()[0]

    def kind(self, shape: torch.Size) -> Hashable:
        """Equal for copies that may be in one stack, given the shape of the parameter, of which this may be a part."""
        kind = self.scales is None, self.numbers.dtype, self.numbers.device
        if self.span is not None:
            turned = self.span.transposed
            return *kind, shape[1:].numel() if turned else shape[0], self.span.basis.shape[1], turned
        return *kind, None if len(shape) == 1 else shape

    def parts(self) -> Iterator[tuple[str, Tensor]]:
        """Its tensors, each with a suffix for the name of the parameter."""
        yield "", self.numbers
        if self.scales is not None:
            yield ".scales", self.scales


@dataclass(eq=False)
class Stack:
    """Alike copies, which are computed with at once.

    Args:
        places: where they are among all copies.
        copies: these.
        columns: where tensors are parts of split ones, how these are split.
    """

    places: list[int]
    copies: list[Copy]
    columns: Columns = UNSPLIT

    @cached_property
    def spans(self) -> Spans | None:
        """Their directions, if they have some."""
        spans = [copy.span for copy in self.copies if copy.span is not None]
        return Spans(spans) if spans else None

    @property
    def full(self) -> bool:
        """Whether copies are kept as they are."""
        return self.spans is None and self.copies[0].scales is None

    def take_(self, given: Sequence[Tensor]) -> None:
        """Overwrite the copies."""
        numbers = [copy.numbers for copy in self.copies]
        if self.full:
            torch._foreach_copy_(numbers, list(given))
            return
        X = stacked(given) if self.spans is None else self.spans.coordinates(given)
        scales = [copy.scales for copy in self.copies if copy.scales is not None]
        if scales:
            found = _scales(X, self.columns)
            torch._foreach_copy_(scales, list(found.unbind()))
            X = (X / found).round_().clamp_(-_LEVELS, _LEVELS)
        if self.spans is not None:  # as they are in memory
            numbers, X = [each.T for each in numbers], X.mT
        torch._foreach_copy_(numbers, unstacked(X.to(numbers[0].dtype), [each.shape for each in numbers]))

    def tensors(self) -> list[Tensor]:
        """What was copied; where it is kept in full, the copies themselves."""
        if self.full:
            return [copy.numbers for copy in self.copies]
        shapes = [copy.shape for copy in self.copies]
        numbers = self._numbers()
        return unstacked(numbers, shapes) if self.spans is None else self.spans.within(numbers, shapes)

    def add_to_(self, given: Sequence[Tensor], factor: Tensor | None = None) -> None:
        """Overwrite tensors t by t + copy, or t + factor · copy."""
        t, first = given[0], self.copies[0]
        alone = len(given) == 1 and factor is None and t.device == first.numbers.device
        if alone and self.spans is not None and t.is_contiguous() and t.dtype == self.spans.spans[0].basis.dtype:
            self.spans.add_to_(t, self._numbers())
        elif alone and self.spans is None and first.scales is not None:
            t.addcmul_(first.numbers, first.scales)
        else:
            found = self.tensors()
            if factor is not None:
                found = torch._foreach_mul(found, factor.to(found[0]))  # type: ignore[assignment]
            torch._foreach_add_(list(given), [part.to(t.device) for part, t in zip(found, given, strict=True)])

    def subtract_from_(self, given: Sequence[Tensor]) -> None:
        """Overwrite tensors t by t − copy or, where there are spans, by its part within."""
        first = self.copies[0]
        if self.spans is not None:
            X = self.spans.coordinates(given) - self._numbers()
            torch._foreach_copy_(list(given), self.spans.within(X, [t.shape for t in given]))
        elif first.scales is not None and len(given) == 1:
            given[0].addcmul_(first.numbers, first.scales, value=-1)
        else:
            torch._foreach_sub_(list(given), self.tensors())

    def _numbers(self) -> Tensor:
        """The numbers (L, …) times their scales."""
        if self.spans is None:
            numbers = stacked([copy.numbers for copy in self.copies])
        else:
            numbers = stacked([copy.numbers.T for copy in self.copies]).mT
        scales = [copy.scales for copy in self.copies if copy.scales is not None]
        return numbers * stacked(scales) if scales else numbers


class Copies(Sequence[Copy]):
    """A copy of each of many tensors.

    Args:
        copies: these.
        parameters: what they are copies of, where that may be split; every process has copies of its parts.
    """

    def __init__(self, copies: Iterable[Copy], parameters: ProtectedParameters | None = None) -> None:
        self._copies = list(copies)
        self._parameters = parameters

    @staticmethod
    def of(
        tensors: Sequence[Tensor],
        anchor: Anchor,
        spans: Sequence[Span | None],
        parameters: ProtectedParameters | None = None,
    ) -> "Copies":
        """Copies of many tensors in memory of their own."""
        copies = Copies((Copy.like(t, anchor, span) for t, span in zip(tensors, spans, strict=True)), parameters)
        copies.take_(tensors)
        return copies

    @overload
    def __getitem__(self, i: int) -> Copy: ...
    @overload
    def __getitem__(self, i: slice) -> list[Copy]: ...
    def __getitem__(self, i: int | slice) -> Copy | list[Copy]:
        return self._copies[i]

    def __len__(self) -> int:
        return len(self._copies)

    @cached_property
    def stacks(self) -> list[Stack]:
        """Alike ones together."""
        if not self._copies:
            return []
        shapes, columns = [copy.shape for copy in self], UNSPLIT
        if self._parameters is not None and self._parameters.split:
            # By whole shapes stacks are the same in all processes, which find the scales of vectors together.
            shapes, columns = list(self._parameters.shapes), self._parameters.columns
        kinds = [copy.kind(shape) for copy, shape in zip(self, shapes, strict=True)]
        found = alike(kinds, [4 * shape.numel() for shape in shapes], self[0].numbers.device)
        return [Stack(places, [self[i] for i in places], columns) for places in found]

    def take_(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite the copies by copies of these tensors."""
        for stack in self.stacks:
            stack.take_([tensors[i] for i in stack.places])

    def tensors(self) -> list[Tensor]:
        """What was copied; where it is kept in full, the copies themselves."""
        found = {i: t for stack in self.stacks for i, t in zip(stack.places, stack.tensors(), strict=True)}
        return [found[i] for i in range(len(self))]

    def subtract_from_(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors t by t − copy or, where a copy has a span, by its part within."""
        for stack in self.stacks:
            stack.subtract_from_([tensors[i] for i in stack.places])


def _scales(X: Tensor, columns: Columns = UNSPLIT) -> Tensor:
    """c for every row of tensors (L, …), or for each of them if they have less than two dimensions; float32.

    A tensor of one dimension may be a part of one that is split: its scale is that of all of it.
    """
    rows = X.flatten(2) if X.ndim > 2 else X.reshape(len(X), 1, X.shape[1] if X.ndim > 1 else 1)
    largest = torch.linalg.vector_norm(rows, torch.inf, 2) if rows.numel() else rows.new_zeros(rows.shape[:2])
    if X.ndim < 3:
        largest = columns.largest_of(largest)
    scales = (largest / _LEVELS).to(torch.float32).clamp_min_(torch.finfo(torch.float32).tiny)
    return scales.view(*scales.shape, *[1] * (X.ndim - 2)) if X.ndim > 1 else scales[:, 0]


def displacement(parameters: ProtectedParameters, reference: Copies, weights: Sequence[Tensor] | None = None) -> Tensor:
    """Return the weights, by default the model's, less their copies, as a vector (width,)."""
    now = [local(t.detach()) for t in parameters.tensors] if weights is None else list(weights)
    v = parameters.flatten(now)
    reference.subtract_from_(parameters.unflatten(v))
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
