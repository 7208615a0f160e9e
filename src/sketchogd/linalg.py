"""Dense linear algebra on a few long rows, blockwise and in place.

Letters: S (m, d) is a sketch with m rows of length d, m << d; B (r, d) has orthonormal rows; S = R B with R (m, r).
Everything that touches the d columns goes block by block, so the extra memory is a few (m, m) matrices and one block.
A float32 Gram matrix cannot see singular values below 3e-4 of the largest, so Gram matrices are in float64.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK_BYTES = 8 << 20
"""Bytes of one float64 block of columns."""

WELL_CONDITIONED = 1e4
"""Up to this condition number one pass in float64 leaves rows orthonormal to 1e-8."""

RELATIVE_RANK = 5e-7
"""Singular values below this fraction of the largest are rounding of float32 rows, not directions."""


def column_blocks(rows: int, d: int, block_bytes: int = BLOCK_BYTES) -> Iterator[slice]:
    """Slices that cut d columns into blocks of about `block_bytes` bytes in float64.

    >>> list(column_blocks(2, 10, block_bytes=64))
    [slice(0, 4, None), slice(4, 8, None), slice(8, 10, None)]
    """
    width = max(1, block_bytes // (8 * max(1, rows)))
    for start in range(0, d, width):
        yield slice(start, min(start + width, d))


def squared_norm(S: Tensor) -> float:
    """‖S‖_F² in float64, without a copy in float64."""
    return float(sum(S[:, block].double().square().sum() for block in column_blocks(*S.shape)))


def gram(S: Tensor) -> Tensor:
    """S Sᵀ (m, m) in float64, one block of columns at a time."""
    m, d = S.shape
    K = torch.zeros(m, m, dtype=torch.float64, device=S.device)
    for block in column_blocks(m, d):
        X = S[:, block].double()
        K.addmm_(X, X.T)
    return K


def whiten(K: Tensor, relative_rank: float = RELATIVE_RANK) -> tuple[Tensor, Tensor]:
    """From the Gram matrix K = S Sᵀ the pair (T, R) with T S orthonormal and S = R (T S), rank-revealing.

    With K = U Λ Uᵀ, directions with √λ <= relative_rank √λ₁ dropped: T = Λ^(-1/2) Uᵀ (r, m), R = U Λ^(1/2) (m, r).
    The rows of T S are the right singular vectors of S, largest first.
    """
    values, vectors = torch.linalg.eigh(K)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    keep = values.sqrt() > relative_rank * values[:1].sqrt()
    root, U = values[keep].sqrt(), vectors[:, keep]
    return (U / root).T.contiguous(), U * root


def transform_(S: Tensor, T: Tensor) -> None:
    """S[:r] <- T S in place, computed in float64, and S[r:] <- 0, for T (r, m) with r <= m."""
    m, d = S.shape
    r = T.shape[0]
    for block in column_blocks(m, d):
        S[:r, block] = T @ S[:, block].double()
    S[r:] = 0


def polish_(B: Tensor, T: Tensor) -> Tensor:
    """Make the rows B = T S nearly orthonormal rows exactly so, in place; returns C (r, r) with B_before = C B_after.

    The error of whitening is that of float64 times the squared condition number, ‖T‖ / (smallest row of T); where
    that is below float32 rounding there is nothing to do and C = I. Otherwise the symmetric correction
    B <- (B Bᵀ)^(-1/2) B moves the rows as little as possible.
    """
    sizes = T.norm(dim=1)
    if len(sizes) == 0 or float(sizes.max() / sizes.min()) < WELL_CONDITIONED:
        return torch.eye(len(B), dtype=torch.float64, device=B.device)
    values, U = torch.linalg.eigh(gram(B))
    root = values.clamp_min(torch.finfo(torch.float64).tiny).sqrt()
    transform_(B, (U / root) @ U.T)
    return (U * root) @ U.T


def orthonormalise_(S: Tensor) -> Tensor:
    """Replace S by an orthonormal basis of its rows, in place; returns R (m, r) in float64 with S_before = R S[:r].

    S[:r] are the right singular vectors in falling order, S[r:] is zero, r is the numerical rank.

    >>> S = torch.tensor([[3.0, 4.0], [6.0, 8.0]])
    >>> R = orthonormalise_(S)
    >>> R.shape[1], S.abs()
    (1, tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]]))
    """
    T, R = whiten(gram(S))
    transform_(S, T)
    return R @ polish_(S[: len(T)], T)


def orthonormal_coordinates(C: Tensor, relative_rank: float = RELATIVE_RANK) -> Tensor:
    """An orthonormal basis (r, n) of the rows of a small matrix C (m, n), rank-revealing, by SVD."""
    _, values, V = torch.linalg.svd(C, full_matrices=False)
    return V[values > relative_rank * values[:1]]


def restore_(S: Tensor, R: Tensor) -> None:
    """Undo `orthonormalise_`: S <- R S[:r] in place, for R (m, r)."""
    m, d = S.shape
    r = R.shape[1]
    R = R.double()
    for block in column_blocks(m, d):
        S[:, block] = R @ S[:r, block].double()


def nystrom(C: Tensor, R: Tensor, cutoff: float = 1e-7) -> tuple[Tensor, Tensor]:
    """Eigenvalues and coordinates of the Nyström approximation of a second moment M from its sketch Y = Ωᵀ M.

    M ~ Yᵀ (Y Ω)⁺ Y. With Y = R B, C = Y Ω (k, k) and B orthonormal this is Bᵀ (Rᵀ C⁺ R) B. C is symmetric up to
    rounding and positive semidefinite; eigenvalues below `cutoff` of the largest are rounding and are left out.
    Returns (λ (r,) falling, Z (r, r)): the eigenvectors are the rows of Zᵀ B.
    """
    theta, W = torch.linalg.eigh((C + C.T) / 2)
    keep = theta > cutoff * theta[-1:].clamp_min(0)
    half = (W[:, keep] / theta[keep].sqrt()).T @ R
    values, Z = torch.linalg.eigh(half.T @ half)
    return values.flip(0).clamp_min(0), Z.flip(1)


SUM_WIDTH = 1024
"""Columns that a float32 product adds up on a CPU before float64 takes over.

A float32 sum over 100,000 terms is wrong by 1e-5; what is left of a projected update would then leak by as much.
"""


def coefficients(B: Tensor, v: Tensor) -> Tensor:
    """B v (r,) in v's precision, summed in float64 over blocks; a basis in fewer bits is widened block by block."""
    if v.dtype == torch.float64 or (B.device.type == "cuda" and B.dtype == v.dtype):
        return B.to(v.dtype) @ v
    c = torch.zeros(len(B), dtype=torch.float64, device=v.device)
    for start in range(0, len(v), SUM_WIDTH):
        block = slice(start, start + SUM_WIDTH)
        c += B[:, block].to(v.dtype) @ v[block]
    return c.to(v.dtype)


def combination(B: Tensor, c: Tensor, out: Tensor) -> Tensor:
    """out (d,) <- Bᵀ c, the twin of `coefficients`."""
    if B.dtype == c.dtype:
        return torch.mv(B.T, c, out=out)
    for block in column_blocks(*B.shape):
        out[block] = c @ B[:, block].to(c.dtype)
    return out
