"""`sketchogd bench`: the ratios of `lab.speed` as a table, and as a file with the machine they were measured on."""

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from sketchogd.cli import show
from sketchogd.cli.options import devices, friendly
from sketchogd.lab import speed


@friendly
def bench(
    device: Annotated[str, typer.Option(help="Where to measure: cpu or cuda.")] = "cpu",
    only: Annotated[str | None, typer.Option(help="One group: remember, basis, project, run, scale, …")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, to see that everything runs.")] = False,
    json_: Annotated[Path | None, typer.Option("--json", help="Write machine, versions and ratios here.")] = None,
) -> None:
    """How fast the library is, as ratios to limits measured in the same run."""
    (device,) = devices(device)[:1]
    with show.err.status("starting") as status:
        found = speed.measure(device, quick=quick, only=only, tell=lambda word: status.update(f"measuring: {word}"))
    rows = [
        {
            "name": ratio.name,
            "measured": "failed" if math.isnan(ratio.value) else f"{ratio.value:.3g}",
            "target": ratio.wanted,
            "met": {True: "yes", False: "no", None: "–"}[ratio.met],
            "note": ratio.unit_note,
        }
        for ratio in found
    ]
    show.table(f"speed on {device}", rows, dict.fromkeys(("name", "measured", "target", "met", "note"), str))
    if json_ is not None:
        written = {"machine": speed.machine(device), "quick": quick, "ratios": [ratio.as_dict() for ratio in found]}
        json_.write_text(json.dumps(written, indent=2) + "\n")
