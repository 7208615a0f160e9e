"""`sketchogd bench`: the ratios of `lab.speed` as a table, and as a file with the machine they were measured on."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from sketchogd.cli import show
from sketchogd.cli.options import Format, Json, completion, devices, form_of, friendly
from sketchogd.cli.show import Form
from sketchogd.lab import speed


@friendly
def bench(
    device: Annotated[
        str, typer.Option(metavar="NAME", help="Where to measure: cpu or cuda.", autocompletion=completion.device)
    ] = "cpu",
    only: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP", help=f"One group: {', '.join(speed.groups())}.", autocompletion=completion.speeds
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, to see that everything runs.")] = False,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Write what --json prints into this file.")] = None,
    format: Format = Form.table,
    json_: Json = False,
) -> None:
    """How fast the library is, as ratios to limits measured in the same run.

    With --json machine, versions and ratios.
    """
    form = form_of(format, json_)
    (device,) = devices(device)[:1]
    with show.waiting("starting") as tell:
        found = speed.measure(device, quick=quick, only=only, tell=lambda word: tell(f"measuring: {word}"))
    rows = [
        {
            "name": ratio.name,
            "measured": None if math.isnan(ratio.value) else ratio.value,
            "target": ratio.wanted,
            "met": {True: "yes", False: "no", None: "–"}[ratio.met],
            "note": ratio.unit_note,
        }
        for ratio in found
    ]
    measured: dict[str, Any] = {"machine": speed.machine(device), "quick": quick}
    measured["ratios"] = [ratio.as_dict() for ratio in found]
    if save is not None:
        save.write_text(json.dumps(measured, indent=2) + "\n")
    columns: show.Columns = {
        **dict.fromkeys(("name", "measured", "target", "met", "note"), str),
        "measured": lambda value: "failed" if value is None else f"{value:.3g}",
    }
    show.table(f"speed on {device}", rows, columns, form, measured)
