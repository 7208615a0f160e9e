"""Sketches that compress whenever their buffer is full: frequent directions and incremental PCA.

Both store rows S (k + buffer, d). When S is full, it is decomposed as S = U Σ V and replaced by the k leading rows of
f(Σ) V, which empties the buffer. Incremental PCA truncates: f(σ) = σ. Frequent directions (Liberty 2013) shrinks:
f(σ)² = σ² - σ²_{k+1}, which guarantees 0 <= M - SᵀS <= Tr(M - M_j) / (k - j + 1) I for every j <= k, where M = Σ v vᵀ
and M_j is its best approximation of rank j. Rows are not centred.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from .. import schema
from ..linalg.dense import orthonormalise_
from .base import largest_rank, positive
from .factored import FactoredSketch
from .stored import RANK

B = TypeVar("B", bound="BufferedSketch")


class BufferedSketch(FactoredSketch):
    """Base of both: rows with a buffer, compressed to `rank` rows when the buffer is full.

    `buffer` defaults to a quarter of the rank; a larger one means fewer compressions.
    """

    def __init__(self, rank: int, buffer: int | None = None) -> None:
        buffer = max(1, rank // 4) if buffer is None else buffer
        positive(rank=rank, buffer=buffer)
        self.rank = rank
        self.buffer = buffer

    stored_settings: ClassVar[schema.Fields | None] = {"rank": RANK, "buffer": RANK}
    counters: ClassVar[schema.Fields] = {"filled": schema.whole()}
    filled: int = 0

    @abstractmethod
    def _shrunk(self, squares: Tensor) -> Tensor:
        """Map the squared singular values, in decreasing order, to the new ones, at most `rank` of them."""

    def settings(self) -> dict[str, Any]:
        """See `Sketch`."""
        return {"rank": self.rank, "buffer": self.buffer}

    def cost(self, d: int, itemsize: int = 4) -> int:
        """Return the bytes of m (d + m) numbers, m = rank + buffer, and of the values."""
        m = self.rank + self.buffer
        return itemsize * m * (d + min(m, d)) + 8 * min(m, d)

    @classmethod
    def from_budget(cls: type[B], nbytes: int, d: int, **settings: Any) -> B:
        """See `Sketch`; a fifth of the rows is buffer."""
        rank = largest_rank(lambda k: cls(k).cost(d) <= nbytes, d)
        if rank == 0:
            raise ValueError(
                f"the smallest such sketch of rows of length {d} takes {cls(1).cost(d):,} bytes; "
                f"the budget is {nbytes:,}"
            )
        return cls(rank)

    def _sizes(self, d: int, counters: Mapping[str, Any]) -> tuple[int, int]:
        if counters["filled"] > self.rank + self.buffer:
            raise ValueError(f"the state uses {counters['filled']} of {self.rank + self.buffer} rows")
        return self.rank + self.buffer, counters["filled"]

    def _allocate(self) -> None:
        self.rows = torch.zeros(self.rank + self.buffer, self.columns.width, dtype=self.dtype, device=self.device)

    def _filled(self) -> Tensor:
        return self.rows[: self.filled]

    def _update(self, rows: Tensor, largest: float) -> None:
        self._open()
        while len(rows):
            if self.filled == len(self.rows):
                self._compress()
            room = len(self.rows) - self.filled
            head, rows = rows[:room], rows[room:]
            self.rows[self.filled : self.filled + len(head)] = head
            self.filled += len(head)

    def _compress(self) -> None:
        R = orthonormalise_(self._filled(), self.columns.total)
        squares = self._shrunk(R.square().sum(0))
        self.filled = int((squares > 0).sum())
        self.rows[: self.filled] *= squares[: self.filled, None].sqrt().to(self.dtype)
        self.rows[self.filled :] = 0

    def _factorise(self) -> tuple[Tensor, Tensor]:
        if self.filled > self.rank:
            self._compress()
        R = orthonormalise_(self._filled(), self.columns.total)
        return R, R.square().sum(0)

    def _check_mergeable(self, other: "BufferedSketch") -> None:
        if other.settings() != self.settings():
            raise ValueError(f"{other!r} cannot be merged into {self!r}: rank and buffer must be equal")

    def _absorb(self, other: "BufferedSketch") -> None:
        self._update(other._opened_rows().to(self.device), 0.0)

    def _counters(self) -> dict[str, Any]:
        return {"filled": self.filled}

    def _adopt_more(self, counters: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.filled = int(counters["filled"])


class IncrementalPCA(BufferedSketch):
    """Incremental PCA: a compression keeps the leading `rank` directions at full weight and drops the others.

    >>> sketch = IncrementalPCA(rank=1, buffer=2).bind(2)
    >>> sketch.observe(torch.tensor([[5.0, 0.0], [0.0, 1.0], [5.0, 0.0], [0.0, 1.0]]))
    >>> sketch.spectrum()[0].round(), sketch.basis().abs()
    (tensor([50.], dtype=torch.float64), tensor([[1., 0.]]))
    """

    name = "incremental-pca"

    def _shrunk(self, squares: Tensor) -> Tensor:
        return squares[: self.rank]


class FrequentDirections(BufferedSketch):
    """Frequent directions (Liberty 2013): a compression subtracts the (rank + 1)-th squared singular value from all.

    No direction is therefore overestimated: SᵀS <= Σ v vᵀ.
    """

    name = "frequent-directions"

    def _shrunk(self, squares: Tensor) -> Tensor:
        return squares[: self.rank] - (squares[self.rank] if len(squares) > self.rank else 0.0)
