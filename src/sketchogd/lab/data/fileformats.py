"""The public file formats of image sets, from bytes to arrays: IDX (MNIST), the CIFAR-100 python batches, .npz parts.

Every reader checks what it reads. The CIFAR batches are pickles: they go through an unpickler that admits an array of
bytes and nothing else. `n` examples, `C` channels, `H` × `W` pixels.
"""

import contextlib
import io
import pickle
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

IMAGES_MAGIC = 0x00000803
LABELS_MAGIC = 0x00000801
CIFAR_FOLDER = "cifar-100-python"
PART_KEYS = ("x_train", "y_train", "x_test", "y_test")


class DataError(ValueError):
    """A data file is missing, damaged or not what its name says."""


def read_idx(data: bytes, name: str = "IDX data") -> np.ndarray:
    """Array in the IDX format: images (n, H, W) or labels (n,), both uint8.

    The header is big-endian: a magic number (0x803 for images, 0x801 for labels), then one 32-bit size per dimension.

    Raises:
        DataError: the magic number or the length is not that of the format.
    """
    magic = int.from_bytes(data[:4], "big")
    if magic not in (IMAGES_MAGIC, LABELS_MAGIC) or len(data) < 4:
        raise DataError(
            f"{name}: expected an IDX header (0x803 for images, 0x801 for labels), found {data[:4].hex()!r}"
        )
    dimensions = magic & 0xFF
    start = 4 + 4 * dimensions
    shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4))
    expected = start + int(np.prod(shape, dtype=np.int64))
    if len(data) != expected:
        raise DataError(f"{name}: the header says {shape}, so {expected} bytes; there are {len(data)}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _byte_dtype(kind: Any, *_: Any) -> np.dtype:
    """Stands for numpy.dtype in a CIFAR pickle: unsigned bytes are the only elements admitted."""
    if kind not in ("u1", b"u1"):
        raise pickle.UnpicklingError(f"an array of unsigned bytes ('u1') is expected, found elements of kind {kind!r}")
    return np.dtype("u1", copy=True)


# The function numpy writes into pickles of arrays; asking an array for it needs no private module.
_RECONSTRUCT = np.empty(0, np.uint8).__reduce__()[0]

_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _byte_dtype,
}


class ByteArrayUnpickler(pickle.Unpickler):
    """Unpickler that admits containers, numbers, strings and numpy arrays of unsigned bytes; no other name resolves."""

    def find_class(self, module: str, name: str) -> Any:
        """The object a pickle names, if it is one of the few that a CIFAR batch needs."""
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"refused: the pickle asks for {module}.{name}") from None


def read_cifar_batch(data: bytes, name: str = "CIFAR-100 batch") -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) uint8 and fine labels (n,) uint8 of one file of the python archive (`train` or `test`).

    Raises:
        DataError: the pickle asks for anything but an array of bytes, or does not hold `data` and `fine_labels`.
    """
    try:
        batch = ByteArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a damaged pickle may raise nearly anything
        raise DataError(f"{name}: not a CIFAR-100 batch: {error}") from error
    pixels = batch.get(b"data") if isinstance(batch, dict) else None
    labels = batch.get(b"fine_labels") if isinstance(batch, dict) else None
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (3 * 32 * 32,):
        raise DataError(f"{name}: expected `data` (n, 3072) uint8")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not all(type(v) is int for v in labels):
        raise DataError(f"{name}: expected `fine_labels`, one int for each of {len(pixels)} images")
    if not all(0 <= v < 100 for v in labels):
        raise DataError(f"{name}: expected fine labels from 0 to 99, found {min(labels)} to {max(labels)}")
    return pixels.reshape(-1, 3, 32, 32), np.array(labels, np.uint8)


def read_cifar_archive(path: Path) -> dict[str, bytes]:
    """The members `train` and `test` of cifar-100-python.tar.gz, as bytes; nothing is extracted to the disk."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                for name in ("train", "test"):
                    source = archive.extractfile(member) if member.name == f"{CIFAR_FOLDER}/{name}" else None
                    if source is not None:
                        found[name] = source.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{path}: not a readable tar.gz: {error}") from error
    if len(found) < 2:
        raise DataError(
            f"{path}: expected the members {CIFAR_FOLDER}/train and {CIFAR_FOLDER}/test, found {sorted(found)}"
        )
    return found


def read_parts(paths: Sequence[Path]) -> dict[str, np.ndarray]:
    """Arrays of one set cut into .npz parts, put together in the order given; images leave as (n, C, H, W).

    A part has x_train, x_test (n, H, W, C) uint8 and y_train, y_test (n,) integers; a part without examples is allowed.

    Raises:
        DataError: a part has other keys, types or shapes.
    """
    pieces: dict[str, list[np.ndarray]] = {key: [] for key in PART_KEYS}
    for path in paths:
        part = read_npz(path, PART_KEYS)
        for split in ("train", "test"):
            x, y = part[f"x_{split}"], part[f"y_{split}"]
            if len(x) != len(y):
                raise DataError(f"{path}: x_{split} has {len(x)} images and y_{split} {len(y)} labels")
            if len(x) == 0:
                continue
            if x.dtype != np.uint8 or x.ndim != 4 or y.ndim != 1 or y.dtype.kind not in "iu":
                raise DataError(
                    f"{path}: expected x_{split} (n, H, W, C) uint8 and y_{split} (n,) of integers, "
                    f"found {x.shape} {x.dtype} and {y.shape} {y.dtype}"
                )
            pieces[f"x_{split}"].append(x.transpose(0, 3, 1, 2))
            pieces[f"y_{split}"].append(y)
    empty = [key for key, arrays in pieces.items() if not arrays]
    if empty:
        raise DataError(f"no examples for {', '.join(empty)} in {', '.join(map(str, paths)) or 'no files'}")
    return {key: np.concatenate(arrays) for key, arrays in pieces.items()}


def read_npz(source: Path | io.BytesIO, keys: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The named arrays of an .npz file, by default all, without pickles.

    Raises:
        DataError: the file is not an .npz, lacks a key, or holds Python objects.
    """
    label = "the archive" if isinstance(source, io.BytesIO) else str(source)
    try:
        # Opened here, since numpy leaves a damaged file open.
        with (
            contextlib.nullcontext(source) if isinstance(source, io.BytesIO) else open(source, "rb") as file,
            np.load(file, allow_pickle=False) as archive,
        ):
            return {key: archive[key] for key in (archive.files if keys is None else keys)}
    except KeyError as error:
        raise DataError(f"{label}: expected the arrays {', '.join(keys or ())}: {error}") from error
    except Exception as error:  # zip, zlib and numpy each have their own way to say that bytes are damaged
        raise DataError(f"{label}: not a readable .npz: {error}") from error
