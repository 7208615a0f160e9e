"""Measure time and memory over rank, parameters and gradients: a table, the fitted exponents, and a figure.

Without matplotlib, run it with `--json FILE`, and elsewhere draw the figure with `--from-json FILE --figure FIGURE`.
"""

import argparse
import importlib.util
import json
from dataclasses import asdict
from pathlib import Path

import torch

from sketchogd.lab.speed import machine, scale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--from-json", type=Path, help="draw the points of this file instead of measuring")
    options = parser.parse_args()
    if options.figure is not None and importlib.util.find_spec("matplotlib") is None:
        parser.error("--figure needs matplotlib; write --json here and draw it elsewhere with --from-json")
    if options.from_json is not None:
        if options.figure is None:
            parser.error("--from-json needs --figure FIGURE")
        points = json.loads(options.from_json.read_text())["points"]
        scale.plot([scale.Point(**point) for point in points], options.figure)
        return
    found = scale.points(torch.device(options.device), options.quick)
    for p in found:
        print(
            f"{p.varied:10} rank {p.rank:5} p {p.p:11,} gradients {p.gradients:6,}  "
            f"remember {p.remember:8.3f} s  basis {p.basis:8.3f} s  {p.nbytes / 1e9:7.2f} GB"
        )
    fitted = scale.exponents(found)
    for ratio in fitted:
        print(f"{'ok  ' if ratio.met else 'MISS'} {ratio.name:40} {ratio.value:6.2f} {ratio.wanted}")
    if options.figure is not None:
        scale.plot(found, options.figure)
    if options.json is not None:
        written = {
            "machine": machine(options.device),
            "points": [asdict(p) for p in found],
            "exponents": [ratio.as_dict() for ratio in fitted],
        }
        options.json.write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main()
