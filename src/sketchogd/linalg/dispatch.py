"""Products of a basis with a vector at the speed of memory, where torch's own leave some of it unused.

`native` is for CPUs (C, compiled on demand), `gemv` for GPUs (Triton, which comes with torch there). Both are optional:
each function here gives None where no kernel is for the tensors, and `linalg` then does the same in plain torch. With
SKETCHOGD_KERNELS=0 in the environment they are never used.
"""

import importlib.util
import os
from functools import cache

from torch import Tensor

from . import cpu

LEAST = 1 << 18
"""Entries below which starting a kernel costs more than it gains."""


def wanted() -> bool:
    """Whether kernels may be used at all."""
    return os.environ.get("SKETCHOGD_KERNELS", "1") != "0"


@cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def coefficients(B: Tensor, v: Tensor) -> Tensor | None:
    """B v (r,) in float64."""
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
    """out (d,) <- Bᵀ c."""
    if B.numel() < LEAST or not wanted() or not out.is_contiguous():
        return None
    if cpu.takes(B, c):
        library = cpu.library(B.dtype)
        return None if library is None else cpu.combination(library, B, c, out)
    if B.is_cuda and has_triton():
        from . import gpu

        return gpu.combination(B, c, out) if gpu.takes(B, c) else None
    return None
