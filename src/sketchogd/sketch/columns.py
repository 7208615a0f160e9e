"""Which of the d columns of a sketch this process holds: all of them, unless the sketch is split over processes.

All that a sketch needs of columns that it does not hold are sums over the columns: Gram matrices, products with a test
matrix, norms. So a split sketch is an ordinary sketch of fewer columns whose sums go through `total`; the splits are in
`distributed`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import accumulate

from torch import Tensor


class Columns(ABC):
    """The columns of a (…, d) matrix that this process holds, as ranges of 0..d in the order they are held.

    `width` is their number here, `widest` that of the process that has most.

    >>> list(Whole(10).blocks(6))
    [(slice(0, 6, None), slice(0, 6, None)), (slice(6, 10, None), slice(6, 10, None))]
    """

    def __init__(self, d: int, ranges: tuple[range, ...], widest: int | None = None) -> None:
        self.d = d
        self.ranges = ranges
        self.width = sum(len(part) for part in ranges)
        self.widest = self.width if widest is None else widest

    def blocks(self, most: int) -> Iterator[tuple[slice, slice]]:
        """(where held, which of the d) for pieces that lie between multiples of `most`."""
        starts = accumulate((len(part) for part in self.ranges), initial=0)
        for held, part in zip(starts, self.ranges, strict=False):
            start = part.start
            while start < part.stop:
                stop = min(start - start % most + most, part.stop)
                yield slice(held + start - part.start, held + stop - part.start), slice(start, stop)
                start = stop

    @abstractmethod
    def total(self, x: Tensor) -> Tensor:
        """The sum of x over all that hold columns, in the place of x."""

    @abstractmethod
    def largest(self, x: float) -> float:
        """The largest x of all that hold columns."""

    @abstractmethod
    def of(self, v: Tensor) -> Tensor:
        """A view of the entries of a vector v that belong to these columns; v is as the parameters are held."""

    @abstractmethod
    def complete_(self, v: Tensor) -> Tensor:
        """Fill in the entries of v that others hold, after each has written its own; v itself."""

    @abstractmethod
    def vector_total(self, x: Tensor) -> Tensor:
        """The sum over all parts of v of a number that was computed from this process's v; in the place of x."""


class Whole(Columns):
    """All columns are here: every sum is complete as it is."""

    def __init__(self, d: int) -> None:
        super().__init__(d, (range(d),))

    def total(self, x: Tensor) -> Tensor:
        """x."""
        return x

    def largest(self, x: float) -> float:
        """x."""
        return x

    def of(self, v: Tensor) -> Tensor:
        """v."""
        return v

    def complete_(self, v: Tensor) -> Tensor:
        """v."""
        return v

    def vector_total(self, x: Tensor) -> Tensor:
        """x."""
        return x


UNSPLIT: Columns = Whole(0)
"""For vectors and bases that are all here, whatever their length."""
