"""Random test matrices Ω (d, k), generated from a seed and applied without being stored.

A sketch needs the product G Ω for rows G (b, d). `SparseSign` maps coordinate i to ζ of the k columns; columns
and signs are integer hashes of (seed, i): nothing is stored, the product takes one pass over G per entry, and CPU and
GPU agree on every entry. `Gaussian` is the paper's matrix; it is regenerated block by block, or stored to match the
paper's accounting. `Identity` is used where k = d.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..seeds import derive_seed, hash32, normal
from .columns import Columns, Whole

BLOCK = 1 << 12
"""Coordinates per block. Part of the definition of `Gaussian`, which draws each block from its own seed."""

APPLY_BYTES = 4 << 20
"""Approximate bytes of the block of rows that `SparseSign` processes at a time."""

GPU_APPLY_BYTES = 512 << 20
"""The same on a GPU, where kernel launches would dominate for smaller blocks."""


class TestMatrix(ABC):
    """A test matrix Ω (d, k): constructed from settings, bound to a size and a seed by `bind`, applied by `apply`."""

    __test__ = False  # pytest collects classes whose names begin with "Test"

    d: int
    k: int
    seed: int
    columns: Columns
    """The coordinates of the rows passed to `apply`; if not all d, `apply` returns their share of the product."""

    def bind(
        self, d: int, k: int, seed: int, dtype: torch.dtype, device: torch.device, columns: Columns | None = None
    ) -> "TestMatrix":
        """Return a bound copy of these settings: Ω (d, k) drawn from `seed`.

        Args:
            d: Number of coordinates.
            k: Number of columns of Ω.
            seed: Determines every entry.
            dtype: Precision of a stored matrix.
            device: Device of a stored matrix.
            columns: The coordinates of the rows that `apply` will receive; all d by default.
        """
        bound = type(self)(**self.settings())
        bound.d, bound.k, bound.seed, bound.columns = d, k, seed, columns or Whole(d)
        bound._prepare(dtype, device)
        return bound

    def move_(self, device: torch.device | str) -> None:
        """Move stored tensors to another device."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                vars(self)[name] = value.to(device)

    def whole(self, dtype: torch.dtype, device: torch.device) -> "TestMatrix":
        """Return the same Ω for rows with all d coordinates, without storing another matrix."""
        if self.columns.width == self.d:
            return self
        choice = type(self)(**{key: value for key, value in self.settings().items() if key != "stored"})
        return choice.bind(self.d, self.k, self.seed, dtype, device)

    @abstractmethod
    def settings(self) -> dict[str, bool | int]:
        """Return the keyword arguments that construct an equal object."""

    @abstractmethod
    def apply(self, rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Multiply rows (b, d) by Ω; returns (b, k), computed in `dtype` (by default that of the rows)."""

    @abstractmethod
    def dense(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return Ω (d, k) as a matrix, for products with rows that are never formed explicitly."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors kept in memory, by name: none, unless the matrix is stored."""
        return {}

    @abstractmethod
    def cost(self, d: int, k: int, itemsize: int) -> int:
        """Return the bytes that a bound matrix (d, k) keeps in memory."""

    @abstractmethod
    def _prepare(self, dtype: torch.dtype, device: torch.device) -> None: ...


@dataclass
class SparseSign(TestMatrix):
    """Sparse random signs: each coordinate has entries ±1/√ζ in ζ random columns. E[Ω Ωᵀ] = I.

    Columns of one coordinate may coincide; their entries then add, or cancel: one of 2k coordinates is not seen.
    With `apart` they are in ζ different parts of the columns. `bind` raises ValueError for ζ < 1.

    >>> omega = SparseSign().bind(6, 4, seed=1, dtype=torch.float32, device=torch.device("cpu"))
    >>> omega.apply(torch.eye(6)).shape, omega.tensors()
    (torch.Size([6, 4]), {})
    """

    zeta: int = 2
    apart: bool = False

    def settings(self) -> dict[str, bool | int]:
        """See `TestMatrix`."""
        return {"zeta": self.zeta, **({"apart": True} if self.apart else {})}

    def cost(self, d: int, k: int, itemsize: int) -> int:
        """Return 0: nothing is stored."""
        return 0

    def _prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        if self.zeta < 1:
            raise ValueError(f"zeta is the number of columns a coordinate goes to, at least 1; got {self.zeta}")

    def apply(self, rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """See `TestMatrix`: one pass over the rows for each of the ζ entries."""
        dtype = dtype or rows.dtype
        b = len(rows)
        out = torch.zeros(b, self.k, dtype=dtype, device=rows.device)
        width = max(256, (GPU_APPLY_BYTES if rows.is_cuda else APPLY_BYTES) // (max(1, b) * dtype.itemsize))
        for here, there in self.columns.blocks(width):
            X = rows[:, here].to(dtype)
            coordinate = torch.arange(there.start, there.stop, device=rows.device)
            for column, sign in self._entries(coordinate, dtype):
                out.scatter_add_(1, column.expand(b, -1), X * sign)
        return out.mul_(self.entries**-0.5)

    def dense(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """See `TestMatrix`."""
        out = torch.zeros(self.d, self.k, dtype=dtype, device=device)
        for column, sign in self._entries(torch.arange(self.d, device=device), dtype):
            out.scatter_add_(1, column[:, None], sign[:, None])
        return out.mul_(self.entries**-0.5)

    @property
    def entries(self) -> int:
        """ζ, or k where it is less and entries are to be apart."""
        return min(self.zeta, self.k) if self.apart else self.zeta

    def part(self, j: int) -> range:
        """The columns that may have the j-th entry of a coordinate."""
        return range(j * self.k // self.entries, (j + 1) * self.k // self.entries) if self.apart else range(self.k)

    def _entries(self, coordinate: Tensor, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield, for each of the ζ entries, the column and the sign of every coordinate."""
        for j in range(self.entries):
            h, part = hash32(coordinate, derive_seed(self.seed, "column", j)), self.part(j)
            yield part.start + (((h >> 1) * len(part)) >> 31), ((h & 1) * 2 - 1).to(dtype)


@dataclass
class Gaussian(TestMatrix):
    """Independent standard normal entries, as in the paper; `stored=True` keeps them in memory and in the ledger."""

    stored: bool = False
    _matrix: Tensor | None = field(default=None, init=False, repr=False)

    def settings(self) -> dict[str, bool | int]:
        """See `TestMatrix`."""
        return {"stored": self.stored}

    def cost(self, d: int, k: int, itemsize: int) -> int:
        """Return the bytes of d k numbers if the matrix is stored, otherwise 0."""
        return d * k * itemsize if self.stored else 0

    def tensors(self) -> dict[str, Tensor]:
        """See `TestMatrix`; a stored matrix is kept transposed, as rows (k, d)."""
        return {} if self._matrix is None else {"matrix": self._matrix}

    def _prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        if self.stored:
            self._matrix = torch.empty(self.k, self.columns.width, dtype=dtype, device=device)
            for here, there in self.columns.blocks(BLOCK):
                self._matrix[:, here] = self._block(there, dtype, device)

    def _block(self, part: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Generate columns of Ωᵀ that lie in one block, drawn from the seed of the block's start."""
        start = part.start - part.start % BLOCK
        width = min(BLOCK, self.d - start)
        whole = normal((self.k, width), derive_seed(self.seed, "block", start), dtype, device)
        return whole[:, part.start - start : part.stop - start]

    def apply(self, rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """See `TestMatrix`; block by block, unless the matrix is stored."""
        dtype = dtype or rows.dtype
        if self._matrix is not None and dtype == self._matrix.dtype:
            return rows.to(dtype) @ self._matrix.T
        out = torch.zeros(len(rows), self.k, dtype=dtype, device=rows.device)
        for here, there in self.columns.blocks(BLOCK):
            out.addmm_(rows[:, here].to(dtype), self._block(there, dtype, rows.device).T)
        return out

    def dense(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """See `TestMatrix`."""
        starts = range(0, self.d, BLOCK)
        return torch.cat([self._block(slice(i, min(i + BLOCK, self.d)), dtype, device).T for i in starts])


@dataclass
class Identity(TestMatrix):
    """Ω = I, used when the rank reaches d: the sketch is then the second moment itself."""

    def settings(self) -> dict[str, bool | int]:
        """See `TestMatrix`."""
        return {}

    def cost(self, d: int, k: int, itemsize: int) -> int:
        """Return 0: nothing is stored."""
        return 0

    def _prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        if self.k != self.d:
            raise ValueError(f"the identity is square; got ({self.d}, {self.k})")

    def apply(self, rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return the rows themselves, with zeros for coordinates held by other processes."""
        if self.columns.width == self.d:
            return rows.to(dtype or rows.dtype)
        out = torch.zeros(len(rows), self.k, dtype=dtype or rows.dtype, device=rows.device)
        for here, there in self.columns.blocks(self.d):
            out[:, there] = rows[:, here].to(out.dtype)
        return out

    def dense(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """See `TestMatrix`."""
        return torch.eye(self.d, dtype=dtype, device=device)


def dense_matrices(matrices: Sequence[TestMatrix], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Return `dense` of many matrices; sparse signs of all are hashed together, in a few kernels."""
    found = {i: omega.dense(dtype, device) for i, omega in enumerate(matrices) if not isinstance(omega, SparseSign)}
    signs = {i: omega for i, omega in enumerate(matrices) if isinstance(omega, SparseSign)}
    for entries in {omega.entries for omega in signs.values()}:
        own = {i: omega for i, omega in signs.items() if omega.entries == entries}
        found |= zip(own, _dense_signs(list(own.values()), entries, dtype, device), strict=True)
    return [found[i] for i in range(len(matrices))]


def _dense_signs(matrices: list[SparseSign], entries: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    d, k = (torch.tensor([getattr(omega, size) for omega in matrices]) for size in ("d", "k"))
    starts, sizes = d.cumsum(0) - d, d * k
    which = torch.arange(len(matrices)).repeat_interleave(d)
    coordinate = torch.arange(int(d.sum())) - starts[which]
    row = (sizes.cumsum(0) - sizes)[which] + coordinate * k[which]
    coordinate, row, which = (t.to(device) for t in (coordinate, row, which))
    out = torch.zeros(int(sizes.sum()), dtype=dtype, device=device)
    for j in range(entries):
        parts = [omega.part(j) for omega in matrices]
        seeds = [derive_seed(omega.seed, "column", j) for omega in matrices]
        seed, start, width = (
            torch.tensor(numbers).to(device)[which]
            for numbers in (seeds, [part.start for part in parts], [len(part) for part in parts])
        )
        h = hash32(coordinate, seed)
        out.scatter_add_(0, row + start + ((h >> 1) * width >> 31), ((h & 1) * 2 - 1).to(dtype))
    pieces = out.mul_(entries**-0.5).split(sizes.tolist())
    return [piece.view(omega.d, omega.k) for piece, omega in zip(pieces, matrices, strict=True)]


def named_test_matrix(choice: str | TestMatrix) -> TestMatrix:
    """Return the settings object for the name "sparse" or "gaussian"; an object is returned unchanged.

    Raises ValueError for anything else.
    """
    if isinstance(choice, TestMatrix):
        return choice
    if choice == "sparse":
        return SparseSign()
    if choice == "gaussian":
        return Gaussian()
    raise ValueError(f'test_matrix is "sparse", "gaussian", SparseSign(...) or Gaussian(...); got {choice!r}')
