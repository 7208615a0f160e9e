"""Dense linear algebra on a few long rows, blockwise and in place.

Letters: S (m, d) is a sketch with m rows of length d, m << d; B (r, d) has orthonormal rows; S = R B with R (m, r).
Whatever runs over the d columns does so in blocks, so that the extra memory is a few (m, m) matrices and one block.
A float32 Gram matrix cannot resolve singular values below 3e-4 of the largest, so Gram matrices are in float64.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from . import dispatch

BLOCK_BYTES = 8 << 20
"""Bytes of one float64 block of columns."""

CACHE_BYTES = 512 << 10
"""The same for blocks that should fit into the cache of a CPU core."""

GPU_BLOCK_BYTES = 64 << 20
"""The same on a GPU, where kernel launches would dominate for smaller blocks."""

BANDS = 6
"""Bands of rows in which a Gram matrix is computed, each up to the diagonal only: 58 % of the work of all entries."""

WELL_CONDITIONED = 5e3
"""Condition number up to which one float64 pass leaves rows orthonormal to 5e-8, the rounding error of float32."""

RELATIVE_RANK = 5e-7
"""Singular values below this fraction of the largest are rounding errors of float32 rows, not directions."""


def alone(x: Tensor) -> Tensor:
    """Return x: the sum over processes when a single one holds all columns."""
    return x


def column_blocks(rows: int, d: int, block_bytes: int = BLOCK_BYTES) -> Iterator[slice]:
    """Yield slices that divide d columns of `rows` float64 numbers into blocks of about `block_bytes` bytes.

    >>> list(column_blocks(2, 10, block_bytes=64))
    [slice(0, 4, None), slice(4, 8, None), slice(8, 10, None)]
    """
    width = max(1, block_bytes // (8 * max(1, rows)))
    for start in range(0, d, width):
        yield slice(start, min(start + width, d))


def block_bytes(S: Tensor, cpu: int = BLOCK_BYTES) -> int:
    """Return the bytes per block for work on S: `GPU_BLOCK_BYTES` on a GPU, `cpu` elsewhere."""
    return GPU_BLOCK_BYTES if S.is_cuda else cpu


def squared_norm(S: Tensor) -> float:
    """Return ‖S‖_F², summed in float64 over blocks that fit into a core's cache, with one device synchronisation."""
    total = torch.zeros((), dtype=torch.float64, device=S.device)
    for block in column_blocks(len(S), S.shape[1], block_bytes(S, CACHE_BYTES)):
        X = S[:, block].double().flatten()
        total += X @ X
    return float(total)


def gram(S: Tensor) -> Tensor:
    """Return S Sᵀ (m, m) in float64, computed by blocks of columns; the half above the diagonal is mirrored."""
    m, d = S.shape
    K = torch.zeros(m, m, dtype=torch.float64, device=S.device)
    height = max(64, -(-m // BANDS))
    bands = [slice(start, min(start + height, m)) for start in range(0, m, height)]
    for block in column_blocks(m, d, block_bytes(S)):
        X = S[:, block].double()
        for band in bands:
            K[band, : band.stop].addmm_(X[band], X[: band.stop].T)
    for band in bands:
        K[: band.start, band] = K[band, : band.start].T
    return K


def eigenpairs_(K: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues of a symmetric matrix, increasing, and its eigenvectors as rows, overwriting the matrix.

    In place, because at rank 1200 a copy takes 12 MB in float64, and LAPACK itself allocates two more.
    """
    values, columns = K.new_empty(len(K)), K.mT
    torch.linalg.eigh(columns, out=(values, columns))
    return values, K


def whiten(K: Tensor, relative_rank: float = RELATIVE_RANK) -> tuple[Tensor, Tensor]:
    """Return (T, R) such that T S is orthonormal and S = R (T S), from the Gram matrix K = S Sᵀ, which is overwritten.

    With K = U Λ Uᵀ: T = Λ^(-1/2) Uᵀ (r, m) and R = U Λ^(1/2) (m, r). Rank-revealing: directions with
    √λ <= relative_rank √λ₁ are dropped. The rows of T S are the right singular vectors of S, largest first.
    """
    values, vectors = eigenpairs_(K)
    root = values.clamp_min(0).sqrt()
    kept = (root > relative_rank * root[-1:]).nonzero().flatten().flip(0)
    root, T = root[kept, None], vectors[kept]
    del K, vectors
    R = (T * root).T
    return T.div_(root), R


def transform_(S: Tensor, T: Tensor) -> None:
    """Replace S[:r] by T S and S[r:] by zeros, in place and computed in float64, for T (r, m) with r <= m."""
    m, d = S.shape
    r = T.shape[0]
    for block in column_blocks(m, d, block_bytes(S)):
        S[:r, block] = T @ S[:, block].double()
    S[r:] = 0


def polish_(B: Tensor, T: Tensor, total: Callable[[Tensor], Tensor] = alone) -> Tensor:
    """Correct nearly orthonormal rows B = T S to float32 precision, in place; returns C (r, r), B_before = C B_after.

    Whitening in float64 leaves an error of about 1e-15 ‖S‖² |t_i| |t_j| in b_iᵀ b_j, t_i being the rows of T. Where
    this is below the rounding error of float32, nothing is done. All rows from the first for which it is not get the
    symmetric correction B <- (B Bᵀ)^(-1/2) B, which moves them as little as possible; since it is small, float32 is
    precise enough to add it. `total` sums Gram matrices over processes when the columns are sharded.
    """
    C = torch.eye(len(B), dtype=torch.float64, device=B.device)
    sizes = T.norm(dim=1)
    doubtful = (sizes * sizes.max() > (WELL_CONDITIONED * sizes.min()) ** 2).nonzero() if len(sizes) else sizes
    if len(doubtful) == 0:
        return C
    first = int(doubtful[0])
    tail = B[first:]
    values, U = torch.linalg.eigh(total(gram(tail)))
    root = values.clamp_min(torch.finfo(torch.float64).tiny).sqrt()
    change = ((U * (1 / root - 1)) @ U.T).to(B.dtype)
    for block in column_blocks(len(tail), tail.shape[1], block_bytes(B)):
        tail[:, block] += change @ tail[:, block]
    C[first:, first:] = (U * root) @ U.T
    return C


def orthonormalise_(S: Tensor, total: Callable[[Tensor], Tensor] = alone) -> Tensor:
    """Replace S by an orthonormal basis of its rows, in place; returns R (m, r) in float64 with S_before = R S[:r].

    S[:r] are the right singular vectors, largest first, S[r:] is zero, and r is the numerical rank. `total` sums Gram
    matrices over processes when the columns are sharded.

    >>> S = torch.tensor([[3.0, 4.0], [6.0, 8.0]])
    >>> R = orthonormalise_(S)
    >>> R.shape[1], S.abs()
    (1, tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]]))
    """
    T, R = whiten(total(gram(S)))
    transform_(S, T)
    return R @ polish_(S[: len(T)], T, total)


def orthonormal_coordinates(C: Tensor, relative_rank: float = RELATIVE_RANK) -> Tensor:
    """Return an orthonormal basis (r, n) of the rows of a small matrix C (m, n), by a rank-revealing SVD."""
    _, values, V = torch.linalg.svd(C, full_matrices=False)
    return V[values > relative_rank * values[:1]]


def restore_(S: Tensor, R: Tensor) -> None:
    """Undo `orthonormalise_`: replace S by R S[:r], in place, for R (m, r)."""
    m, d = S.shape
    r = R.shape[1]
    R = R.double()
    for block in column_blocks(m, d, block_bytes(S)):
        S[:, block] = R @ S[:r, block].double()


def nystrom(C: Tensor, R: Tensor, cutoff: float = 1e-7) -> tuple[Tensor, Tensor]:
    """Return the eigenpairs of the Nyström approximation of a second moment M from its sketch Y = Ωᵀ M.

    M ~ Yᵀ (Y Ω)⁺ Y. With Y = R B, B orthonormal, and C = Y Ω (k, k) this equals Bᵀ (Rᵀ C⁺ R) B. C is symmetric and
    positive semidefinite up to rounding; its eigenvalues below `cutoff` times the largest are dropped.
    Returns (λ (r,) decreasing, Z (r, r)); the eigenvectors are the rows of Zᵀ B.
    """
    C = (C + C.T).div_(2)
    theta, W = eigenpairs_(C)
    keep = theta > cutoff * theta[-1:].clamp_min(0)
    half = W.mul_(torch.where(keep, theta.abs().rsqrt(), 0.0)[:, None]) @ R
    del C, W
    values, Z = eigenpairs_(half.T @ half)
    return values.flip(0).clamp_min(0), Z.flip(0).T


SUM_WIDTH = 1024
"""Columns over which a float32 product on a CPU is summed before its result is added in float64.

A float32 sum over 100,000 terms has an error of 1e-5, and a projected update would leak by as much.
"""


def coefficients(B: Tensor, v: Tensor) -> Tensor:
    """Return B v (r,) in v's dtype, summed in float64 over short stretches; B may have a lower precision than v."""
    found = dispatch.coefficients(B, v)
    return (plain_coefficients(B, v) if found is None else found).to(v.dtype)


def combination(B: Tensor, c: Tensor, out: Tensor) -> Tensor:
    """Write Bᵀ c into out (d,) and return it; the counterpart of `coefficients`."""
    found = dispatch.combination(B, c, out)
    return plain_combination(B, c, out) if found is None else found


def plain_coefficients(B: Tensor, v: Tensor) -> Tensor:
    """`coefficients` in plain torch; a basis in lower precision is converted block by block."""
    if v.dtype == torch.float64 or (B.device.type == "cuda" and B.dtype == v.dtype):
        return B.to(v.dtype) @ v
    c = torch.zeros(len(B), dtype=torch.float64, device=v.device)
    for start in range(0, len(v), SUM_WIDTH):
        block = slice(start, start + SUM_WIDTH)
        c += B[:, block].to(v.dtype) @ v[block]
    return c


def plain_combination(B: Tensor, c: Tensor, out: Tensor) -> Tensor:
    """`combination` in plain torch; a basis in lower precision is converted block by block."""
    if B.dtype == c.dtype:
        return torch.mv(B.T, c, out=out)
    for block in column_blocks(len(B), B.shape[1], block_bytes(B)):
        out[block] = c @ B[:, block].to(c.dtype)
    return out
