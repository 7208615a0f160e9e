"""`sketchogd bench`: the ratios of `lab.speed` as a table, and as a file with the machine they were measured on."""

import json
import math
from pathlib import Path

from sketchogd.cli import show
from sketchogd.lab import speed


def bench(device: str, only: str | None, quick: bool, path: Path | None) -> None:
    """Measure under a status line, print the table, write the file."""
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
    if path is not None:
        written = {"machine": speed.machine(device), "quick": quick, "ratios": [ratio.as_dict() for ratio in found]}
        path.write_text(json.dumps(written, indent=2) + "\n")
