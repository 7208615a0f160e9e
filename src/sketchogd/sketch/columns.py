"""Which of the d columns of a sketch this process holds: all of them, unless the sketch is sharded over processes.

Of the columns held elsewhere a sketch only needs sums over columns: Gram matrices, products with a test matrix, norms.
A sharded sketch is therefore an ordinary sketch with fewer columns that passes these sums through `Columns.total`. The
sharded implementations are in `distributed.shards`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import accumulate

from torch import Tensor


class Columns(ABC):
    """The columns of a (…, d) matrix that this process holds, as ranges of 0..d in storage order.

    `width` is the number of columns held here, `widest` the largest such number over all processes.

    >>> list(Whole(10).blocks(6))
    [(slice(0, 6, None), slice(0, 6, None)), (slice(6, 10, None), slice(6, 10, None))]
    """

    def __init__(self, d: int, ranges: tuple[range, ...], widest: int | None = None) -> None:
        self.d = d
        self.ranges = ranges
        self.width = sum(len(part) for part in ranges)
        self.widest = self.width if widest is None else widest

    def blocks(self, most: int) -> Iterator[tuple[slice, slice]]:
        """Yield (slice of the columns held, slice of 0..d) for blocks that do not cross multiples of `most`."""
        starts = accumulate((len(part) for part in self.ranges), initial=0)
        for held, part in zip(starts, self.ranges, strict=False):
            start = part.start
            while start < part.stop:
                stop = min(start - start % most + most, part.stop)
                yield slice(held + start - part.start, held + stop - part.start), slice(start, stop)
                start = stop

    parts: int = 1
    """Over how many processes a vector is split."""

    @abstractmethod
    def total(self, x: Tensor) -> Tensor:
        """Sum x over all processes that hold columns, in place; returns x."""

    @abstractmethod
    def largest(self, x: float) -> float:
        """Return the maximum of x over all processes that hold columns."""

    @abstractmethod
    def of(self, v: Tensor) -> Tensor:
        """Return a view of the entries of a vector v that belong to these columns.

        v has an entry for every parameter entry in this process: all d, or those of its parameter shards.
        """

    @abstractmethod
    def complete_(self, v: Tensor) -> Tensor:
        """Fill in the entries of v that other processes hold, once each has written its own; returns v."""

    def norm(self, here: Tensor) -> Tensor:
        """Complete the norm of a vector, given that of the entries of v in this process."""
        return self.vector_total(here.double().square()).sqrt()

    def largest_of(self, x: Tensor) -> Tensor:
        """Return the elementwise maximum of x over all processes that hold entries of v, in place."""
        return x

    @abstractmethod
    def vector_total(self, x: Tensor) -> Tensor:
        """Complete a sum x over the entries of v, in place; returns x.

        x was computed from the v of this process; if that has only some of the d entries, x is summed over processes.
        """


class Scattered(Columns):
    """All columns are in this process; of vectors only some entries are, with zeros in place of the others.

    Args:
        others: where the other entries are.
    """

    def __init__(self, others: Columns) -> None:
        super().__init__(0, (range(0),))
        self.others = others

    def total(self, x: Tensor) -> Tensor:
        """See `Columns`: a sum over columns is one over entries, some of which were zero here."""
        return self.others.vector_total(x)

    def largest(self, x: float) -> float:
        """See `Columns`."""
        return self.others.largest(x)

    def of(self, v: Tensor) -> Tensor:
        """Return v unchanged."""
        return v

    def complete_(self, v: Tensor) -> Tensor:
        """Return v unchanged: each process has computed all entries."""
        return v

    def vector_total(self, x: Tensor) -> Tensor:
        """See `Columns`."""
        return self.others.vector_total(x)


class Whole(Columns):
    """All columns are in this process, so that every sum is already complete."""

    def __init__(self, d: int) -> None:
        super().__init__(d, (range(d),))

    def total(self, x: Tensor) -> Tensor:
        """Return x unchanged."""
        return x

    def largest(self, x: float) -> float:
        """Return x unchanged."""
        return x

    def of(self, v: Tensor) -> Tensor:
        """Return v unchanged."""
        return v

    def complete_(self, v: Tensor) -> Tensor:
        """Return v unchanged."""
        return v

    def vector_total(self, x: Tensor) -> Tensor:
        """Return x unchanged."""
        return x

    def norm(self, here: Tensor) -> Tensor:
        """Return the norm unchanged."""
        return here


UNSPLIT: Columns = Whole(0)
"""The columns of vectors and bases of any length that are whole in this process."""
