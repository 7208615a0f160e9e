"""Files that are either whole or not there: write to a temporary name beside the target, sync, rename."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; on leaving without an error it is synced and becomes `path`.

    A reader, or a process killed at any moment, sees the old file or the new one and never a piece of either.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _sync(temporary)
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files that killed processes left in `folder`; nobody may be writing there."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the contents of `path` by `data`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def _sync(path: Path) -> None:
    """Flush a file, or a folder's list of names where the system can, to the disk."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
