"""`python -m sketchogd.lab.speed`: the measurements of `sketchogd bench`, with nothing but torch installed."""

import argparse
import json
import sys
from pathlib import Path

from sketchogd.lab.speed import groups, machine, measure


def main() -> None:
    """Measure, write JSON where asked, and print a plain table."""
    parser = argparse.ArgumentParser(prog="python -m sketchogd.lab.speed", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", choices=groups())
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--save", type=Path, help="write machine, versions and ratios here as JSON")
    options = parser.parse_args()
    found = measure(
        options.device,
        quick=options.quick,
        only=options.only,
        tell=lambda word: print(word, file=sys.stderr, flush=True),
    )
    if options.save is not None:
        written = {"machine": machine(options.device), "quick": options.quick, "ratios": [r.as_dict() for r in found]}
        options.save.write_text(json.dumps(written, indent=2) + "\n")
    for ratio in found:
        verdict = {True: "ok", False: "MISS", None: "–"}[ratio.met]
        print(f"{verdict:4} {ratio.name:58} {ratio.value:8.3f} {ratio.wanted:8} {ratio.unit_note}")


if __name__ == "__main__":
    main()
