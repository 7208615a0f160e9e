"""From the runs of a grid to rows: one for each benchmark and method, means and deviations over seeds.

`bytes` are all that the method keeps, `host` those of them that lie on the host while the model is on a device.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sketchogd.cli.show import human_bytes
from sketchogd.lab import records
from sketchogd.lab.records import bundles, metrics
from sketchogd.lab.runs.config import RunConfig
from sketchogd.paper import published


def rows_of(configs: Sequence[RunConfig], root: Path) -> list[dict[str, Any]]:
    """One row for each benchmark and method setting of which at least one run is finished."""
    groups: dict[tuple[str, str], list[RunConfig]] = {}
    for config in configs:
        groups.setdefault((config.benchmark, config.setting), []).append(config)
    rows = []
    for (benchmark, label), members in groups.items():
        found = [records.load(root / c.name) for c in members if (root / c.name / "run.json").exists()]
        runs = [run for run in found if run.status == "finished" and run.accuracy is not None]
        if runs:
            rows.append(_row(benchmark, label, members[0], runs))
    return rows


def _row(benchmark: str, label: str, config: RunConfig, runs: Sequence[records.Run]) -> dict[str, Any]:
    row: dict[str, Any] = {"benchmark": benchmark, "method": label, "seeds": len(runs)}
    scores: dict[str, Callable[[Any], float]] = {
        "accuracy": metrics.average_accuracy,
        "forgetting": metrics.forgetting,
        "learning": metrics.learning_accuracy,
    }
    for name, score in scores.items():
        spread = metrics.spread([score(run.accuracy) for run in runs])
        row |= {name: spread.mean, f"{name}_std": spread.std}
    row["bytes"] = max(run.record["ledger"]["nbytes"] for run in runs)
    row["host"] = max(bundles.totals(run.record).get("host", 0) for run in runs)
    row["seconds"] = metrics.spread([run.record["timings"]["total"] for run in runs]).mean
    table = config.preset if config.preset in published.TABLES else None
    cell = published.lookup(benchmark, config.method.name, table)
    whole = not published.departures(benchmark, config.record(), _tasks(runs))
    row["published"] = cell.mean if cell and whole else None
    row["difference"] = row["accuracy"] - cell.mean if cell and whole else None
    return row


def _tasks(runs: Sequence[records.Run]) -> int:
    return 0 if runs[0].accuracy is None else len(runs[0].accuracy)


def columns(rows: Sequence[dict[str, Any]]) -> dict[str, Callable[[Any], str]]:
    """How each column of these rows is written; published numbers are shown where there are any."""
    chosen: dict[str, Callable[[Any], str]] = {
        "benchmark": str,
        "method": str,
        "seeds": str,
        "accuracy": _three,
        "forgetting": _three,
        "learning": _three,
        "bytes": human_bytes,
        "seconds": lambda value: f"{value:.0f}",
    }
    if any(row["seeds"] > 1 for row in rows):
        items = list(chosen.items())
        chosen = dict([*items[:4], ("accuracy_std", lambda value: f"±{value:.3f}"), *items[4:]])
    else:
        del chosen["seeds"]
    if any(row["host"] for row in rows):
        items = list(chosen.items())
        place = list(chosen).index("bytes") + 1
        chosen = dict([*items[:place], ("host", human_bytes), *items[place:]])
    if len({row["benchmark"] for row in rows}) == 1:
        del chosen["benchmark"]  # the title says it
    if any(row["published"] is not None for row in rows):
        chosen |= {"published": _three, "difference": lambda value: "" if value is None else f"{value:+.3f}"}
    return chosen


def _three(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
