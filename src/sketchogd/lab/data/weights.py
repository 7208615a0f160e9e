"""Published weights: read from a folder, as data sets are, and compared with their checksums before they are used."""

import os
from pathlib import Path

from safetensors.torch import load as from_bytes
from torch import Tensor

from sketchogd.lab.data import sources
from sketchogd.lab.data.fileformats import DataError

ENVIRONMENT = "SKETCHOGD_DATA"


def file(name: str, part: str, folder: str | Path | None = None) -> Path:
    """The path of one of the files of the weights `name`, checked against its checksum.

    Args:
        name: a key of `sources.WEIGHTS`.
        part: the file.
        folder: where data is; the file is there, or in the subfolder with the name. By default SKETCHOGD_DATA.

    Raises:
        DataError: it is not there, or has another checksum.
    """
    chosen = folder if folder is not None else os.environ.get(ENVIRONMENT)
    if not chosen:
        raise DataError(f"{name} is read from a folder: give one, or set {ENVIRONMENT}. {sources.instructions(name)}")
    published = next(each for each in sources.PUBLISHED[name] if each.name == part)
    for place in (Path(chosen) / name / part, Path(chosen) / part):
        if place.is_file():
            if place.stat().st_size > published.limit or not published.admits(place.read_bytes()):
                raise DataError(f"{place}: the checksum is not the published one. {sources.instructions(name)}")
            return place
    raise DataError(f"{name} is not in {chosen}. {sources.instructions(name, Path(chosen))}")


def load(name: str, folder: str | Path | None = None) -> dict[str, Tensor]:
    """The tensors of the weights `name` by their names. Raises DataError as `file` does."""
    return from_bytes(file(name, "model.safetensors", folder).read_bytes())
