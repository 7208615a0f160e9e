"""Atomic writing of files: write to a temporary name beside the target, sync to disk, rename.

A temporary file is locked as long as its process lives, so that those of killed processes are known and deleted by the
next save of the same file. Locks are advisory ones of POSIX systems; elsewhere, and for files of other machines, what
is a day old counts as left over.
"""

import contextlib
import errno
import hashlib
import os
import platform
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

OLD = 24 * 3600.0
"""Seconds after which a temporary file that cannot be known to be in use counts as left over."""

LONGEST = 200
"""Bytes of a name up to which it is part of the temporary one; file systems take 255 in all."""

_HERE = hashlib.blake2b(platform.node().encode(), digest_size=4).hexdigest()
"""This machine."""

_MADE = re.compile(r"(?:([0-9a-f]{8})-\d+-[0-9a-f]{16}|[a-z0-9_]{8})\.tmp")
"""What follows the name of the target: machine, process, random number; in version 0.1 a random word."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` to write to; on exit without an error it is synced and renamed to `path`.

    At any moment `path` is either the old file or the whole new one, even if the process is killed. A new file has the
    permissions that the umask leaves, an existing one keeps its own; of a symbolic link the target is replaced.

    Raises:
        OSError: it cannot be written; the message says why, and that nothing was changed.
    """
    try:
        target = _target(path)
        remove_left_by_killed(target)
        before = target.stat() if target.exists() else None
        temporary, handle = _create(target, before)
    except OSError as error:
        raise _explained(error, path) from error
    try:
        yield temporary
        _sync(temporary)
        if before is not None:
            _permit(temporary, before)
        os.replace(temporary, target)
    except OSError as error:
        _remove(temporary)
        raise _explained(error, path) from error
    except BaseException:
        _remove(temporary)
        raise
    finally:
        if handle is not None:
            os.close(handle)
    with contextlib.suppress(PermissionError):  # a folder that may be written but not read
        _sync(target.parent)


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raise OSError, with what to do, where it is clear already that `path` cannot be written."""
    try:
        target = _target(Path(path))
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    except OSError as error:
        raise _explained(error, Path(path)) from error


def remove_left_by_killed(target: Path) -> None:
    """Delete the temporary files of earlier writes of `target` whose processes were killed."""
    prefix = f".{_stem(target.name)}."
    with contextlib.suppress(PermissionError):  # a folder that may not be read is not cleaned
        for entry in os.scandir(target.parent):
            made = _MADE.fullmatch(entry.name.removeprefix(prefix)) if entry.name.startswith(prefix) else None
            if made is not None and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    _remove_if_left(Path(entry.path), of_here=made[1] == _HERE)


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files that killed processes left in `folder`; no process may be writing there."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the contents of `path` by `data`, atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


# ---------------------------------------------------------------- the target


def _target(path: Path) -> Path:
    """The file that is replaced: what `path` points to, if it is a symbolic link."""
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "it is a device or a pipe, not a file", str(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {str(target.parent)!r}", str(path))
    if len(os.fsencode(target.name)) > 255:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(path))
    return target


def _permit(temporary: Path, before: os.stat_result) -> None:
    """Give the new file the owner, where possible, and the permissions of the old one, and nobody more."""
    if os.name == "nt":
        return
    mode, now = stat.S_IMODE(before.st_mode), temporary.stat()
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.chown(temporary, before.st_uid, before.st_gid)
        except PermissionError:
            mode &= 0o707  # its group would be another one
    temporary.chmod(mode)


_ADVICE = {
    errno.ENOSPC: "free some space, or choose a path on another disk",
    errno.EDQUOT: "free some of your quota, or choose a path on another disk",
    errno.EFBIG: "the file is larger than this process may write (ulimit -f)",
    errno.EACCES: "you may not write there; choose another folder or ask for its permissions",
    errno.EPERM: "you may not write there; choose another folder or ask for its permissions",
    errno.EROFS: "the file system is read-only; choose a path on another one",
    errno.EISDIR: "it is a folder; add a file name",
    errno.ENOENT: "make it first, or correct the path",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "the symbolic link leads in a circle; remove it",
}


def _explained(error: OSError, path: Path) -> OSError:
    """The same kind of error, saying what could not be done and what to do."""
    reason = error.strerror or str(error)
    advice = _ADVICE.get(error.errno or 0, "see the reason")
    text = f"{reason}: nothing was written, and a file that was there is as it was; {advice}"
    return OSError(error.errno or errno.EIO, text, str(path))


# ---------------------------------------------------------------- the temporary file


def _stem(name: str) -> str:
    """What temporary names of a target begin with: its name, or a hash of a name that is too long to add to."""
    raw = os.fsencode(name)
    return name if len(raw) <= LONGEST else hashlib.blake2b(raw, digest_size=16).hexdigest()


def _create(target: Path, before: os.stat_result | None) -> tuple[Path, int | None]:
    """Create a temporary file and lock it; the kernel lets go of the lock when the process ends, however it ends.

    Where there are no locks the file is closed: an open one cannot be renamed there.
    """
    while True:
        name = f".{_stem(target.name)}.{_HERE}-{os.getpid()}-{secrets.token_hex(8)}.tmp"
        path = target.parent / name
        mode = 0o666 if before is None else 0o600  # what others may not read they cannot read while it is written
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), mode)
        if _lock(handle, wait=True) is None:
            os.close(handle)
            return path, None
        # Another process that was cleaning up may have locked and deleted it in between.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(handle).st_ino:
                return path, handle
        os.close(handle)


def _lock(handle: int, wait: bool) -> bool | None:
    """Whether the lock was free and is ours now; None where there are no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _remove_if_left(path: Path, of_here: bool) -> None:
    """Delete a temporary file that no process has locked, if that can be known, or that is old."""
    handle = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    try:
        free = _lock(handle, wait=False)
        old = time.time() - os.fstat(handle).st_mtime > OLD
        if (free and (of_here or old)) or (free is None and old):
            path.unlink()
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _sync(path: Path) -> None:
    """Flush a file, or the entries of a folder (not possible on Windows), to disk."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
