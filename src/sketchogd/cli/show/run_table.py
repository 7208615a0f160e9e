"""The table of a grid of runs: a row per benchmark and method, with means and standard deviations over seeds.

`bytes` are all that the method keeps, `host` those of them that are on the host while the model is on a device.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sketchogd.cli.show.cells import bytes_cell, signed, three_decimals
from sketchogd.lab import records
from sketchogd.lab.pages.reference import Reference
from sketchogd.lab.records import bundles, metrics
from sketchogd.lab.runs.config import RunConfig


def rows_of(configs: Sequence[RunConfig], root: Path, reference: Reference) -> list[dict[str, Any]]:
    """A row per benchmark and method setting of which at least one run is finished.

    Args:
        configs: the runs of the grid.
        root: the folder that has their run folders.
        reference: what to compare with; runs that depart from its protocol are not compared.
    """
    groups: dict[tuple[str, str], list[RunConfig]] = {}
    for config in configs:
        groups.setdefault((config.benchmark, config.setting), []).append(config)
    rows = []
    for (benchmark, label), members in groups.items():
        found = [records.load(root / c.name) for c in members if (root / c.name / "run.json").exists()]
        runs = [run for run in found if run.status == "finished" and run.accuracy is not None]
        if runs:
            rows.append(_row(benchmark, label, members[0], runs, reference))
    return rows


def _row(
    benchmark: str, label: str, config: RunConfig, runs: Sequence[records.Run], reference: Reference
) -> dict[str, Any]:
    row: dict[str, Any] = {"benchmark": benchmark, "method": label, "seeds": len(runs)}
    spreads = metrics.spreads(run.accuracy for run in runs if run.accuracy is not None)
    for name, spread in spreads.items():
        row |= {name: spread.mean, f"{name}_std": spread.std}
    row["bytes"] = max(run.record["ledger"]["nbytes"] for run in runs)
    row["host"] = max(bundles.totals(run.record).get("host", 0) for run in runs)
    row["seconds"] = metrics.spread([run.record["timings"]["total"] for run in runs]).mean
    tasks = 0 if runs[0].accuracy is None else len(runs[0].accuracy)
    found = reference.compare(benchmark, config.method.name, config.record(), tasks, spreads["accuracy"])
    row["published"] = found.published if found.difference is not None else None
    row["difference"] = found.difference
    return row


def columns(rows: Sequence[dict[str, Any]]) -> dict[str, Callable[[Any], str]]:
    """The columns of these rows, each with how its values are written; published values only if there are any."""
    chosen: dict[str, Callable[[Any], str]] = {
        "benchmark": str,
        "method": str,
        "seeds": str,
        "accuracy": three_decimals,
        "forgetting": three_decimals,
        "learning": three_decimals,
        "backward": signed,
        "bytes": bytes_cell,
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
        chosen = dict([*items[:place], ("host", bytes_cell), *items[place:]])
    if len({row["benchmark"] for row in rows}) == 1:
        del chosen["benchmark"]  # the title says it
    if any(row["published"] is not None for row in rows):
        chosen |= {"published": three_decimals, "difference": signed}
    return chosen
