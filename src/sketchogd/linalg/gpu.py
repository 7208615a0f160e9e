"""GPU kernels for the products of a few long rows B (r, d) with a vector, in Triton; their time is that of reading B.

A program has a tile of ROWS × BLOCK entries and moves it STEPS times, along the rows for B v and down the rows for
Bᵀ c. It sums in float32 over these few steps, then in float64 over the tile; the partial sums of the programs are added
afterwards. Nothing depends on the order in which programs run, so that results are reproducible bit by bit.

Imported only if Triton is installed; `dense` has the products in plain torch.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, BLOCK, STEPS = 4, 1024, 4
"""The tile of B v and the number of steps it moves."""

TALL_ROWS, TALL_BLOCK, PROGRAMS = 16, 256, 4096
"""The tile of Bᵀ c; its steps are divided into parts such that there are about PROGRAMS programs."""

TYPES = (torch.float32, torch.bfloat16, torch.float16)


def takes(B: Tensor, x: Tensor) -> bool:
    """Return whether the kernels support these tensors: B on a GPU with contiguous rows, x a float32 vector."""
    return B.is_cuda and B.dtype in TYPES and x.dtype == torch.float32 and B.stride(1) == 1


def aligned(B: Tensor) -> int:
    """Return the entries per load: the largest power of two, up to 16 bytes, dividing row length and row stride."""
    return math.gcd(B.shape[1], B.stride(0), 16 // B.element_size())


@triton.jit
def _row_products(  # type: ignore[no-untyped-def]
    B,
    v,
    partial,
    r,
    width,
    stride,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
):
    # width and stride are in units of ALIGN entries, which tells the compiler what divides them.
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    starts = rows.to(tl.int64) * (stride * ALIGN)
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    for step in range(STEPS):
        columns = (part * STEPS + step) * BLOCK + tl.arange(0, BLOCK)
        inside = columns < width * ALIGN
        x = tl.load(v + columns, mask=inside, other=0.0)
        b = tl.load(B + starts[:, None] + columns[None, :], mask=(rows < r)[:, None] & inside[None, :], other=0.0)
        sums += b.to(tl.float32) * x[None, :]
    tl.store(partial + part * r + rows, tl.sum(sums.to(tl.float64), axis=1), mask=rows < r)


@triton.jit
def _column_products(  # type: ignore[no-untyped-def]
    B,
    c,
    partial,
    r,
    width,
    stride,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
):
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.program_id(1)
    inside = columns < width * ALIGN
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    for step in range(STEPS):
        rows = (part * STEPS + step) * ROWS + tl.arange(0, ROWS)
        starts = rows.to(tl.int64) * (stride * ALIGN)
        w = tl.load(c + rows, mask=rows < r, other=0.0)
        b = tl.load(B + starts[:, None] + columns[None, :], mask=(rows < r)[:, None] & inside[None, :], other=0.0)
        sums += b.to(tl.float32) * w[:, None]
    total = tl.sum(sums.to(tl.float64), axis=0).to(tl.float32)
    tl.store(partial + part.to(tl.int64) * (width * ALIGN) + columns, total, mask=inside)


def coefficients(B: Tensor, v: Tensor, rows: int = ROWS, block: int = BLOCK, steps: int = STEPS) -> Tensor:
    """Return B v (r,) in float64.

    Args:
        B: Basis (r, d).
        v: Vector (d,), float32.
        rows: Rows of the tile; to be changed for measurements only, as the following.
        block: Columns of the tile.
        steps: Steps that a program moves its tile.
    """
    r, d = B.shape
    align = aligned(B)
    grid = (triton.cdiv(r, rows), triton.cdiv(d, block * steps))
    partial = torch.empty(grid[1], r, dtype=torch.float64, device=B.device)
    with torch.cuda.device_of(B):
        _row_products[grid](B, v.contiguous(), partial, r, d // align, B.stride(0) // align, align, rows, block, steps)
    return partial.sum(0)


def combination(
    B: Tensor, c: Tensor, out: Tensor, rows: int = TALL_ROWS, block: int = TALL_BLOCK, programs: int = PROGRAMS
) -> Tensor:
    """Write Bᵀ c into out (d,) and return it.

    Args:
        B: Basis (r, d).
        c: Coefficients (r,), float32.
        out: Contiguous float32 vector (d,).
        rows: Rows of the tile; to be changed for measurements only, as the following.
        block: Columns of the tile.
        programs: Approximate number of programs.
    """
    r, d = B.shape
    align = aligned(B)
    blocks = triton.cdiv(d, block)
    most = triton.cdiv(r, rows)
    steps = triton.cdiv(most, min(most, max(1, programs // blocks)))
    parts = triton.cdiv(most, steps)
    partial = out if parts == 1 else torch.empty(parts, d, dtype=torch.float32, device=B.device)
    with torch.cuda.device_of(B):
        _column_products[(blocks, parts)](
            B, c.contiguous(), partial, r, d // align, B.stride(0) // align, align, rows, block, steps
        )
    return out if parts == 1 else torch.sum(partial, 0, out=out)
