"""How well a basis represents a set of gradients: E_G(B) = Σ_g ‖g − BᵀB g‖², streamed over the gradients.

Letters: G (n, d) rows or batches of rows; B (r, d) orthonormal rows; σ singular values of G. Sums are in float64; rows
are converted one block at a time, so that G is never copied as a whole.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, overload

import torch
from torch import Tensor

from ..linalg.dense import column_blocks, gram

ROWS = 256
"""Rows of G processed at a time."""


@overload
def reconstruction_error(
    G: Tensor | Iterable[Tensor], B: Tensor, relative: bool = ..., per_example: Literal[False] = ...
) -> float: ...


@overload
def reconstruction_error(
    G: Tensor | Iterable[Tensor], B: Tensor, relative: bool = ..., *, per_example: Literal[True]
) -> Tensor: ...


def reconstruction_error(
    G: Tensor | Iterable[Tensor], B: Tensor, relative: bool = False, per_example: bool = False
) -> float | Tensor:
    """Return the reconstruction error E_G(B) = ‖G (I − BᵀB)‖_F² of gradients G in a basis B.

    Args:
        G: Rows (n, d), or an iterable of batches of rows, which is read once.
        B: Orthonormal rows (r, d).
        relative: Divide by ‖G‖_F², or, with `per_example`, each error by its ‖g‖²; rows of zeros have error 0.
        per_example: Return the errors of all rows, (n,) in float64, instead of their sum.

    Raises:
        ValueError: rows and basis differ in length.

    >>> G, B = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([[1.0, 0.0]])
    >>> reconstruction_error(G, B), round(reconstruction_error(G, B, relative=True), 4)
    (20.0, 0.6897)
    >>> reconstruction_error(G, B, per_example=True)
    tensor([16.,  4.], dtype=torch.float64)
    """
    pairs = [_squares(rows, B) for rows in _row_batches(G)]
    left = torch.cat([pair[0] for pair in pairs]) if pairs else torch.zeros(0, dtype=torch.float64)
    whole = torch.cat([pair[1] for pair in pairs]) if pairs else torch.zeros(0, dtype=torch.float64)
    if per_example:
        return torch.where(whole > 0, left / whole.clamp_min(torch.finfo(whole.dtype).tiny), 0.0) if relative else left
    error, energy = float(left.sum()), float(whole.sum())
    if not relative:
        return error
    return error / energy if energy else 0.0


def captured_energy(G: Tensor | Iterable[Tensor], B: Tensor) -> float:
    """Return the share of ‖G‖_F² that lies in the span of the basis: 1 − E_G(B) / ‖G‖_F², between 0 and 1.

    >>> captured_energy(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]]))
    0.36
    """
    return 1.0 - reconstruction_error(G, B, relative=True)


def principal_angles(A: Tensor, B: Tensor) -> Tensor:
    """Return the principal angles (min(r, s),) between the spans of orthonormal rows A (r, d) and B (s, d).

    In radians, smallest first. cos θ are the singular values of A Bᵀ, sin θ those of B minus its projection onto A;
    each angle is computed from the one that is accurate there, so that small angles are accurate, too. Unlike the
    reconstruction error, angles weigh all directions equally.

    >>> principal_angles(torch.eye(3)[:2], torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    tensor([0.0000, 1.5708], dtype=torch.float64)
    """
    if A.ndim != 2 or B.ndim != 2 or A.shape[1] != B.shape[1]:
        raise ValueError(f"expected two bases of the same row length, got {tuple(A.shape)} and {tuple(B.shape)}")
    if len(B) > len(A):
        A, B = B, A
    C = _products(B, A)
    left = torch.zeros(len(B), len(B), dtype=torch.float64, device=B.device)
    for block in column_blocks(len(A), A.shape[1]):
        X = B[:, block].double() - C @ A[:, block].double()
        left.addmm_(X, X.T)
    cosines = torch.linalg.svdvals(C).clamp(0, 1)
    sines = torch.linalg.eigvalsh(left).clamp(0, 1).sqrt()
    return torch.where(cosines > 0.5**0.5, sines.asin(), cosines.acos()).sort().values


def singular_values(G: Tensor) -> Tensor:
    """Return the singular values (min(n, d),) of G (n, d) in float64, largest first, from its smaller Gram matrix.

    Values below 1e-8 times the largest are rounding errors of the Gram matrix.

    >>> singular_values(torch.tensor([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]]))
    tensor([4., 3.], dtype=torch.float64)
    """
    n, d = G.shape
    if n <= d:
        K = gram(G)
    else:
        K = torch.zeros(d, d, dtype=torch.float64, device=G.device)
        for start in range(0, n, ROWS):
            X = G[start : start + ROWS].double()
            K.addmm_(X.T, X)
    return torch.linalg.eigvalsh(K).flip(0).clamp_min(0).sqrt()


def stable_rank(singular_values: Tensor) -> float:
    """Return the stable rank ‖G‖_F² / ‖G‖₂² = Σ σ² / σ_1², a smooth count of large singular values; 0 for G = 0.

    >>> stable_rank(torch.tensor([2.0, 2.0, 0.0]))
    2.0
    """
    squares = singular_values.double().square()
    top = float(squares.max()) if len(squares) else 0.0
    return float(squares.sum()) / top if top else 0.0


def _row_batches(G: Tensor | Iterable[Tensor]) -> Iterator[Tensor]:
    for batch in [G] if isinstance(G, Tensor) else G:
        if batch.ndim != 2:
            raise ValueError(f"expected rows of shape (n, d), got {tuple(batch.shape)}; one row per example")
        yield from batch.split(ROWS)


def _products(rows: Tensor, B: Tensor) -> Tensor:
    """Return rows Bᵀ (n, r) in float64, computed by blocks of columns."""
    C = torch.zeros(len(rows), len(B), dtype=torch.float64, device=rows.device)
    for block in column_blocks(len(rows) + len(B), B.shape[1]):
        C.addmm_(rows[:, block].double(), B[:, block].double().T)
    return C


def _squares(rows: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """Return ‖g − BᵀB g‖² and ‖g‖² of every row g.

    The residual is formed explicitly, by blocks of columns. ‖g‖² − ‖B g‖², a difference of nearly equal numbers, would
    count as error the 1e-7 by which a float32 basis deviates from orthonormality.
    """
    if B.ndim != 2 or rows.shape[1] != B.shape[1]:
        raise ValueError(f"rows of length {rows.shape[1]} do not fit a basis of shape {tuple(B.shape)}")
    C = _products(rows, B)
    left = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    whole = torch.zeros_like(left)
    for block in column_blocks(len(rows) + len(B), B.shape[1]):
        X = rows[:, block].double()
        whole += X.square().sum(1)
        left += torch.addmm(X, C, B[:, block].double(), alpha=-1).square().sum(1)
    return left, whole
