"""`sketchogd data`: which data sets are here, and downloading them."""

from pathlib import Path
from typing import Annotated

import typer

from sketchogd.cli import show
from sketchogd.cli.options import Format, Json, completion, form_of, friendly
from sketchogd.cli.show import Form
from sketchogd.lab.data import datasets, sources
from sketchogd.lab.names import unknown


@friendly
def data(
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to look. Default: what $SKETCHOGD_DATA names.")
    ] = None,
    download: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Fetch this data set, or these weights, into the folder first.",
            autocompletion=completion.dataset,
        ),
    ] = None,
    format: Format = Form.table,
    json_: Json = False,
) -> None:
    """Which data sets and weights are here, checked against their checksums."""
    form = form_of(format, json_)
    if download is not None:
        known = [*datasets.NAMES, *sources.WEIGHTS]
        if download not in known:
            raise ValueError(unknown("data set", download, known))
        if folder is None:
            raise ValueError("say where to put it: --folder FOLDER")
        with show.waiting(f"downloading {download}"):
            datasets.download(download, folder)
    with show.waiting("checking"):
        found = datasets.available(folder)
    rows = [{"name": a.name, "ready": a.ready, "verified": a.verified, "where": a.where, "note": a.note} for a in found]
    yes = {True: "yes", False: "no"}
    columns: show.Columns = {"name": str, "ready": yes.__getitem__, "verified": yes.__getitem__, "note": str}
    show.table("data sets and weights", rows, columns, form)
