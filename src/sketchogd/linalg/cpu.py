"""CPU kernels for B v and Bᵀ c, B (r, d): `rows.c`, compiled on demand by the system's compiler and cached per user.

Nothing has to be installed: the first projection with a large basis runs `cc` (half a second), and later processes load
the result from the cache. Without a compiler, or when it fails, `library` returns None and plain torch is used. The
code is compiled with OpenMP but not linked to it, so that it runs on the OpenMP library that torch has loaded.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("rows.c")
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fPIC")
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
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    try:
        path = built(compiler, TYPES[dtype], cache_folder())
        loaded = ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError):
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_long
    for function in (loaded.coefficients, loaded.combination):
        function.argtypes = (pointer, number, number, number, pointer, pointer, ctypes.c_int)
        function.restype = None
    return loaded


def built(compiler: str, options: tuple[str, ...], folder: Path) -> Path:
    """Return the path of `rows.c` compiled for this processor, compiling it unless it is already in the folder.

    Several processes may compile at once: each writes to a temporary name, then renames. Raises OSError or
    subprocess.SubprocessError when compiling fails.
    """
    text = SOURCE.read_bytes()
    key = "/".join((processor(), compiler, *FLAGS, *options)).encode() + text
    path = folder / f"rows-{hashlib.blake2b(key, digest_size=12).hexdigest()}.so"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        compiled, linked = os.path.join(scratch, "rows.o"), os.path.join(scratch, "rows.so")
        for command in (
            (compiler, *FLAGS, *options, "-c", str(SOURCE), "-o", compiled),
            (compiler, "-shared", compiled, "-o", linked),
        ):
            subprocess.run(command, check=True, capture_output=True, timeout=60)
        os.replace(linked, path)
    return path


def cache_folder() -> Path:
    """Return the folder of compiled kernels: $XDG_CACHE_HOME/sketchogd, by default ~/.cache/sketchogd."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "sketchogd"


def processor() -> str:
    """Describe this processor and its instruction sets, since machines that share a home folder may differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    told = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return " ".join((platform.system(), platform.machine(), *sorted(told)))
