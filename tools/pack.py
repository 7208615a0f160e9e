"""Add finished runs to bundles, small files that can be kept in a repository: `python -m tools.pack RUNS results`."""

import argparse
from pathlib import Path

from sketchogd.lab.records import bundles


def main() -> None:
    """Pack, and say what was written."""
    parser = argparse.ArgumentParser(prog="python -m tools.pack", description=__doc__)
    parser.add_argument("runs", type=Path, help="a folder with run folders, or bundles, at or below it")
    parser.add_argument("out", type=Path, nargs="?", default=Path("results"), help="bundles: OUT/PRESET/BENCHMARK.json")
    options = parser.parse_args()
    if not options.runs.exists():
        parser.error(f"{options.runs}: no such folder")
    written = bundles.pack(options.runs, options.out)
    if not written:
        parser.error(f"{options.runs}: expected finished runs here or below, found none")
    for path, (packed, whole) in sorted(written.items()):
        print(f"{path}: {packed} packed, {whole} in all, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
