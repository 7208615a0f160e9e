"""From run folders and bundles to a table of their results, and to one HTML page that opens offline.

Every number shown is the mean ± standard deviation over the seeds of a `Group`, beside what a `Reference` published, if
one is given. `T` tasks, `A` (T × T) the accuracy matrix. `assets` has the page's HTML, CSS and JavaScript.
"""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sketchogd.lab.methods import registry
from sketchogd.lab.pages import assets
from sketchogd.lab.pages.groups import Group, collect, curves_of, host_bytes, kept_bytes, styles_of, title_of
from sketchogd.lab.pages.paired_tests import paired_tests
from sketchogd.lab.pages.reference import NO_REFERENCE, Reference
from sketchogd.lab.pages.tradeoff import strengths
from sketchogd.lab.pages.trajectory import tracks
from sketchogd.lab.records import Run, metrics
from sketchogd.lab.records.sketch_errors import mean_errors
from sketchogd.lab.records.spectra import mean_spectrum, thinned
from sketchogd.storage import atomic

MOST_POINTS = 240
"""A curve on the page has about so many points at most; the ends of tasks are always among them."""


def summary_table(runs_folder: str | Path, reference: Reference = NO_REFERENCE) -> list[dict[str, Any]]:
    """One row per benchmark and method (and setting, where there are several): plain values, ready for JSON.

    `accuracy`, `forgetting` and `learning` are means over `n` seeds, each with its `_std`. The last columns are those
    of the reference's `Comparison`; without a reference they are None.

    Raises:
        RecordError: there are no run folders.
    """
    return [_row(group, reference) for group in collect(runs_folder)[0] if len(group.matrices)]


def write_html(
    runs_folder: str | Path,
    out: str | Path,
    title: str = "Accuracy within a memory budget",
    reference: Reference = NO_REFERENCE,
) -> Path:
    """Write the page of all runs at or below `runs_folder` to the file `out`, and return its path.

    Raises:
        RecordError: there are no run folders.
    """
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(path, assets.render(title, page_data(runs_folder, reference)).encode())
    return path


def page_data(runs_folder: str | Path, reference: Reference = NO_REFERENCE) -> dict[str, Any]:
    """Everything the page shows, as a tree for JSON.

    Raises:
        RecordError: there are no run folders.
    """
    groups, left_out = collect(runs_folder)
    names = list(dict.fromkeys(group.benchmark for group in groups))
    root, styles = Path(runs_folder), styles_of(groups)
    data = [_group_data(group, style, root, reference) for group, style in zip(groups, styles, strict=True)]
    for each, strength in zip(data, strengths(groups), strict=True):
        if strength is not None:
            each["strength"] = asdict(strength)
    return {
        "benchmarks": [{"name": name, "title": title_of(name), "curves": curves_of(name)} for name in names],
        "groups": data,
        "pairs": paired_tests(groups),
        "machines": _machines([run for group in groups for run in group.runs]),
        "left_out": left_out,
        "ended": max((run.record.get("ended") or 0 for group in groups for run in group.runs), default=0),
        "reference": {"source": reference.source, "tables": dict(reference.tables)},
    }


def _group_data(group: Group, style: int, root: Path, reference: Reference) -> dict[str, Any]:
    """One group for the page: its row, mean matrix, runs, spectrum and errors of sketches over their rank.

    Of a matrix only the tasks trained so far are shown: row i has i + 1 numbers.
    """
    data: dict[str, Any] = {"label": group.label, "benchmark": group.benchmark, "style": style}
    data["keeps_examples"] = registry.keeps_examples(group.method)
    data["timings"] = _timings(group)
    data["runs"] = [_run_data(run, root) for run in group.runs]
    if len(group.matrices):
        data["row"] = _row(group, reference)
        data["matrix"] = _seen(group.matrices.mean(axis=0))
        data["x"] = _curves(group, data["runs"])
    found = mean_spectrum(run.spectra() for run in group.runs)
    if found:
        few = thinned(found)
        data["spectrum"] = {"index": few.index.tolist(), "values": [float(v) for v in few.values]}
        data["spectrum"]["stable_rank"] = few.stable_rank
    errors = mean_errors(run.spectra() for run in group.runs)
    if errors:
        data["errors"] = {key: [float(value) for value in values] for key, values in errors.items()}
    return data


def _row(group: Group, reference: Reference) -> dict[str, Any]:
    spreads = metrics.spreads(group.matrices)
    times = [seconds for run in group.runs if (seconds := _seconds(run)) is not None]
    row: dict[str, Any] = {"benchmark": group.benchmark, "method": group.method, "variant": group.variant}
    row["n"] = spreads["accuracy"].n
    for name, value in spreads.items():
        row |= {name: value.mean, f"{name}_std": value.std}
    row |= {"nbytes": kept_bytes(group), "host_nbytes": host_bytes(group)}
    row |= {"seconds": float(np.mean(times)) if times else None}
    config, tasks = group.runs[0].config, len(group.matrices[0])
    return row | asdict(reference.compare(group.benchmark, group.method, config, tasks, spreads["accuracy"]))


def _curves(group: Group, runs: list[dict[str, Any]]) -> list[float | None]:
    """Give each run its accuracies along training, thinned, and return the positions, which all of them share.

    A task's values end where the positions do and begin where the first run has one.
    """
    x, found, values = tracks(group)
    kept = (np.arange(len(x)) % math.ceil(len(x) / MOST_POINTS) == 0) | np.isclose(x, np.round(x))
    starts = [int(np.argmax(~np.isnan(values[:, kept, j]).all(axis=0))) for j in range(values.shape[2])]
    for run, track in zip(found, values[:, kept], strict=True):
        place = next(i for i, each in enumerate(group.runs) if each is run)
        runs[place]["curve"] = [_plain(track[start:, j], 4) for j, start in enumerate(starts)]
    return _plain(x[kept])


def _run_data(run: Run, root: Path) -> dict[str, Any]:
    data: dict[str, Any] = {
        "run": run.path.relative_to(root).as_posix() if run.path.is_relative_to(root) else run.path.name,
        "seed": run.config.get("seed"),
        "accuracy": None,
        "seconds": _seconds(run),
        "device": (run.record.get("device") or {}).get("name"),
        "nbytes": (run.record.get("ledger") or {}).get("nbytes"),
    }
    if run.complete:
        assert run.accuracy is not None
        found = metrics.spreads([run.accuracy])
        data |= {name: value.mean for name, value in found.items()} | {"matrix": _seen(run.accuracy)}
    return data


def _seen(A: np.ndarray) -> list[list[float | None]]:
    """The accuracies on the tasks trained so far: row i has those on the tasks up to i."""
    return [_plain(row[: i + 1]) for i, row in enumerate(A)]


def _machines(runs: list[Run]) -> list[dict[str, Any]]:
    """Each different device with its versions, and how many of the runs it did."""
    machines: dict[str, dict[str, Any]] = {}
    for run in runs:
        known = {key: run.record.get(key) or {} for key in ("device", "versions")}
        machines.setdefault(json.dumps(known, sort_keys=True), {**known, "runs": 0})["runs"] += 1
    return list(machines.values())


def _seconds(run: Run) -> float | None:
    """The time of a run: the recorded total or, without one, from start to end."""
    total = (run.record.get("timings") or {}).get("total")
    if isinstance(total, int | float):
        return float(total)
    started, ended = run.record.get("started"), run.record.get("ended")
    return ended - started if started and ended else None


def _timings(group: Group) -> dict[str, float]:
    """Seconds per part of a run, means over the runs that recorded them."""
    found: dict[str, list[float]] = {}
    for run in group.runs:
        for name, seconds in (run.record.get("timings") or {}).items():
            if isinstance(seconds, int | float):
                found.setdefault(name, []).append(seconds)
    return {name: float(np.mean(values)) for name, values in found.items()}


def _plain(values: np.ndarray, digits: int = 5) -> list[float | None]:
    return [round(float(value), digits) if math.isfinite(value) else None for value in values]
