"""The public file formats of image sets, from bytes to arrays: IDX (MNIST), the CIFAR-100 python batches, .npz parts.

Every reader checks what it reads, and none unpacks more bytes than a file of its kind can have. The CIFAR batches are
pickles, which `pickles` reads without unpickling. `n` examples, `C` channels, `H` × `W` pixels.
"""

import gzip
import io
import math
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from sketchogd.lab.data import pickles

IMAGES_MAGIC = 0x00000803
LABELS_MAGIC = 0x00000801
CIFAR_FOLDER = "cifar-100-python"
CIFAR_BYTES = 190_000_000
"""More than the files of the CIFAR-100 archive have together, unpacked (186,299,625 and a small third one)."""
NPZ_BYTES = 1 << 28
"""More than the arrays of any .npz that is read have together: all of CIFAR is 184 MB."""
PART_KEYS = ("x_train", "y_train", "x_test", "y_test")


class DataError(ValueError):
    """A data file is missing, damaged or not what its name says."""


def unpacked(data: bytes, limit: int, name: str = "gzip data") -> bytes:
    """The contents of gzipped data, if they are at most `limit` bytes.

    Raises:
        DataError: the data is damaged or unpacks to more.
    """
    try:
        with gzip.open(io.BytesIO(data)) as packed:
            content = packed.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name}: damaged ({error})") from error
    if len(content) > limit:
        raise DataError(f"{name}: unpacks to more than {limit:,} bytes, more than such a file has")
    return content


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
    expected = start + math.prod(shape)
    if len(data) != expected:
        raise DataError(f"{name}: the header says {shape}, so {expected} bytes; there are {len(data)}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_cifar_batch(data: bytes, name: str = "CIFAR batch") -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) uint8 and labels (n,) uint8 of one file of a python archive.

    The labels are the `fine_labels` of CIFAR-100 (`train` and `test`) or the `labels` of CIFAR-10 (`data_batch_1`, …).

    Raises:
        DataError: the bytes are not a pickle of the published form, or lack `data` or labels.
    """
    try:
        batch = pickles.read(data)
    except pickles.PickleError as error:
        raise DataError(f"{name}: not a CIFAR batch: {error}") from error
    key, classes = (b"fine_labels", 100) if b"fine_labels" in batch else (b"labels", 10)
    pixels, labels = batch.get(b"data"), batch.get(key)
    if not isinstance(pixels, np.ndarray) or pixels.shape[1:] != (3 * 32 * 32,):
        raise DataError(f"{name}: expected `data` (n, 3072) uint8")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not all(type(v) is int for v in labels):
        raise DataError(f"{name}: expected `{key.decode()}`, one int for each of {len(pixels)} images")
    if not all(0 <= v < classes for v in labels):
        raise DataError(f"{name}: expected labels from 0 to {classes - 1} in `{key.decode()}`")
    return pixels.reshape(-1, 3, 32, 32), np.array(labels, np.uint8)


def read_cifar_archive(path: Path) -> dict[str, bytes]:
    """The members `train` and `test` of cifar-100-python.tar.gz, as bytes; nothing is extracted to the disk.

    Raises:
        DataError: the file is no tar.gz, a member is a link or has a name outside the archive's folder, the contents
            are larger than those published, or one of the two is missing.
    """
    found: dict[str, bytes] = {}
    try:
        with (
            gzip.open(path) as packed,
            tarfile.open(fileobj=io.BufferedReader(_Bounded(packed, str(path))), mode="r|") as archive,
        ):
            for member in archive:
                _require_plain(member, str(path))
                name = member.name.removeprefix(f"{CIFAR_FOLDER}/")
                source = archive.extractfile(member)
                if source is not None and name in ("train", "test") and name != member.name:
                    found[name] = source.read()
    except DataError:
        raise
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, OverflowError) as error:
        raise DataError(f"{path}: not a readable tar.gz: {error}") from error
    if len(found) < 2:
        raise DataError(
            f"{path}: expected the members {CIFAR_FOLDER}/train and {CIFAR_FOLDER}/test, found {sorted(found)}"
        )
    return found


class _Bounded(io.RawIOBase):
    """A stream that ends with an error where more comes than the published archive holds."""

    def __init__(self, source: io.BufferedIOBase, name: str) -> None:
        self.source, self.name = source, name
        self.left = CIFAR_BYTES

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with the next bytes; returns how many there were."""
        count = self.source.readinto(buffer)
        self.left -= count
        if self.left < 0:
            raise DataError(f"{self.name}: unpacks to more than {CIFAR_BYTES:,} bytes, so it is not the published one")
        return count


def _require_plain(member: tarfile.TarInfo, archive: str) -> None:
    """Raise DataError unless a member is a file or folder with a name inside the archive's folder."""
    if not (member.isfile() or member.isdir()):
        raise DataError(f"{archive}: {member.name!r} is a link or a device; the published archive has files only")
    parts = PurePosixPath(member.name).parts
    if member.name.startswith("/") or ".." in parts or "\\" in member.name:
        raise DataError(f"{archive}: {member.name!r} is a name outside the archive's folder")


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


def read_npz(
    source: Path | io.BytesIO, keys: Sequence[str] | None = None, limit: int = NPZ_BYTES
) -> dict[str, np.ndarray]:
    """The named arrays of an .npz file, by default all: booleans and numbers, of at most `limit` bytes together.

    Raises:
        DataError: the file is not an .npz, lacks a key, holds anything but plain numbers, or unpacks to more bytes.
    """
    label = "the archive" if isinstance(source, io.BytesIO) else str(source)
    try:
        with zipfile.ZipFile(source) as archive:
            there = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            chosen = {key: there[key] for key in (there if keys is None else keys)}
            if sum(info.file_size for info in chosen.values()) > limit:
                raise DataError(f"{label}: unpacks to more than {limit:,} bytes, more than such a file has")
            return {key: _array(archive.read(info)) for key, info in chosen.items()}
    except DataError:
        raise
    except KeyError as error:
        raise DataError(f"{label}: expected the arrays {', '.join(keys or ())}: {error}") from error
    except Exception as error:  # zip, zlib and numpy each have their own way to say that bytes are damaged
        raise DataError(f"{label}: not a readable .npz: {error}") from error


def _array(data: bytes) -> np.ndarray:
    """The array of an .npy file, whose header must fit its bytes."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = header(file)
    rest = memoryview(data)[file.tell() :]
    if dtype.kind not in "biuf" or any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != len(rest):
        raise DataError(f"an array of {len(rest)} bytes says that it is {shape} of {dtype}")
    return np.frombuffer(rest, dtype).reshape(shape, order="F" if by_columns else "C").copy()
