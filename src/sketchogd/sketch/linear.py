"""The paper's three sketches, with the transpose of its layout: a sketch is k rows of length d.

Letters: G (b, d) a batch of rows; Y (k, d) and W (l, d) what is kept; Ω (d, k) and Ψᵀ (d, l) the test matrices;
M = Σ v vᵀ = GᵀG the second moment of everything observed.

| SketchOGD- | class | keeps | update with G | basis |
|---|---|---|---|---|
| 1 | GradientSketch | Y | Y += Ω_bᵀ G, Ω_b (b, k) fresh | orth Y |
| 2 | ProductSketch | Y | Y += (G Ω)ᵀ G | orth Y |
| 3 | SymmetricSketch | Y, W | the same, and W += (G Ψᵀ)ᵀ G | Q = orth Y; U, T = QR(Ψ Qᵀ); X = T⁺ (Uᵀ W); orth [Q; X] |

Methods 2 and 3 keep squares, which overflow float32 for entries beyond 1e19. They therefore keep Y·4^(−e), an exact
scaling, with e the exponent of the largest entry seen.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import schema
from ..linalg.dense import gram, nystrom, orthonormal_coordinates, polish_, transform_, whiten
from ..linalg.scaling import added_scaled_, rescale_, scaled, unscaled
from ..seeds import derive_seed, hash32, normal_rows
from .additive import Additive
from .base import Self, largest_rank, positive
from .factored import FactoredSketch
from .stored import EXPONENT, RANK, SEED, matrix_settings
from .testmatrix import Gaussian, Identity, SparseSign, TestMatrix, named_test_matrix

ROW_ENTRIES = 4
"""To how many rows of Y a `GradientSketch` with a sparse test matrix adds an observed row."""


class LinearSketch(FactoredSketch, Additive):
    """Base of the three: the sum of the sketches of two streams is the sketch of both."""

    def summand(self) -> Tensor:
        """Y, in method 3 with W below it, times 4^(−exponent)."""
        self._open()
        return self.rows


class GradientSketch(LinearSketch):
    """SketchOGD-1: Y = Ωᵀ G over all observed rows, each with a fresh row of Ω, which is not kept.

    Values are the squared singular values of Y divided by k, since E[YᵀY] = k M.

    Args:
        rank: k.
        seed: for Ω.
        test_matrix: "gaussian", the paper's, has standard normal rows; "sparse" has ROW_ENTRIES entries
            ±√(k / ROW_ENTRIES) per row, so that an observed row is added to a few rows of Y instead of all k.

    >>> sketch = GradientSketch(2).bind(3)
    >>> sketch.observe(torch.tensor([[1.0, 0.0, 0.0]] * 4))
    >>> sketch.basis().abs()
    tensor([[1., 0., 0.]])
    """

    name = "gradient"
    stored_settings: ClassVar[schema.Fields | None] = {
        "rank": RANK,
        "seed": SEED,
        "test_matrix": schema.word("gaussian", "sparse"),
    }
    counters: ClassVar[schema.Fields] = {"merged_seeds": schema.many(SEED)}

    def __init__(self, rank: int, *, seed: int = 0, test_matrix: str = "gaussian") -> None:
        positive(rank=rank)
        if test_matrix not in ("gaussian", "sparse"):
            raise ValueError(f'test_matrix is "gaussian" or "sparse"; got {test_matrix!r}')
        self.rank = rank
        self.seed = seed
        self.test_matrix = test_matrix
        self.merged_seeds: list[int] = []

    def settings(self) -> dict[str, Any]:
        """See `Sketch`."""
        return {"rank": self.rank, "seed": self.seed, "test_matrix": self.test_matrix}

    def cost(self, d: int, itemsize: int = 4) -> int:
        """k (d + k) numbers and k values."""
        k = min(self.rank, d)
        return itemsize * k * (d + k) + 8 * k

    @classmethod
    def from_budget(cls, nbytes: int, d: int, **settings: Any) -> "GradientSketch":
        """See `Sketch`."""
        return cls(_rank_within(cls, nbytes, d, settings), **settings)

    def _counters(self) -> dict[str, Any]:
        return {"merged_seeds": list(self.merged_seeds)}  # whose draws are in Y

    def _sizes(self, d: int, counters: Mapping[str, Any]) -> tuple[int, int]:
        return min(self.rank, d), min(self.rank, d)

    def _allocate(self) -> None:
        self.rows = torch.zeros(min(self.rank, self.d), self.columns.width, dtype=self.dtype, device=self.device)

    def mixing(self, G: Tensor, largest: float, ahead: int = 0) -> Tensor:
        """Ω_bᵀ (k, b) of the update Y += Ω_bᵀ G, for rows that come after `ahead` rows of other processes."""
        # Row n of the stream draws from (seed, n): nothing to store, and no draw is ever used twice.
        row = self.offset + self.count + ahead
        if self.test_matrix == "gaussian":
            return normal_rows(row, len(G), len(self.rows), self.seed, self.dtype, self.device).T
        omega = torch.zeros(len(self.rows), len(G), dtype=self.dtype, device=self.device)
        for place, value in self._entries(row, len(G)):
            omega.scatter_add_(0, place[None], value[None])
        return omega

    def _entries(self, row: int, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
        """ROW_ENTRIES pairs: the row of Y that each observed row from `row` on is added to, and its weight."""
        k, size = len(self.rows), (len(self.rows) / ROW_ENTRIES) ** 0.5
        for j in range(ROW_ENTRIES):
            h = hash32(torch.arange(row, row + rows, device=self.device), derive_seed(self.seed, "entry", j))
            yield ((h >> 1) * k) >> 31, ((h & 1) * 2 - 1).to(self.dtype) * size

    def _update(self, rows: Tensor, largest: float) -> None:
        self._open()
        if self.test_matrix == "gaussian" or rows.is_cuda:  # a GPU adds rows in no fixed order, but multiplies in one
            self.rows.addmm_(self.mixing(rows, largest), rows)
            return
        for place, value in self._entries(self.offset + self.count, len(rows)):
            self.rows.index_add_(0, place, rows * value[:, None])

    def _factorise(self) -> tuple[Tensor, Tensor]:
        T, R = whiten(self.columns.total(gram(self.rows)))
        transform_(self.rows, T)
        values = R.square().sum(0) / len(self.rows)
        return R @ polish_(self.rows[: len(T)], T, self.columns.total), values

    def _check_mergeable(self, other: "GradientSketch") -> None:
        if (other.rank, other.test_matrix) != (self.rank, self.test_matrix):
            raise ValueError(f"{self!r} and {other!r} do not add up: they need the same rank and test matrix")
        common = {self.seed, *self.merged_seeds} & {other.seed, *other.merged_seeds}
        if common:
            raise ValueError(
                f"both sketches drew from seed {min(common)}, so their draws are not independent; "
                "give each worker's GradientSketch a seed of its own"
            )

    def _absorb(self, other: "GradientSketch") -> None:
        self._open()
        self.rows += other._opened_rows().to(self.device)
        self.merged_seeds += [other.seed, *other.merged_seeds]

    def _adopt_more(self, counters: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.merged_seeds = [int(seed) for seed in counters["merged_seeds"]]


class SketchedMoment(LinearSketch):
    """Base of sketches that keep Y = Ωᵀ M, with a test matrix fixed by the seed; they differ in what they make of it.

    If the rank reaches d, Ω is the identity and Y is M itself.
    """

    stored_settings: ClassVar[schema.Fields | None] = {
        "rank": RANK,
        "seed": SEED,
        "test_matrix": matrix_settings,
    }
    counters: ClassVar[schema.Fields] = {"exponent": EXPONENT}
    usual: ClassVar[TestMatrix]
    """The test matrix where none is given."""

    def __init__(self, rank: int, *, seed: int = 0, test_matrix: str | TestMatrix | None = None) -> None:
        positive(rank=rank)
        self.rank = rank
        self.seed = seed
        self.test_matrix = self.usual if test_matrix is None else named_test_matrix(_revived(test_matrix))

    omega: TestMatrix

    def settings(self) -> dict[str, Any]:
        """See `Sketch`."""
        return {"rank": self.rank, "seed": self.seed, "test_matrix": _plain(self.test_matrix)}

    def cost(self, d: int, itemsize: int = 4) -> int:
        """k (d + k) numbers, k values, and the test matrix if it is stored."""
        k = min(self.rank, d)
        stored = 0 if k == d else self.test_matrix.cost(d, k, itemsize)
        return itemsize * k * (d + k) + 8 * k + stored

    @classmethod
    def from_budget(cls: type[Self], nbytes: int, d: int, **settings: Any) -> Self:
        """See `Sketch`."""
        made: Self = cls(_rank_within(cls, nbytes, d, settings), **settings)  # type: ignore[call-arg]
        return made

    def _counters(self) -> dict[str, Any]:
        return {"exponent": self.exponent}

    def _fixed(self) -> dict[str, Tensor]:
        return _prefixed("omega", self.omega)

    def _sizes(self, d: int, counters: Mapping[str, Any]) -> tuple[int, int]:
        return min(self.rank, d), min(self.rank, d)

    def _allocate(self) -> None:
        k = min(self.rank, self.d)
        self.rows = torch.zeros(k, self.columns.width, dtype=self.dtype, device=self.device)
        self.omega = _bound(self, k, "omega")

    def mixing(self, G: Tensor, largest: float, ahead: int = 0) -> Tensor:
        """Scaled (G Ω)ᵀ (k, b) of the update Y += (G Ω)ᵀ G, for G with all d columns and `largest` of all processes."""
        self._open()
        self.exponent = rescale_(self.rows, self.exponent, largest)
        return scaled(self.omega.whole(self.dtype, self.device).apply(G), self.exponent).T

    def _update(self, rows: Tensor, largest: float) -> None:
        self._open()
        G = rows
        self.exponent = rescale_(self.rows, self.exponent, largest)
        self.rows.addmm_(scaled(self.columns.total(self.omega.apply(G)), self.exponent).T, G)

    def add_product(self, product: Tensor, count: int, energy: float) -> None:
        """Observe a batch of `count` rows given by Ωᵀ M (k, d) and the trace of M instead of the rows."""
        self._open()
        self.exponent = added_scaled_(self.rows, self.exponent, product, 0)
        self.count += count
        self.energy += energy

    def _check_mergeable(self, other: "SketchedMoment") -> None:
        _require_same_settings(self, other)

    def _absorb(self, other: "SketchedMoment") -> None:
        self._open()
        self.exponent = added_scaled_(self.rows, self.exponent, other._opened_rows(), other.exponent)

    def _adopt_more(self, counters: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.exponent = counters["exponent"]


class ProductSketch(SketchedMoment):
    """SketchOGD-2: Y = Ωᵀ M with a test matrix fixed by the seed.

    The values and rows of `spectrum` are the eigenpairs of the Nyström approximation Yᵀ (Y Ω)⁺ Y of M.

    >>> sketch = ProductSketch(3).bind(3)
    >>> sketch.observe(torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    >>> sketch.spectrum()[0]
    tensor([4., 1.], dtype=torch.float64)
    """

    name = "product"
    usual = SparseSign()

    def _factorise(self) -> tuple[Tensor, Tensor]:
        Y = self.rows
        T, R = whiten(self.columns.total(gram(Y)))
        values, Z = nystrom(self.columns.total(self.omega.apply(Y, torch.float64)), R)
        T, R = Z.T @ T, R @ Z
        transform_(Y, T)
        return R @ polish_(Y[: len(T)], T, self.columns.total), unscaled(values, self.exponent)


class SymmetricSketch(LinearSketch):
    """SketchOGD-3: Y = Ωᵀ M and W = Ψ M, with a basis of the symmetric low-rank approximation of M.

    Y and W are one block of k + l rows. In coordinates of an orthonormal basis E of all these rows, the paper's steps
    are small products; at the end E is rotated so that its first rows are orth [Q; X]. The others remain, so that W can
    be restored.

    Args:
        rank: k.
        corank: l >= k, which T⁺ needs.
        seed: for Ω and Ψ.
        test_matrix: "sparse", "gaussian", or an object such as `Gaussian(stored=True)`.
    """

    name = "symmetric"
    stored_settings: ClassVar[schema.Fields | None] = {
        "rank": RANK,
        "corank": RANK,
        "seed": SEED,
        "test_matrix": matrix_settings,
    }
    counters: ClassVar[schema.Fields] = {"exponent": EXPONENT}

    def __init__(self, rank: int, corank: int, *, seed: int = 0, test_matrix: str | TestMatrix = "sparse") -> None:
        positive(rank=rank, corank=corank)
        if corank < rank:
            raise ValueError(f"corank (l) must be at least rank (k), since Ψ Q has l rows; got k={rank}, l={corank}")
        self.rank = rank
        self.corank = corank
        self.seed = seed
        self.test_matrix = named_test_matrix(_revived(test_matrix))

    omega: TestMatrix
    psi: TestMatrix

    def settings(self) -> dict[str, Any]:
        """See `Sketch`."""
        test_matrix = _plain(self.test_matrix)
        return {"rank": self.rank, "corank": self.corank, "seed": self.seed, "test_matrix": test_matrix}

    def cost(self, d: int, itemsize: int = 4) -> int:
        """m (d + m) numbers with m = k + l, m values, and the test matrices if they are stored."""
        sizes = min(self.rank, d), min(self.corank, d)
        m = sum(sizes)
        stored = sum(0 if n == d else self.test_matrix.cost(d, n, itemsize) for n in sizes)
        return itemsize * m * (d + min(m, d)) + 8 * min(m, d) + stored

    @classmethod
    def from_budget(cls, nbytes: int, d: int, **settings: Any) -> "SymmetricSketch":
        """See `Sketch`; rank and corank are equal."""
        k = largest_rank(lambda k: cls(k, k, **settings).cost(d) <= nbytes, d)
        if k == 0:
            raise ValueError(_too_small(cls(1, 1, **settings).cost(d), nbytes, d))
        return cls(k, k, **settings)

    def _counters(self) -> dict[str, Any]:
        return {"exponent": self.exponent}

    def _fixed(self) -> dict[str, Tensor]:
        return {**_prefixed("omega", self.omega), **_prefixed("psi", self.psi)}

    def _sizes(self, d: int, counters: Mapping[str, Any]) -> tuple[int, int]:
        m = min(self.rank, d) + min(self.corank, d)
        return m, m

    def _allocate(self) -> None:
        k, corank = min(self.rank, self.d), min(self.corank, self.d)
        self.rows = torch.zeros(k + corank, self.columns.width, dtype=self.dtype, device=self.device)
        self.omega, self.psi = _bound(self, k, "omega"), _bound(self, corank, "psi")

    def mixing(self, G: Tensor, largest: float, ahead: int = 0) -> Tensor:
        """Scaled [(G Ω)ᵀ; (G Ψᵀ)ᵀ], for G with all d columns and `largest` of all processes."""
        self._open()
        self.exponent = rescale_(self.rows, self.exponent, largest)
        parts = [matrix.whole(self.dtype, self.device).apply(G) for matrix in (self.omega, self.psi)]
        return scaled(torch.cat(parts, dim=1), self.exponent).T

    def _update(self, rows: Tensor, largest: float) -> None:
        self._open()
        G = rows
        self.exponent = rescale_(self.rows, self.exponent, largest)
        Y, W = self.rows.split([self.omega.k, self.psi.k])
        Y.addmm_(scaled(self.columns.total(self.omega.apply(G)), self.exponent).T, G)
        W.addmm_(scaled(self.columns.total(self.psi.apply(G)), self.exponent).T, G)

    def _factorise(self) -> tuple[Tensor, Tensor]:
        S_psi = self.columns.total(self.psi.apply(self.rows, torch.float64))
        to_E, from_E = whiten(self.columns.total(gram(self.rows)))
        Y, W = from_E.split([self.omega.k, self.psi.k])  # coordinates of the paper's Yᵀ and W in E

        Q = orthonormal_coordinates(Y)
        U, T = torch.linalg.qr((Q @ to_E @ S_psi).T)
        X = torch.linalg.pinv(T, rtol=1e-6) @ (U.T @ W)
        basis = orthonormal_coordinates(torch.cat([Q, X]))

        M = Q.T @ X
        values, Z = torch.linalg.eigh(basis @ (M + M.T) @ basis.T / 2)
        basis = Z.flip(1).T @ basis
        rest = torch.linalg.svd(basis, full_matrices=True)[2][len(basis) :]
        turn = torch.cat([basis, rest])

        to_E, from_E = turn @ to_E, from_E @ turn.T
        transform_(self.rows, to_E)
        R = from_E @ polish_(self.rows[: len(turn)], to_E, self.columns.total)
        return R, unscaled(values.flip(0).clamp_min(0), self.exponent)

    def _check_mergeable(self, other: "SymmetricSketch") -> None:
        _require_same_settings(self, other)

    def _absorb(self, other: "SymmetricSketch") -> None:
        self._open()
        self.exponent = added_scaled_(self.rows, self.exponent, other._opened_rows(), other.exponent)

    def _adopt_more(self, counters: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.exponent = counters["exponent"]


# ---------------------------------------------------------------- settings


def _bound(sketch: "SketchedMoment | SymmetricSketch", k: int, name: str) -> TestMatrix:
    """The sketch's test matrix of k columns, drawn from its seed and a name."""
    choice = Identity() if k == sketch.d else sketch.test_matrix
    return choice.bind(sketch.d, k, derive_seed(sketch.seed, name), sketch.dtype, sketch.device, sketch.columns)


def _plain(choice: TestMatrix) -> dict[str, Any]:
    return {"kind": "gaussian" if isinstance(choice, Gaussian) else "sparse", **choice.settings()}


def _revived(choice: str | TestMatrix | dict[str, Any]) -> str | TestMatrix:
    if not isinstance(choice, dict):
        return choice
    rest = {key: value for key, value in choice.items() if key != "kind"}
    return Gaussian(**rest) if choice["kind"] == "gaussian" else SparseSign(**rest)


def _prefixed(prefix: str, matrix: TestMatrix) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in matrix.tensors().items()}


def _require_same_settings(mine: FactoredSketch, other: FactoredSketch) -> None:
    if mine.settings() != other.settings():
        raise ValueError(
            f"{other!r} cannot be merged into {mine!r}: their sums need the same test matrix, "
            "so rank, seed and test_matrix must be equal"
        )


def _rank_within(cls: Any, nbytes: int, d: int, settings: dict[str, Any]) -> int:
    rank = largest_rank(lambda k: cls(k, **settings).cost(d) <= nbytes, d)
    if rank == 0:
        raise ValueError(_too_small(cls(1, **settings).cost(d), nbytes, d))
    return rank


def _too_small(needed: int, nbytes: int, d: int) -> str:
    return f"the smallest such sketch of rows of length {d} takes {needed:,} bytes; the budget is {nbytes:,}"
