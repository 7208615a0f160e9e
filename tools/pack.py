"""Add finished runs to bundles, small files that can be kept in a repository: `python -m tools.pack RUNS results`.

Numbers are rounded, the curves of chosen tasks are kept for the first seed of some presets, and singular values are
thinned to what a figure can show.
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import sketchogd.paper  # noqa: F401 - its methods keep examples as well
from sketchogd.lab import records
from sketchogd.lab.pages.groups import damaged
from sketchogd.lab.records import Run, bundles, sketch_errors, spectra
from sketchogd.lab.streams import BENCHMARKS

CURVED = ("table1", "curves")
"""Presets of which the first seed keeps its curves."""


def pack(source: str | Path, out: str | Path) -> dict[Path, tuple[int, int]]:
    """Add the runs below `source` (folders or bundles) that finished or diverged to bundles OUT/PRESET/BENCHMARK.json.

    A finished run replaces one of the same config that is in the bundle already; all others stay. A run that diverged
    is packed with its error, so that it is not tried again, and never replaces a run. Runs without a preset go to
    OUT/runs. Runs that are damaged are left out (`pages.groups.damaged` names them): every name in a path is one that
    `records.schema` has checked. Two processes must not pack into the same folder at once.

    Returns:
        For each bundle written, the number of runs packed into it and the number it has now.

    Raises:
        RecordError: A bundle that would be written to is damaged.
    """
    packed: dict[Path, dict[tuple[str, str], dict[str, Any]]] = {}
    for _, run in bundles.everything(source):
        if isinstance(run, Run) and ((run.status == "finished" and run.complete) or run.diverged):
            preset, benchmark = run.config.get("preset") or "runs", run.config.get("benchmark") or "unnamed"
            packed.setdefault(Path(out) / preset / f"{benchmark}.json", {})[run.identity] = entry_of(run)
    written = {}
    for path, entries in packed.items():
        there = bundles.read_entries(path) if path.exists() else []
        before = {records.identity(entry["config"]): entry for entry in there}
        new = {key: entry for key, entry in entries.items() if key not in before or "error" not in entry}
        after = {**before, **new}
        bundles.write_entries(path, list(after.values()))
        written[path] = (len(entries), len(after))
    return written


def entry_of(run: Run) -> dict[str, Any]:
    """A run as plain values, one line of a bundle."""
    record = run.record
    place = run.path.parts[-2:] if run.path.name.startswith("seed-") else run.path.parts[-1:]
    entry: dict[str, Any] = {
        "name": "/".join(place),
        "digest": record["digest"],
        "config": run.config,
        "versions": {key: value for key, value in (record.get("versions") or {}).items() if key != "platform"},
        "device": record.get("device"),
        "ended": None if record.get("ended") is None else round(record["ended"]),
    }
    if run.diverged:
        return {key: value for key, value in entry.items() if _said(key, value)} | {"error": record["error"]}
    assert run.accuracy is not None
    entry |= {
        "timings": {key: round(value, 2) for key, value in (record.get("timings") or {}).items() if value is not None},
        "steps": record.get("steps"),
        "parameters": record.get("parameters"),
        "ledger": bundles.totals(record),
        "results": {key: _rounded(value, 6) for key, value in (record.get("results") or {}).items()},
        "accuracy": [[_rounded(value, 4) for value in row[: i + 1]] for i, row in enumerate(run.accuracy)],
    }
    if run.initial is not None:
        entry["initial"] = [_rounded(value, 4) for value in run.initial]
    preset, seed = run.config.get("preset"), run.config.get("seed")
    if preset in CURVED and seed == 0 and (curve := _curve_of(run)):
        entry["curve"] = curve
    if preset == "spectra" and (arrays := run.spectra()):
        entry["spectra"] = _spectra_entry(arrays)
    return {key: value for key, value in entry.items() if _said(key, value)}


def _said(key: str, value: Any) -> bool:
    """Whether a bundle has this field: those without a value are left out, but for the config, which may be empty."""
    return key == "config" or value not in (None, {})


def _curve_of(run: Run) -> dict[str, list[float | None]]:
    """By task, counted from 1: its accuracies after each epoch, from the first on which it was trained."""
    benchmark = BENCHMARKS.get(run.config.get("benchmark", ""))
    chosen = benchmark.curves if benchmark is not None else ()
    tasks = [task for task in chosen if task <= len(run.accuracy)]  # type: ignore[arg-type]
    curves: dict[str, list[float | None]] = {str(task): [] for task in tasks}
    for event in run.evaluations():
        for task in tasks:
            if event["task"] + 1 >= task:
                curves[str(task)].append(_rounded(event["accuracy"][task - 1], 3))
    return {task: values for task, values in curves.items() if values}


def _spectra_entry(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The spectrum, thinned, and the errors of sketches over their rank."""
    entry: dict[str, Any] = {}
    if (found := spectra.read(arrays)) is not None:
        few = spectra.thinned(found)
        entry = {"index": few.index.tolist(), "singular_values": [float(f"{value:.5g}") for value in few.values]}
        entry["stable_rank"] = float(f"{few.stable_rank:.6g}")
    kept = [key for key in sketch_errors.KEYS if key in arrays]
    return entry | {key: [float(f"{value:.5g}") for value in np.ravel(arrays[key])] for key in kept}


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), digits)


def main(arguments: Sequence[str] | None = None) -> None:
    """Pack what the command line names, and print a line per bundle; status 1 if runs were damaged and left out."""
    parser = argparse.ArgumentParser(prog="python -m tools.pack", description=__doc__)
    parser.add_argument("runs", type=Path, help="a folder with run folders, or bundles, at or below it")
    parser.add_argument("out", type=Path, nargs="?", default=Path("results"), help="bundles: OUT/PRESET/BENCHMARK.json")
    options = parser.parse_args(arguments)
    if not options.runs.exists():
        parser.error(f"{options.runs}: no such folder")
    lines = damaged(options.runs)
    for line in lines:
        print(f"left out, since it is damaged: {line}", file=sys.stderr)
    written = pack(options.runs, options.out)
    if not written:
        parser.error(f"{options.runs}: expected finished runs here or below, found none")
    for path, (packed, whole) in sorted(written.items()):
        print(f"{path}: {packed} packed, {whole} in all, {path.stat().st_size:,} bytes")
    if lines:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
