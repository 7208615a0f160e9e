"""CPU kernels for B v and Bᵀ c, B (r, d): `rows.c`, compiled on demand by the system's compiler and cached per user.

Nothing has to be installed: the first projection with a large basis runs `cc` (half a second), and later processes load
the result from the user's cache, if nobody else can write there (`compiled`). Without a compiler, or when it fails,
`library` returns None and plain torch is used. The code is compiled with OpenMP but not linked to it, so that it runs
on the OpenMP library that torch has loaded.
"""

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from . import compiled

SOURCE = Path(__file__).with_name("rows.c")
TYPES: dict[torch.dtype, tuple[str, ...]] = {torch.float32: (), torch.bfloat16: ("-DBFLOAT16",)}


def takes(B: Tensor, x: Tensor) -> bool:
    """Return whether the kernels support these tensors: B on a CPU with contiguous rows, x a float32 vector."""
    return B.device.type == "cpu" and B.dtype in TYPES and x.dtype == torch.float32 and B.stride(1) == 1


def coefficients(library: ctypes.CDLL, B: Tensor, v: Tensor) -> Tensor:
    """Return B v (r,) in float64."""
    c = torch.empty(len(B), dtype=torch.float64)
    _call(library.coefficients, B, v.contiguous(), c)
    return c


def combination(library: ctypes.CDLL, B: Tensor, c: Tensor, out: Tensor) -> Tensor:
    """Write Bᵀ c into out (d,) and return it.

    Args:
        library: The result of `library(B.dtype)`.
        B: Basis (r, d).
        c: Coefficients (r,), float32.
        out: Contiguous float32 vector (d,).
    """
    _call(library.combination, B, c.contiguous(), out)
    return out


def _call(function: "ctypes._NamedFuncPointer", B: Tensor, x: Tensor, out: Tensor) -> None:
    r, d = B.shape
    function(B.data_ptr(), B.stride(0), r, d, x.data_ptr(), out.data_ptr(), torch.get_num_threads())


@cache
def library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """Return the compiled kernels for a basis of this dtype, or None if they cannot be compiled or loaded."""
    loaded = compiled.load(SOURCE, TYPES[dtype])
    if loaded is None:
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_long
    for function in (loaded.coefficients, loaded.combination):
        function.argtypes = (pointer, number, number, number, pointer, pointer, ctypes.c_int)
        function.restype = None
    return loaded
