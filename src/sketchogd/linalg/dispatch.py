"""Choice of a kernel for the products B v and Bᵀ c, B (r, d), which run at memory bandwidth where torch's do not.

`cpu` has the kernels for CPUs (C, compiled on demand), `gpu` those for GPUs (Triton, installed with torch there). Both
are optional: each function returns None if no kernel supports the tensors, and `dense` then uses plain torch. With
SKETCHOGD_KERNELS=0 in the environment no kernel is used.
"""

import importlib.util
import os
from functools import cache

from torch import Tensor

from . import cpu

LEAST = 1 << 18
"""Entries of B below which launching a kernel costs more than it gains."""


def wanted() -> bool:
    """Return whether the environment allows kernels."""
    return os.environ.get("SKETCHOGD_KERNELS", "1") != "0"


@cache
def has_triton() -> bool:
    """Return whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def coefficients(B: Tensor, v: Tensor) -> Tensor | None:
    """Return B v (r,) in float64, or None if no kernel applies."""
    if B.numel() < LEAST or not wanted():
        return None
    if cpu.takes(B, v):
        library = cpu.library(B.dtype)
        return None if library is None else cpu.coefficients(library, B, v)
    if B.is_cuda and has_triton():
        from . import gpu

        return gpu.coefficients(B, v) if gpu.takes(B, v) else None
    return None


def combination(B: Tensor, c: Tensor, out: Tensor) -> Tensor | None:
    """Write Bᵀ c into out (d,) and return it; None, with nothing written, if no kernel applies."""
    if B.numel() < LEAST or not wanted() or not out.is_contiguous():
        return None
    if cpu.takes(B, c):
        library = cpu.library(B.dtype)
        return None if library is None else cpu.combination(library, B, c, out)
    if B.is_cuda and has_triton():
        from . import gpu

        return gpu.combination(B, c, out) if gpu.takes(B, c) else None
    return None
