"""`sketchogd report`: finished runs as a table, a page and figures, beside the paper's published values."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from sketchogd.cli import show
from sketchogd.cli.options import FAILED, Format, Json, Plugin, form_of, friendly
from sketchogd.cli.show import Form
from sketchogd.lab.pages.figures import save_all
from sketchogd.lab.pages.groups import damaged
from sketchogd.lab.pages.report import summary_table, write_html
from sketchogd.lab.runs.plugins import load
from sketchogd.paper.published import PAPER


@friendly
def report(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="A folder with run folders or bundles at or below it.")],
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the report page here. Default: RUNS/report.html."),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Also write the figures as PNG and PDF into this folder."),
    ] = None,
    plugin: Plugin = None,
    format: Format = Form.table,
    json_: Json = False,
) -> None:
    """The table of finished runs beside the published one, and a page with all figures that opens offline.

    Damaged runs are left out and named, here and on the page; the exit status is then 1.
    """
    form = form_of(format, json_)
    if figures is not None:
        _require_matplotlib()
    load(plugin or ())
    rows = summary_table(runs, PAPER)
    shown: show.Columns = {"benchmark": str, "method": str, "variant": str, "n": str}
    numbers: show.Columns = dict.fromkeys(("accuracy", "accuracy_std", "forgetting", "learning"), show.three_decimals)
    kept: show.Columns = {key: show.bytes_cell for key in ("nbytes", "host_nbytes") if any(row[key] for row in rows)}
    compared: show.Columns = {"published": show.three_decimals, "difference": show.signed}
    columns: show.Columns = {**shown, **numbers, **kept, **compared}
    empty = [key for key in columns if all(row[key] in (None, "") for row in rows)]
    columns = {key: write for key, write in columns.items() if key not in empty or form is not Form.table}
    show.table(str(runs), rows, columns, form)
    write_page(runs, html or (runs if runs.is_dir() else runs.parent) / "report.html")
    if figures is not None:
        save_all(runs, figures)
        show.note(f"figures: {figures.resolve()}")
    if found := damaged(runs):
        for line in found:
            show.problem(f"left out, since it is damaged: {line}")
        raise typer.Exit(FAILED)


def write_page(runs: Path, path: Path) -> None:
    """Write the report page of the runs below a folder, and say where it is."""
    page = write_html(runs, path, reference=PAPER)
    show.note(f"report: {page.resolve()}")


def _require_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(
            "--figures needs matplotlib: pip install 'sketchogd[lab]'. Without --figures the report page, which needs "
            "nothing, is written all the same"
        )
