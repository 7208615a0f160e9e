"""Dense linear algebra on a few long rows, blockwise and in place.

Letters: S (m, d) is a sketch with m rows of length d, m << d; B (r, d) has orthonormal rows; S = R B with R (m, r).
Everything that touches the d columns goes block by block, so the extra memory is a few (m, m) matrices and one block.
A float32 Gram matrix cannot see singular values below 3e-4 of the largest, so Gram matrices are in float64.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from . import dispatch

BLOCK_BYTES = 8 << 20
"""Bytes of one float64 block of columns."""

CACHE_BYTES = 512 << 10
"""The same where a block should stay in the cache of a CPU core."""

GPU_BLOCK_BYTES = 64 << 20
"""The same on a GPU."""

BANDS = 6
"""A Gram matrix is computed in so many bands of rows, each up to the diagonal: 58 % of the whole product."""

WELL_CONDITIONED = 5e3
"""Up to this condition number one pass in float64 leaves rows orthonormal to 5e-8, the rounding of float32."""

RELATIVE_RANK = 5e-7
"""Singular values below this fraction of the largest are rounding of float32 rows, not directions."""


def alone(x: Tensor) -> Tensor:
    """x: the sum over all processes that hold columns, where one holds them all."""
    return x


def column_blocks(rows: int, d: int, block_bytes: int = BLOCK_BYTES) -> Iterator[slice]:
    """Slices that cut d columns into blocks of about `block_bytes` bytes in float64.

    >>> list(column_blocks(2, 10, block_bytes=64))
    [slice(0, 4, None), slice(4, 8, None), slice(8, 10, None)]
    """
    width = max(1, block_bytes // (8 * max(1, rows)))
    for start in range(0, d, width):
        yield slice(start, min(start + width, d))


def block_bytes(S: Tensor, cpu: int = BLOCK_BYTES) -> int:
    """How large a block of S to work on: on a GPU large enough that its time is not spent on starting kernels."""
    return GPU_BLOCK_BYTES if S.is_cuda else cpu


def squared_norm(S: Tensor) -> float:
    """‖S‖_F² in float64, by blocks that stay in a processor's cache; one number is read at the end."""
    total = torch.zeros((), dtype=torch.float64, device=S.device)
    for block in column_blocks(len(S), S.shape[1], block_bytes(S, CACHE_BYTES)):
        X = S[:, block].double().flatten()
        total += X @ X
    return float(total)


def gram(S: Tensor) -> Tensor:
    """S Sᵀ (m, m) in float64, one block of columns at a time, the half below the diagonal being mirrored."""
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
    """Eigenvalues, rising, and eigenvectors as rows of a symmetric matrix, in the place of the matrix.

    At rank 1200 a copy takes 12 MB in float64, and LAPACK takes two more for itself.
    """
    values, columns = K.new_empty(len(K)), K.mT
    torch.linalg.eigh(columns, out=(values, columns))
    return values, K


def whiten(K: Tensor, relative_rank: float = RELATIVE_RANK) -> tuple[Tensor, Tensor]:
    """From the Gram matrix K = S Sᵀ, which is used up, (T, R) with T S orthonormal and S = R (T S), rank-revealing.

    With K = U Λ Uᵀ, directions with √λ <= relative_rank √λ₁ dropped: T = Λ^(-1/2) Uᵀ (r, m), R = U Λ^(1/2) (m, r).
    The rows of T S are the right singular vectors of S, largest first.
    """
    values, vectors = eigenpairs_(K)
    root = values.clamp_min(0).sqrt()
    kept = (root > relative_rank * root[-1:]).nonzero().flatten().flip(0)
    root, T = root[kept, None], vectors[kept]
    del K, vectors
    R = (T * root).T
    return T.div_(root), R


def transform_(S: Tensor, T: Tensor) -> None:
    """S[:r] <- T S in place, computed in float64, and S[r:] <- 0, for T (r, m) with r <= m."""
    m, d = S.shape
    r = T.shape[0]
    for block in column_blocks(m, d, block_bytes(S)):
        S[:r, block] = T @ S[:, block].double()
    S[r:] = 0


def polish_(B: Tensor, T: Tensor, total: Callable[[Tensor], Tensor] = alone) -> Tensor:
    """Make the nearly orthonormal rows B = T S exactly so, in place; returns C (r, r) with B_before = C B_after.

    Whitening in float64 leaves b_iᵀ b_j wrong by about 1e-15 ‖S‖² |t_i| |t_j|, t_i being rows of T: nothing, where that
    is below float32 rounding. The rows from the first for which it is not get the symmetric correction
    B <- (B Bᵀ)^(-1/2) B, which moves them as little as possible; as it is small, float32 is precise enough to add it.
    `total` adds up Gram matrices of split rows.
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

    S[:r] are the right singular vectors in falling order, S[r:] is zero, r is the numerical rank.

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
    """An orthonormal basis (r, n) of the rows of a small matrix C (m, n), rank-revealing, by SVD."""
    _, values, V = torch.linalg.svd(C, full_matrices=False)
    return V[values > relative_rank * values[:1]]


def restore_(S: Tensor, R: Tensor) -> None:
    """Undo `orthonormalise_`: S <- R S[:r] in place, for R (m, r)."""
    m, d = S.shape
    r = R.shape[1]
    R = R.double()
    for block in column_blocks(m, d, block_bytes(S)):
        S[:, block] = R @ S[:r, block].double()


def nystrom(C: Tensor, R: Tensor, cutoff: float = 1e-7) -> tuple[Tensor, Tensor]:
    """Eigenvalues and coordinates of the Nyström approximation of a second moment M from its sketch Y = Ωᵀ M.

    M ~ Yᵀ (Y Ω)⁺ Y. With Y = R B, C = Y Ω (k, k) and B orthonormal this is Bᵀ (Rᵀ C⁺ R) B. C is symmetric up to
    rounding and positive semidefinite; eigenvalues below `cutoff` of the largest are rounding and are left out.
    Returns (λ (r,) falling, Z (r, r)): the eigenvectors are the rows of Zᵀ B.
    """
    C = (C + C.T).div_(2)
    theta, W = eigenpairs_(C)
    keep = theta > cutoff * theta[-1:].clamp_min(0)
    half = W.mul_(torch.where(keep, theta.abs().rsqrt(), 0.0)[:, None]) @ R
    del C, W
    values, Z = eigenpairs_(half.T @ half)
    return values.flip(0).clamp_min(0), Z.flip(0).T


SUM_WIDTH = 1024
"""Columns that a float32 product adds up on a CPU before float64 takes over.

A float32 sum over 100,000 terms is wrong by 1e-5; what is left of a projected update would then leak by as much.
"""


def coefficients(B: Tensor, v: Tensor) -> Tensor:
    """B v (r,) in v's precision, summed in float64 over short stretches; a basis may have fewer bits than v."""
    found = dispatch.coefficients(B, v)
    return (plain_coefficients(B, v) if found is None else found).to(v.dtype)


def combination(B: Tensor, c: Tensor, out: Tensor) -> Tensor:
    """out (d,) <- Bᵀ c, the twin of `coefficients`."""
    found = dispatch.combination(B, c, out)
    return plain_combination(B, c, out) if found is None else found


def plain_coefficients(B: Tensor, v: Tensor) -> Tensor:
    """`coefficients` in plain torch: a basis in fewer bits is widened block by block."""
    if v.dtype == torch.float64 or (B.device.type == "cuda" and B.dtype == v.dtype):
        return B.to(v.dtype) @ v
    c = torch.zeros(len(B), dtype=torch.float64, device=v.device)
    for start in range(0, len(v), SUM_WIDTH):
        block = slice(start, start + SUM_WIDTH)
        c += B[:, block].to(v.dtype) @ v[block]
    return c


def plain_combination(B: Tensor, c: Tensor, out: Tensor) -> Tensor:
    """`combination` in plain torch."""
    if B.dtype == c.dtype:
        return torch.mv(B.T, c, out=out)
    for block in column_blocks(len(B), B.shape[1], block_bytes(B)):
        out[block] = c @ B[:, block].to(c.dtype)
    return out
