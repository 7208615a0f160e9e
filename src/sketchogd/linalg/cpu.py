"""The products of `rows.c` on a CPU, compiled on demand with the system's compiler and kept in the user's cache.

There is nothing to install: the first projection of a large basis runs `cc` (half a second), later processes find the
result in the cache. Where there is no compiler, or it cannot do it, `library` gives None and plain torch is used.
Compiled with OpenMP but not linked to it: the threads are those of the OpenMP library that torch has loaded.
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
    """Whether the compiled products are for these tensors: rows without gaps on a CPU, a float32 vector."""
    return B.device.type == "cpu" and B.dtype in TYPES and x.dtype == torch.float32 and B.stride(1) == 1


def coefficients(library: ctypes.CDLL, B: Tensor, v: Tensor) -> Tensor:
    """B v (r,) in float64."""
    c = torch.empty(len(B), dtype=torch.float64)
    _call(library.coefficients, B, v.contiguous(), c)
    return c


def combination(library: ctypes.CDLL, B: Tensor, c: Tensor, out: Tensor) -> Tensor:
    """out (d,) <- Bᵀ c."""
    _call(library.combination, B, c.contiguous(), out)
    return out


def _call(function: "ctypes._NamedFuncPointer", B: Tensor, x: Tensor, out: Tensor) -> None:
    r, d = B.shape
    function(B.data_ptr(), B.stride(0), r, d, x.data_ptr(), out.data_ptr(), torch.get_num_threads())


@cache
def library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """The compiled products for rows of this type, or None where they cannot be had."""
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
    """The shared library of `rows.c` for this processor, compiled unless it is in the folder already.

    Two processes may do so at once: each writes to a name of its own and renames. Raises OSError or CalledProcessError.
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
    """Where compiled kernels are kept: $XDG_CACHE_HOME/sketchogd, by default ~/.cache/sketchogd."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "sketchogd"


def processor() -> str:
    """What instructions this processor has; machines that share a home folder may differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    told = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return " ".join((platform.system(), platform.machine(), *sorted(told)))
