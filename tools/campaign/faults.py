"""Faults of disks and paths: an operation that cannot be done says why, and the old file is as it was."""

import contextlib
import errno
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import save_file

from tools.campaign.attempts import refused_or
from tools.campaign.children import Attempt
from tools.campaign.subjects import Subject

NOBODY = 65534


@contextlib.contextmanager
def failing(name: str, code: int, after: int = 0) -> Iterator[None]:
    """`os.NAME` fails with an error from its (after + 1)-th call on."""
    real, calls = getattr(os, name), [0]

    def fail(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] > after:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    with mock.patch.object(os, name, fail):
        yield


@contextlib.contextmanager
def full_at(written: int, code: int) -> Iterator[None]:
    """A file takes some bytes, then the disk is full."""

    def write(self: Path, data: bytes) -> int:
        with open(self, "wb") as file:
            file.write(data[:written])
        raise OSError(code, os.strerror(code))

    with mock.patch.object(Path, "write_bytes", write):
        yield


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """The kernel lets this process write 1000 bytes to a file."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@contextlib.contextmanager
def another_user() -> Iterator[None]:
    """As a user without rights, where this process is root; others have folders without the right to write."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


SAVING: dict[str, Callable[[], Any]] = {
    "full at once": lambda: full_at(0, errno.ENOSPC),
    "full in the middle": lambda: full_at(700, errno.ENOSPC),
    "quota": lambda: full_at(100, errno.EDQUOT),
    "input/output error": lambda: full_at(100, errno.EIO),
    "full at fsync": lambda: failing("fsync", errno.ENOSPC),
    "error at fsync": lambda: failing("fsync", errno.EIO),
    "rename": lambda: failing("replace", errno.EPERM),
    "read-only": lambda: failing("open", errno.EROFS),
    "limit of the kernel": small_files,
    "folder of another user": another_user,
}
"""What makes a save fail, by name."""


def _make_loop(folder: Path) -> Path:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    return folder / "a"


def _made(folder: Path, name: str, make: Callable[[Path], Any]) -> Path:
    make(folder / name)
    return folder / name


PATHS: dict[str, Callable[[Path], Any]] = {
    "a folder": lambda folder: folder,
    "no such folder": lambda folder: folder / "none" / "m.safetensors",
    "a file as a folder": lambda folder: _made(folder, "file", Path.touch) / "m.safetensors",
    "too long": lambda folder: folder / ("x" * 300),
    "a loop": _make_loop,
    "a pipe": lambda folder: _made(folder, "pipe", os.mkfifo),
    "a null byte": lambda folder: str(folder) + "/a\0b",
}
"""Paths to which nothing can be saved, and from which nothing can be loaded."""

OTHER_FILES: dict[str, Callable[[Path], Any]] = {
    "empty": Path.touch,
    "torch.save": lambda path: torch.save({"a": torch.ones(3)}, path),
    "torch.save of old": lambda path: torch.save({"a": 1}, path, _use_new_zipfile_serialization=False),
    "weights": lambda path: save_file({"a": torch.ones(3)}, path),
    "text": lambda path: path.write_text("{}"),
    "of another user": lambda path: os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0)),
}
"""Files that are no memories."""


def disks(folder: Path, seed: int) -> Attempt:
    """Attempts to save and to load where that is not possible."""
    kinds = [("save", name) for name in SAVING] + [("save to", name) for name in PATHS]
    kinds += [("load from", name) for name in PATHS] + [("load", name) for name in OTHER_FILES]
    memories = ("layers", "product", "pull")

    def attempt(i: int) -> str:
        (how, name), place = kinds[i % len(kinds)], folder / f"fault-{i}"
        place.mkdir(mode=0o755)
        folder.chmod(0o755)
        subject = Subject(memories[i // len(kinds) % 3], seed=i % 5)
        protection, path = subject.protection, place / "m.safetensors"
        protection.save(path)
        old, listed = path.read_bytes(), None
        with contextlib.ExitStack() as stack:
            target: Any = path
            if how == "save":
                stack.enter_context(SAVING[name]())
            elif how == "load":
                target = place / "other"
                OTHER_FILES[name](target)
                if name == "of another user":
                    stack.enter_context(another_user())
            else:
                target = PATHS[name](place)
            listed = sorted(os.listdir(place))
            operation = protection.load if how.startswith("load") else protection.save
            outcome = refused_or(subject, lambda: operation(target), (OSError, ValueError))
        if outcome is None:
            return f"undetected: {how} {name}"
        if path.read_bytes() != old or sorted(os.listdir(place)) != listed:
            return f"torn: {how} {name}"
        return outcome if outcome == "refused" else f"{outcome} [{how} {name}]"

    return attempt
