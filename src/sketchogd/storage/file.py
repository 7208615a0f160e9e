"""One file per memory: safetensors with JSON metadata, written atomically.

A file contains no code, and reading it runs none. The metadata holds the format version, the kind of memory with its
settings, counts, and the names and shapes of the parameters it belongs to. A checksum over metadata and tensors detects
damage that safetensors does not.
"""

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .. import schema
from ..errors import StorageError
from . import atomic

FORMAT = 1
_KEY = "sketchogd"


def write(path: str | os.PathLike[str], meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a file atomically: at any moment `path` is either the old file or the whole new one.

    A process that is killed while writing leaves a file `.NAME.*.tmp` beside `path`, which the next write deletes.

    Raises:
        OSError: it cannot be written; the message says why. What was there is as it was.
    """
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    text = json.dumps(meta, sort_keys=False)
    payload = save(plain, metadata={_KEY: text, "sha256": checksum(text, plain)})
    atomic.write_bytes(Path(path), payload)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return (metadata, tensors) of a file. The tensors may be views of the file: copy what is to outlive it.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it is a folder, or may not be read.
        StorageError: the file is damaged, not a memory file, or of a newer format.
    """
    name = os.fspath(path)
    _require_readable(name)
    try:
        with safe_open(name, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise StorageError(
            f"{name} is truncated or is not a memory file ({error}); restore it from a backup"
        ) from error
    if _KEY not in header:
        raise StorageError(
            f"{name} is a safetensors file, but not one that Protection.save wrote. Weights of a model are loaded by "
            "model.load_state_dict(safetensors.torch.load_file(path))"
        )
    try:
        meta = json.loads(header[_KEY])
    except (ValueError, RecursionError) as error:
        raise StorageError(f"the metadata of {name} is damaged ({error}); restore it from a backup") from error
    schema.record({"format": schema.whole(1)}, more=True)(meta, schema.TOP)
    if meta["format"] > FORMAT:
        raise StorageError(
            f"{name} has format {meta['format']}; this sketchogd reads up to {FORMAT}. Upgrade sketchogd"
        )
    if header.get("sha256") != checksum(header[_KEY], tensors):
        raise StorageError(f"the contents of {name} do not match their checksum; restore it from a backup")
    return meta, tensors


def _require_readable(name: str) -> None:
    """Raise unless there is a file that may be read and does not look like one of another kind."""
    try:
        if os.path.isdir(name):
            raise IsADirectoryError(errno.EISDIR, "this is a folder; a memory is one file, which save(path) wrote")
        if os.path.lexists(name) and os.path.exists(name) and not os.path.isfile(name):
            raise OSError(errno.EINVAL, "this is a device or a pipe; a memory is a file, which save(path) wrote")
        with open(name, "rb") as file:
            first = file.read(8)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"no memory file at {name}") from error
    except PermissionError as error:
        raise PermissionError(errno.EACCES, "you may not read this file; ask its owner, or chmod it", name) from error
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), name) from error
    if not first:
        raise StorageError(f"{name} is empty, so it is truncated; restore it from a backup")
    if first.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")) and first[2:8] != bytes(6):
        raise StorageError(
            f"{name} was written by torch.save or pickle and is not a memory file: those are written by "
            "protection.save(path). Weights of a model go back into it by torch's own load and model.load_state_dict"
        )


def checksum(text: str, tensors: dict[str, Tensor]) -> str:
    """The checksum of metadata, as text, and tensors. It detects damage; it is no signature, which anyone can make."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        t = tensors[name]
        digest.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        digest.update(t.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
