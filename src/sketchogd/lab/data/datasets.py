"""Labelled images, and sentences: the paper's MNIST subset from inside the package, others from a folder or downloaded.

`load("mnist-subset")` needs nothing. The other names are read from a folder (the argument, or the environment variable
SKETCHOGD_DATA) that holds the files as they are published, either directly or in a subfolder with the set's name. Every
published file is compared with its checksum before it is read. `n` examples, `C` channels, `H` × `W` pixels.
"""

import hashlib
import io
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sketchogd.lab.data import downloads, sources, weights
from sketchogd.lab.data.fileformats import (
    CIFAR_FOLDER,
    PART_KEYS,
    DataError,
    read_cifar_archive,
    read_cifar_batch,
    read_idx,
    read_npz,
    read_parts,
    unpacked,
)
from sketchogd.lab.data.texts import LabelledTokens, load_clinc150

EMBEDDED = Path(__file__).parent / "mnist_subset.npz"
EMBEDDED_SHA256 = "4722ca309b1105811671be7d0bf052201310e5f984a67754366cad1aac284423"
NAMES = ("mnist-subset", "mnist", "fashion-mnist", "cifar100", "clinc150")
ENVIRONMENT = "SKETCHOGD_DATA"
CIFAR_PER_CLASS = {"train": 500, "test": 100}


@dataclass(frozen=True)
class LabelledImages:
    """A training and a test set of images with class labels.

    x_train, x_test: uint8 (n, C, H, W); y_train, y_test: int64 (n,) in 0 … classes − 1.
    """

    x_train: torch.Tensor
    y_train: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor
    name: str
    classes: int

    def __post_init__(self) -> None:
        for split, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            if x.dtype != torch.uint8 or x.ndim != 4:
                raise DataError(f"{self.name}: x_{split} must be uint8 (n, C, H, W), is {x.dtype} {tuple(x.shape)}")
            if y.dtype != torch.int64 or y.shape != x.shape[:1]:
                raise DataError(f"{self.name}: y_{split} must be int64 ({len(x)},), is {y.dtype} {tuple(y.shape)}")
            if len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.classes:
                raise DataError(f"{self.name}: y_{split} must lie in 0 … {self.classes - 1}")
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise DataError(f"{self.name}: training and test images have different shapes")


@dataclass(frozen=True)
class Availability:
    """One row of the table of data sets: is it here, did its checksums fit, and if not, what to do."""

    name: str
    ready: bool
    verified: bool
    where: str
    note: str


def load(name: str, folder: str | Path | None = None) -> LabelledImages | LabelledTokens:
    """The data set `name`, one of `NAMES`: images, or for "clinc150" sentences as tokens.

    Args:
        name: "mnist-subset" (embedded: 10,000 to train, 10,000 to test), "mnist", "fashion-mnist", "cifar100" or
            "clinc150".
        folder: where the files are; by default the folder that SKETCHOGD_DATA names. Not used for the embedded set.

    Raises:
        DataError: unknown name, files missing (the message says which, and where to put them), or a wrong checksum.
    """
    _known(name)
    if name == "mnist-subset":
        return _load_embedded()
    root = _root(name, folder)
    if name == "clinc150":
        return load_clinc150(_find(name, root), root)
    return _load_cifar100(root) if name == "cifar100" else _load_idx(name, root)


def download(name: str, folder: str | Path) -> list[Path]:
    """Fetch the published files of `name`, a data set or weights, over HTTPS into folder/name.

    What is there and verified stays as it is.

    A file is checked against its SHA-256 and only then gets its name. A download that is cut off, larger than the
    published file, or takes more than `downloads.SECONDS` leaves nothing behind.

    Returns:
        The paths of the files.

    Raises:
        DataError: the set has no download, or a file was cut off, too large, too slow or of another checksum.
        OSError: the network or the disk failed.
    """
    if name not in sources.WEIGHTS:
        _known(name)
    if name == "mnist-subset":
        raise DataError("mnist-subset is inside the package: there is nothing to download")
    if name in sources.MADE:
        raise DataError(f"{name} cannot be downloaded as it is read. {sources.instructions(name, Path(folder))}")
    target = Path(folder) / name
    target.mkdir(parents=True, exist_ok=True)
    paths = []
    for published in sources.PUBLISHED[name]:
        path = target / published.name
        if not (path.is_file() and path.stat().st_size <= published.limit and published.admits(path.read_bytes())):
            downloads.fetch(published, path)
        paths.append(path)
    return paths


def available(folder: str | Path | None = None) -> list[Availability]:
    """Which data sets and weights can be loaded from `folder` (or SKETCHOGD_DATA), checksums and all."""
    rows = []
    for name in NAMES:
        try:
            where = EMBEDDED if name == "mnist-subset" else _find(name, _root(name, folder))
            images = load(name, folder)
        except (DataError, OSError, ImportError) as error:
            rows.append(Availability(name, ready=False, verified=False, where="", note=str(error)))
            continue
        # CIFAR-100 parts are made by the user, so no published checksum exists; their counts are checked all the same.
        verified = not (name == "cifar100" and _parts(where))
        note = f"{len(images.x_train):,} to train, {len(images.x_test):,} to test, {images.classes} classes"
        rows.append(Availability(name, ready=True, verified=verified, where=str(where), note=note))
    return rows + [_weights_available(name, folder) for name in sources.WEIGHTS]


def _weights_available(name: str, folder: str | Path | None) -> Availability:
    try:
        places = [weights.file(name, published.name, folder) for published in sources.PUBLISHED[name]]
    except (DataError, OSError) as error:
        return Availability(name, ready=False, verified=False, where="", note=str(error))
    count = sum(t.numel() for t in weights.load(name, folder).values())
    return Availability(name, ready=True, verified=True, where=str(places[0].parent), note=f"{count:,} weights")


def missing(name: str, folder: str | Path | None = None) -> str:
    """Why a data set or weights cannot be loaded and what to do; "" if its files are there. Nothing is unpacked."""
    if name in sources.WEIGHTS:
        found = _weights_available(name, folder)
        return "" if found.ready else found.note
    _known(name)
    try:
        if name != "mnist-subset":
            _find(name, _root(name, folder))
    except DataError as error:
        return str(error)
    return ""


def _known(name: str) -> None:
    if name not in NAMES:
        raise DataError(f"unknown data set {name!r}; there are {', '.join(NAMES)}")


def _root(name: str, folder: str | Path | None) -> Path:
    chosen = folder if folder is not None else os.environ.get(ENVIRONMENT)
    if not chosen:
        raise DataError(f"{name} is read from a folder: give one, or set {ENVIRONMENT}. {sources.instructions(name)}")
    return Path(chosen)


def _find(name: str, root: Path) -> Path:
    """The folder under `root` that has all files of the set."""
    for candidate in (root / name, root / sources.TORCHVISION_FOLDER.get(name, "."), root):
        if name == "cifar100":
            extracted = all((candidate / CIFAR_FOLDER / part).is_file() for part in ("train", "test"))
            if (candidate / sources.CIFAR_ARCHIVE.name).is_file() or extracted or _parts(candidate):
                return candidate
        elif name == "clinc150":
            if all((candidate / published.name).is_file() for published in sources.PUBLISHED[name]):
                return candidate
        elif all(_idx_path(candidate, published).is_file() for published in sources.PUBLISHED[name]):
            return candidate
    raise DataError(f"{name} is not in {root}. {sources.instructions(name, root)}")


def _idx_path(folder: Path, published: sources.Published) -> Path:
    """The .gz if it is there, otherwise the plain file."""
    packed = folder / published.name
    return packed if packed.is_file() else packed.with_suffix("")


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("cifar100-*.npz"))


def _load_embedded() -> LabelledImages:
    data = EMBEDDED.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != EMBEDDED_SHA256:
        raise DataError(f"{EMBEDDED}: SHA-256 {digest}, expected {EMBEDDED_SHA256}: reinstall the package")
    arrays = read_npz(io.BytesIO(data), PART_KEYS)
    return _images("mnist-subset", 10, arrays["x_train"], arrays["y_train"], arrays["x_test"], arrays["y_test"])


def _load_idx(name: str, root: Path) -> LabelledImages:
    folder = _find(name, root)
    arrays = []
    for published in sources.PUBLISHED[name]:
        path = _idx_path(folder, published)
        content = data = _contents(path, published)
        if path.suffix == ".gz":
            try:
                content = unpacked(data, published.limit, str(path))
            except DataError as error:
                raise DataError(f"{error}. {sources.instructions(name, root)}") from error
        if not (published.admits(data) or published.admits(content)):
            raise DataError(f"{path}: the checksum is not that of {name}. {sources.instructions(name, root)}")
        arrays.append(read_idx(content, str(path)))
    return _images(name, 10, *arrays)


def _contents(path: Path, published: sources.Published) -> bytes:
    """The bytes of a file, unless it is larger than any form of the published one."""
    size = path.stat().st_size
    if size > published.limit:
        raise DataError(f"{path}: {size:,} bytes are more than {published.name} can have")
    return path.read_bytes()


def _load_cifar100(root: Path) -> LabelledImages:
    folder = _find("cifar100", root)
    archive = folder / sources.CIFAR_ARCHIVE.name
    extracted = folder / CIFAR_FOLDER
    if archive.is_file():
        if not sources.CIFAR_ARCHIVE.admits(_contents(archive, sources.CIFAR_ARCHIVE)):
            raise DataError(
                f"{archive}: the checksum is not the published one. {sources.instructions('cifar100', root)}"
            )
        members = read_cifar_archive(archive)
    elif extracted.is_dir():
        members = {split: _contents(extracted / split, sources.CIFAR_MEMBERS[split]) for split in ("train", "test")}
    else:
        arrays = read_parts(_parts(folder))
        images = _images("cifar100", 100, arrays["x_train"], arrays["y_train"], arrays["x_test"], arrays["y_test"])
        for split, y in (("train", images.y_train), ("test", images.y_test)):
            each = CIFAR_PER_CLASS[split]
            if not bool((torch.bincount(y, minlength=100) == each).all()):
                raise DataError(f"{folder}: the cifar100-*.npz parts must have {each} {split} images of every class")
        return images
    for split, published in sources.CIFAR_MEMBERS.items():
        if not published.admits(members[split]):
            raise DataError(f"{folder}: the checksum of {published.name} is not the published one")
    return _images("cifar100", 100, *read_cifar_batch(members["train"]), *read_cifar_batch(members["test"]))


def _images(
    name: str, classes: int, x_train: np.ndarray, y_train: np.ndarray, x_test: np.ndarray, y_test: np.ndarray
) -> LabelledImages:
    """Arrays as tensors; images (n, H, W) get their one channel."""

    def pixels(x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.array(x if x.ndim == 4 else x[:, None], order="C"))

    def labels(y: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(y.astype(np.int64))

    return LabelledImages(pixels(x_train), labels(y_train), pixels(x_test), labels(y_test), name, classes)
