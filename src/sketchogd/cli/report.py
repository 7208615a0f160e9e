"""`sketchogd report`: finished runs as a table, a page and figures, beside the paper's published values."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from sketchogd.cli import show
from sketchogd.cli.options import FAILED, Json, friendly
from sketchogd.lab.pages.figures import save_all
from sketchogd.lab.pages.groups import damaged
from sketchogd.lab.pages.report import summary_table, write_html
from sketchogd.paper.published import PAPER


@friendly
def report(
    runs: Annotated[Path, typer.Argument(help="A folder with run folders or bundles at or below it.")],
    html: Annotated[Path | None, typer.Option(help="Write the report page here. Default: RUNS/report.html.")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also write the figures as PNG and PDF into this folder.")
    ] = None,
    json_: Json = False,
) -> None:
    """The table of finished runs beside the published one, and a page with all figures that opens offline.

    Damaged runs are left out and named, here and on the page; the exit status is then 1.
    """
    rows = summary_table(runs, PAPER)
    if json_:
        show.as_json(rows)
    else:
        shown = {"benchmark": str, "method": str, "variant": str, "n": str}
        numbers = dict.fromkeys(("accuracy", "accuracy_std", "forgetting", "learning"), show.three_decimals)
        kept = {key: show.bytes_cell for key in ("nbytes", "host_nbytes") if any(row[key] for row in rows)}
        compared = {"published": show.three_decimals, "difference": show.signed}
        show.table(str(runs), rows, {**shown, **numbers, **kept, **compared})
    write_page(runs, html or (runs if runs.is_dir() else runs.parent) / "report.html")
    if figures is not None:
        save_all(runs, figures)
        show.err.print(f"figures: {figures.resolve()}", soft_wrap=True)
    if found := damaged(runs):
        for line in found:
            show.err.print(Text(f"left out, since it is damaged: {line}", style="red"), soft_wrap=True)
        raise typer.Exit(FAILED)


def write_page(runs: Path, path: Path) -> None:
    """Write the report page of the runs below a folder, and say where it is."""
    page = write_html(runs, path, reference=PAPER)
    show.err.print(f"report: {page.resolve()}", soft_wrap=True)
