"""`sketchogd data`: which data sets are here, and downloading them."""

from pathlib import Path
from typing import Annotated

import typer

from sketchogd.cli import show
from sketchogd.cli.options import Json, friendly
from sketchogd.lab.data import datasets, sources
from sketchogd.lab.names import unknown


@friendly
def data(
    folder: Annotated[Path | None, typer.Option(help="Where to look; by default $SKETCHOGD_DATA.")] = None,
    download: Annotated[
        str | None, typer.Option(help="Fetch this data set, or these weights, into the folder first.")
    ] = None,
    json_: Json = False,
) -> None:
    """Which data sets and weights are here, checked against their checksums."""
    if download is not None:
        known = [*datasets.NAMES, *sources.WEIGHTS]
        if download not in known:
            raise ValueError(unknown("data set", download, known))
        if folder is None:
            raise ValueError("say where to put it: --folder FOLDER")
        with show.err.status(f"downloading {download}"):
            datasets.download(download, folder)
    with show.err.status("checking"):
        found = datasets.available(folder)
    rows = [{"name": a.name, "ready": a.ready, "verified": a.verified, "where": a.where, "note": a.note} for a in found]
    if json_:
        show.as_json(rows)
    else:
        yes = {True: "yes", False: "no"}
        show.table(
            "data sets and weights",
            rows,
            {"name": str, "ready": yes.__getitem__, "verified": yes.__getitem__, "note": str},
        )
