"""One file per memory: safetensors with JSON metadata, written atomically.

A file contains no code, and reading it runs none. The metadata holds the format version, the kind of memory with its
settings, counts, and the names and shapes of the parameters it belongs to. A checksum over metadata and tensors detects
damage that safetensors does not.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..errors import StorageError
from . import atomic

FORMAT = 1
_KEY = "sketchogd"


def write(path: str | os.PathLike[str], meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a file atomically: at any moment `path` is either the old file or the whole new one.

    A process that is killed while writing leaves a file `.NAME.*.tmp` beside `path`, which can be deleted.
    """
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    text = json.dumps(meta, sort_keys=False)
    payload = save(plain, metadata={_KEY: text, "sha256": _checksum(text, plain)})
    atomic.write_bytes(Path(path), payload)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return (metadata, tensors) of a file.

    Raises:
        FileNotFoundError: there is no such file.
        StorageError: the file is damaged, not a memory file, or of a newer format.
    """
    name = os.fspath(path)
    if not os.path.isfile(name):
        raise FileNotFoundError(f"no memory file at {name}")
    try:
        with safe_open(name, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError) as error:
        raise StorageError(
            f"{name} is truncated or is not a memory file ({error}); restore it from a backup"
        ) from error
    if _KEY not in header:
        raise StorageError(f"{name} is a safetensors file, but not one that Protection.save wrote")
    try:
        meta = json.loads(header[_KEY])
        version = int(meta["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"the metadata of {name} is damaged: {error!r}") from error
    if version > FORMAT:
        raise StorageError(f"{name} has format {version}; this sketchogd reads up to {FORMAT}. Upgrade sketchogd")
    if header.get("sha256") != _checksum(header[_KEY], tensors):
        raise StorageError(f"the contents of {name} do not match their checksum; restore it from a backup")
    return meta, tensors


def _checksum(text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        t = tensors[name]
        digest.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        digest.update(t.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
