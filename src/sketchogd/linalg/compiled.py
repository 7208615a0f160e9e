"""C code compiled by the system's compiler, and the folder in which the user's processes keep it.

Loading a shared object runs it, so one is loaded only from a file and a folder that belong to this user and that nobody
else may write, and only if its contents have the checksum in its name. The rest of the name is a hash of source, flags,
compiler and processor. Whatever is broken, foreign or missing is compiled anew; where nothing can be kept (no home,
read-only, full), it is compiled in a private temporary folder and loaded from there.
"""

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from ..errors import ProtectionWarning

FLAGS = ("-O3", "-march=native", "-fopenmp", "-fPIC")
SECONDS = 30.0
"""Time that the compiler has, which needs half a second."""


def load(source: Path, options: Sequence[str] = ()) -> ctypes.CDLL | None:
    """Return a C file as a loaded library, or None if there is no compiler or it fails.

    Warns with a ProtectionWarning if the compiler hangs, and if the user's folder could be written by others.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or sys.platform == "win32":
        return None
    folder = usable(cache_folder())
    key = key_of(compiler, source, options)
    kept = None if folder is None else _loaded(find(folder, key))
    if kept is not None:
        return kept
    try:
        with tempfile.TemporaryDirectory(prefix="sketchogd-") as scratch:  # a loaded library outlives its file
            path = compiled(compiler, source, options, Path(scratch))
            installed = None
            if folder is not None:
                with contextlib.suppress(OSError):
                    installed = install(path, folder, key)
            return _loaded(installed) or _loaded(path)
    except subprocess.TimeoutExpired:
        warnings.warn(
            f"the compiler {compiler} did not finish within {SECONDS:.0f} s, so projections run without the compiled "
            "kernels, more slowly. Set CC to a compiler that works, or SKETCHOGD_KERNELS=0 to do without",
            ProtectionWarning,
            stacklevel=2,
        )
    except (OSError, subprocess.CalledProcessError):
        pass
    return None


def _loaded(path: Path | None) -> ctypes.CDLL | None:
    """The library in a file, or None where the system refuses, as on a disk mounted noexec."""
    try:
        return None if path is None else ctypes.CDLL(str(path))
    except OSError:
        return None


# ---------------------------------------------------------------- the folder


def cache_folder() -> Path | None:
    """Return the folder of compiled code, $XDG_CACHE_HOME/sketchogd or ~/.cache/sketchogd; None without a home."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(home):
        return Path(home) / "sketchogd"
    try:
        return Path.home() / ".cache" / "sketchogd"
    except RuntimeError:  # no HOME, and the system does not know this user
        return None


def usable(folder: Path | None) -> Path | None:
    """Return the folder, made if need be; None if it cannot be made, or with a warning if others could write to it."""
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = folder.resolve()
        own = _ours(folder.stat()) and not any(_open_to_all(parent.stat()) for parent in folder.parents)
    except OSError:
        return None
    if own:
        return folder
    warnings.warn(
        f"{folder} belongs to another user or can be written by others, so compiled kernels in it are not loaded but "
        f"compiled by every process. Make it yours, chmod 700 {folder}, or let XDG_CACHE_HOME name another folder",
        ProtectionWarning,
        stacklevel=3,
    )
    return None


def _ours(status: os.stat_result) -> bool:
    """Whether a file or folder belongs to this user and nobody else may write to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _open_to_all(status: os.stat_result) -> bool:
    """Whether anybody may rename what is in a folder."""
    return bool(status.st_mode & stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX


def find(folder: Path, key: str) -> Path | None:
    """Return the file with this key in the folder, if it is this user's and has the checksum in its name."""
    for path in sorted(folder.glob(f"{key}-*.so")):
        with contextlib.suppress(OSError):
            if stat.S_ISREG(path.lstat().st_mode) and _ours(path.lstat()) and path.name == _named(key, path):
                return path
    return None


def install(built: Path, folder: Path, key: str) -> Path:
    """Copy a shared object into the folder under its name, whole or not at all; others with its key are removed."""
    path = folder / _named(key, built)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=".tmp", delete=False) as file:
        try:
            file.write(built.read_bytes())
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
    for other in folder.glob(f"{key}-*.so"):
        if other != path:
            with contextlib.suppress(OSError):
                other.unlink()
    return path


def _named(key: str, path: Path) -> str:
    return f"{key}-{hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()}.so"


# ---------------------------------------------------------------- compiling


def key_of(compiler: str, source: Path, options: Sequence[str]) -> str:
    """Return the name under which compiled code is kept: a hash of all that it depends on."""
    told = os.stat(compiler)
    which = (os.path.realpath(compiler), str(told.st_size), str(told.st_mtime_ns))
    words = "/".join((processor(), *which, *FLAGS, *options)).encode()
    return f"{source.stem}-{hashlib.blake2b(words + source.read_bytes(), digest_size=12).hexdigest()}"


def compiled(compiler: str, source: Path, options: Sequence[str], scratch: Path) -> Path:
    """Return the path of a C file compiled for this processor, in the folder `scratch`.

    Raises OSError or subprocess.CalledProcessError when compiling fails, TimeoutExpired after `SECONDS`.
    """
    made, linked = scratch / "made.o", scratch / "linked.so"
    end = time.monotonic() + SECONDS
    for command in (
        (compiler, *FLAGS, *options, "-c", str(source), "-o", str(made)),
        (compiler, "-shared", str(made), "-o", str(linked)),
    ):
        _run(command, end - time.monotonic())
    return linked


def _run(command: Sequence[str], seconds: float) -> None:
    """Run a command quietly; when the time is over, end it and every process that it started."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        status = process.wait(seconds)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if status:
        raise subprocess.CalledProcessError(status, command)


def processor() -> str:
    """Describe this processor and its instruction sets, since machines that share a home folder may differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    told = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return " ".join((platform.system(), platform.machine(), *sorted(told)))
