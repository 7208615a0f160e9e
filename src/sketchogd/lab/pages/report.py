"""From run folders and bundles to a table beside the published one, and to one HTML page that opens offline.

Runs of one config that differ only in their seed form a `Group`; every number shown is the mean ± standard deviation
over the seeds of a group. `T` tasks, `A` (T × T) the accuracy matrix. `report_assets` makes the page of them.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sketchogd.lab.pages import assets, paired_tests
from sketchogd.lab.records import RecordError, Run, bundles, metrics, spectra
from sketchogd.paper import published, rank_errors
from sketchogd.storage import atomic

MOST_POINTS = 240
"""A curve on the page has about so many points at most; the ends of tasks are always among them."""


@dataclass(frozen=True)
class Group:
    """The finished runs of one method with one setting on one benchmark, one a seed.

    `variant` says what sets it apart from other settings of the same method on that benchmark; empty if there are none.
    """

    benchmark: str
    method: str
    variant: str
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        """The method's title, with the variant."""
        title = published.METHODS.get(self.method, self.method)
        return f"{title} ({self.variant})" if self.variant else title

    @property
    def matrices(self) -> np.ndarray:
        """Accuracy matrices of the runs that have a complete one, (seeds, T, T)."""
        return np.array([run.accuracy for run in self.runs if run.complete])


def collect(runs_folder: str | Path) -> tuple[list[Group], list[dict[str, str]]]:
    """All groups at or below a folder, in the order of the tables, and the runs left out with the reason.

    Raises:
        RecordError: there are no run folders.
    """
    root = Path(runs_folder)
    kept: dict[tuple[str, str], Run] = {}
    left_out = []
    for name, found in bundles.everything(root):
        if isinstance(found, str):
            left_out.append({"run": name, "reason": found})
            continue
        run = found
        reason = _why_not(run)
        if not reason and run.identity in kept:
            reason = "the same config as another run"
        if reason:
            left_out.append({"run": name, "reason": reason})
        else:
            kept[run.identity] = run
    if not kept and not left_out:
        raise RecordError(f"{root}: expected run folders (each with a run.json) or bundles here or below, found none")
    return _grouped(list(kept.values())), left_out


def summary_table(runs_folder: str | Path) -> list[dict[str, Any]]:
    """One row a benchmark and method (and setting, where there are several): plain values, ready for JSON.

    `accuracy`, `forgetting` and `learning` are means over `n` seeds, each with its `_std`. `difference` is ours minus
    published, and `outside` says whether |difference| > 2 s_published + s_ours; both are None without a published
    value, or where `shortened` says how the runs depart from the published protocol.

    Raises:
        RecordError: there are no run folders.
    """
    return [_row(group) for group in collect(runs_folder)[0] if len(group.matrices)]


def write_html(runs_folder: str | Path, out: str | Path, title: str = "Accuracy within a memory budget") -> Path:
    """Write the page of all runs at or below `runs_folder` to the file `out`, and return its path.

    Raises:
        RecordError: there are no run folders.
    """
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(path, assets.render(title, page_data(runs_folder)).encode())
    return path


def page_data(runs_folder: str | Path) -> dict[str, Any]:
    """Everything the page shows, as a tree for JSON."""
    groups, left_out = collect(runs_folder)
    names = list(dict.fromkeys(group.benchmark for group in groups))
    machines: dict[str, dict[str, Any]] = {}
    for run in (run for group in groups for run in group.runs):
        known = {key: run.record.get(key) or {} for key in ("device", "versions")}
        machines.setdefault(json.dumps(known, sort_keys=True), {**known, "runs": 0})["runs"] += 1
    return {
        "benchmarks": [
            {"name": name, "title": published.BENCHMARKS.get(name, name), "curves": published.CURVES.get(name, ())}
            for name in names
        ],
        "groups": [
            _group_data(group, style, Path(runs_folder)) for group, style in zip(groups, styles_of(groups), strict=True)
        ],
        "pairs": paired_tests.paired_tests(groups),
        "machines": list(machines.values()),
        "left_out": left_out,
        "ended": max((run.record.get("ended") or 0 for group in groups for run in group.runs), default=0),
    }


def styles_of(groups: Sequence[Group]) -> list[int]:
    """A style for every group: its method's own for the first setting on a benchmark, a free one for any other."""
    reserved = {published.STYLES.index(group.method) for group in groups if group.method in published.STYLES}
    free = [style for style in range(len(published.STYLES) + len(groups)) if style not in reserved]
    styles: list[int] = []
    for i, group in enumerate(groups):
        before = {style for style, other in zip(styles, groups[:i], strict=True) if other.benchmark == group.benchmark}
        own = published.STYLES.index(group.method) if group.method in published.STYLES else free[0]
        styles.append(own if own not in before else next(style for style in free if style not in before))
    return styles


def trajectory(group: Group) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Accuracies along training: positions x (n) in tasks trained, mean and standard deviation over seeds (n, T).

    Read from the evaluations in events.jsonl or, without any, from the accuracy matrix. NaN where nothing was measured.
    """
    single = [_single_trajectory(run) for run in group.runs if run.complete]
    # Seeds that were measured after tasks only would pull the mean about between the others' finer points.
    finest = max(map(len, single), default=0)
    single = [track for track in single if len(track) == finest]
    x = np.array(sorted({position for track in single for position in track}))
    T = len(group.matrices[0]) if len(group.matrices) else 0
    missing = np.full(T, np.nan)
    values = np.array([[track.get(position, missing) for position in x] for track in single]).reshape(-1, len(x), T)
    n = np.sum(~np.isnan(values), axis=0)
    mean = np.where(n > 0, np.nansum(values, axis=0) / np.maximum(n, 1), np.nan)
    squares = np.nansum((values - mean) ** 2, axis=0)
    return x, mean, np.where(n > 0, np.sqrt(squares / np.maximum(n - 1, 1)), np.nan)


def kept_bytes(group: Group) -> int | None:
    """Bytes that the method keeps between tasks, by the runs' ledgers: the most of any seed; None without a ledger."""
    sizes = [size for run in group.runs if (size := (run.record.get("ledger") or {}).get("nbytes")) is not None]
    return max(sizes, default=None)


def host_bytes(group: Group) -> int:
    """Those of the kept bytes that lie on the host, away from the device that trains; the most of any seed."""
    return max((bundles.totals(run.record).get("host", 0) for run in group.runs), default=0)


def _group_data(group: Group, style: int, root: Path) -> dict[str, Any]:
    """One group for the page: its row, runs, mean matrix, curves and spectrum; `style` chooses colour and marker."""
    data: dict[str, Any] = {"label": group.label, "benchmark": group.benchmark, "style": style}
    data["keeps_examples"] = group.method in published.KEEPS_EXAMPLES
    data["timings"] = _timings(group)
    data["runs"] = [
        {
            "run": run.path.relative_to(root).as_posix() if run.path.is_relative_to(root) else run.path.name,
            "seed": run.config.get("seed"),
            "accuracy": metrics.average_accuracy(run.accuracy) if run.complete else None,  # type: ignore[arg-type]
            "seconds": _seconds(run),
            "device": (run.record.get("device") or {}).get("name"),
        }
        for run in group.runs
    ]
    if len(group.matrices):
        x, mean, std = trajectory(group)
        kept = (np.arange(len(x)) % math.ceil(len(x) / MOST_POINTS) == 0) | np.isclose(x, np.round(x))
        curves = [{"mean": _plain(mean[kept, j]), "std": _plain(std[kept, j])} for j in range(mean.shape[1])]
        data["row"] = _row(group)
        data["matrix"] = [_plain(row) for row in group.matrices.mean(axis=0)]
        data["curves"] = {"x": _plain(x[kept]), "tasks": curves}
    found = spectra.mean_of(run.spectra() for run in group.runs)
    if found:
        few = spectra.thinned(found)
        data["spectrum"] = {"index": few.index.tolist(), "values": [float(v) for v in few.values]}
        data["spectrum"]["stable_rank"] = few.stable_rank
    errors = rank_errors.mean_of(run.spectra() for run in group.runs)
    if errors:
        data["errors"] = {key: [float(value) for value in values] for key, values in errors.items()}
    return data


def _row(group: Group) -> dict[str, Any]:
    spreads = {
        name: metrics.spread([score(A) for A in group.matrices])
        for name, score in (
            ("accuracy", metrics.average_accuracy),
            ("forgetting", metrics.forgetting),
            ("learning", metrics.learning_accuracy),
        )
    }
    times = [seconds for run in group.runs if (seconds := _seconds(run)) is not None]
    row: dict[str, Any] = {"benchmark": group.benchmark, "method": group.method, "variant": group.variant}
    row["n"] = spreads["accuracy"].n
    for name, value in spreads.items():
        row |= {name: value.mean, f"{name}_std": value.std}
    row |= {"nbytes": kept_bytes(group), "host_nbytes": host_bytes(group)}
    row |= {"seconds": float(np.mean(times)) if times else None}
    config, tasks = group.runs[0].config, len(group.matrices[0])
    return row | published.compare(group.benchmark, group.method, config, tasks, spreads["accuracy"])


def _why_not(run: Run) -> str:
    """Why a run that could be read is not shown; empty if it is."""
    if run.status == "failed":
        error = run.record.get("error") or {}
        return f"failed: {error.get('type', 'error')}: {error.get('message', '')}"
    if run.status != "finished":
        return "not finished"
    if not run.complete and not run.spectra():
        return "finished without a complete accuracy matrix"
    return ""


def _seconds(run: Run) -> float | None:
    """Time of the run: the recorded total or, without one, from start to end."""
    total = (run.record.get("timings") or {}).get("total")
    if isinstance(total, int | float):
        return float(total)
    started, ended = run.record.get("started"), run.record.get("ended")
    return ended - started if started and ended else None


def _timings(group: Group) -> dict[str, float]:
    """Seconds by what they were spent on, means over the runs that recorded them."""
    found: dict[str, list[float]] = {}
    for run in group.runs:
        for name, seconds in (run.record.get("timings") or {}).items():
            if isinstance(seconds, int | float):
                found.setdefault(name, []).append(seconds)
    return {name: float(np.mean(values)) for name, values in found.items()}


def _grouped(runs: Sequence[Run]) -> list[Group]:
    settings: dict[tuple[str, str], dict[str, list[Run]]] = {}
    for run in runs:
        key = (str(run.config.get("benchmark", "unnamed")), str(run.config.get("method", "unnamed")))
        setting = _setting(run.config)
        if run.accuracy is not None:
            setting.setdefault("tasks", len(run.accuracy))
        identity = json.dumps(setting, sort_keys=True)
        settings.setdefault(key, {}).setdefault(identity, []).append(run)
    groups = []
    for (benchmark, method), variants in settings.items():
        flat = [{key: json.dumps(value) for key, value in json.loads(identity).items()} for identity in variants]
        differing = sorted({key for each in flat for key in each if len({other.get(key) for other in flat}) > 1})
        for each, members in zip(flat, variants.values(), strict=True):
            told = [key for key in differing if each.get(key, "null") != "null"]
            variant = ", ".join(f"{key.removeprefix('options.')} {_shown(key, each[key])}" for key in told)
            members.sort(key=lambda run: (str(type(run.config.get("seed"))), run.config.get("seed") or 0))
            groups.append(Group(benchmark, method, variant, tuple(members)))
    return sorted(
        groups,
        key=lambda g: (*_place(published.BENCHMARKS, g.benchmark), *_place(published.METHODS, g.method), g.variant),
    )


def _shown(key: str, value: str) -> str:
    """A setting in the name of a variant; a budget in bytes as megabytes."""
    if key != "budget" or not value.isdigit():
        return value.strip('"')
    megabytes = int(value) / 1e6
    return f"{megabytes:.0f} MB" if megabytes >= 100 else f"{megabytes:g} MB"


def _place(order: dict[str, str], name: str) -> tuple[int, str]:
    return list(order).index(name) if name in order else len(order), name


def _setting(config: Any, prefix: str = "") -> dict[str, Any]:
    """The config flattened to dotted keys, without seeds and the device, which do not set a method apart."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _setting(value, f"{prefix}{key}.")
        elif key != "device" and not key.endswith("seed"):
            flat[prefix + key] = value
    return flat


def _single_trajectory(run: Run) -> dict[float, np.ndarray]:
    """One run's accuracies (T) at each position in tasks trained."""
    A = run.accuracy
    assert A is not None
    ends = {float(i + 1): np.where(np.arange(len(A)) <= i, A[i], np.nan) for i in range(len(A))}
    try:
        events = run.evaluations()
        epochs = int(run.config.get("epochs") or max(event["epoch"] for event in events))
        # Epochs may be counted from 0 or from 1; the last evaluation of a task is at its end.
        first = 1 if max(event["epoch"] for event in events) < epochs else 0
        track = {}
        for event in events:
            values = np.array([np.nan if value is None else value for value in event["accuracy"]], dtype=float)
            row = np.full(len(A), np.nan)
            row[: len(values)] = values[: len(A)]
            row[int(event["task"]) + 1 :] = np.nan
            track[round(int(event["task"]) + (event["epoch"] + first) / epochs, 6)] = row
        return track or ends
    except (KeyError, TypeError, ValueError, AttributeError):
        return ends


def _plain(values: np.ndarray) -> list[float | None]:
    return [round(float(value), 5) if math.isfinite(value) else None for value in values]
