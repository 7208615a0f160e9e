"""The runs in `results/`, looked up by the config that an experiment asks for.

A run belongs to a config if the two are equal except for seed, preset and whether a curve was measured; so a table may
use runs that were made for another one with the same settings.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sketchogd.lab.records import Run, bundles, metrics
from sketchogd.lab.records.metrics import Spread
from sketchogd.lab.runs.config import RunConfig
from sketchogd.paper import goals, presets, published

FREE = ("seed", "preset", "curve")
"""Keys in which a run may differ from the config it is looked up by."""

HALF = "sketchogd, bfloat16 basis"
"""The name of the row for sketchogd with a bfloat16 basis on the device and its sketch on the host."""

OURS = ("layer-sketch", "sketchogd-pull", "sketchogd-blocks", "sketchogd", HALF)

ROWS = (
    *("sgd", *OURS, "gpm", "sketchogd-1", "sketchogd-2", "sketchogd-3", "pca-ogd", "random-ogd", "fd-ogd", "ipca-ogd"),
    *("ogd", "ewc", "si", "a-gem", "replay"),
)
"""The rows of the comparison at equal bytes, in order."""


@dataclass(frozen=True)
class Cell:
    """The runs of one config, one per seed: accuracy, learning accuracy, and the bytes kept (most of any seed)."""

    accuracy: Spread
    learning: Spread
    nbytes: int
    host: int
    kinds: dict[str, int]
    runs: tuple[Run, ...]

    @property
    def device(self) -> int:
        """Bytes kept on the device that has the model."""
        return self.nbytes - self.host


@dataclass(frozen=True)
class Point:
    """A point of accuracy over bytes: the row that it belongs to (`ROWS`), and its run with the first seed.

    Most points have runs of one seed only, so all are compared on that one; `seeds` is over all seeds of the point.
    """

    row: str
    cell: Cell
    seeds: Spread

    @property
    def nbytes(self) -> int:
        """Bytes at which the point is drawn: all of them, or for an offloaded sketch those on the device."""
        return self.cell.device if self.row == HALF else self.cell.nbytes


class Evidence:
    """All finished runs of a folder by their settings, and the settings with which training diverged."""

    def __init__(self, runs: Iterable[Run]) -> None:
        runs = list(runs)
        self._diverged = {_identity(run.config) for run in runs if run.diverged}
        self.runs = [run for run in runs if run.status == "finished" and run.accuracy is not None]
        self._by_setting: dict[str, list[Run]] = {}
        for run in self.runs:
            self._by_setting.setdefault(_identity(run.config), []).append(run)

    @classmethod
    def load(cls, root: str | Path) -> "Evidence":
        """From run folders and bundles at or below `root`.

        Raises:
            ValueError: something there cannot be read.
        """
        runs = []
        for name, run in bundles.everything(root):
            if isinstance(run, str):
                raise ValueError(f"{Path(root) / name}: {run}")
            runs.append(run)
        return cls(runs)

    def cell(self, config: RunConfig, seeds: set[int] | None = None) -> Cell | None:
        """The runs of a config, by default of all seeds; runs of its own preset come first. None if there are none."""
        found: dict[int, Run] = {}
        for run in self._by_setting.get(_identity(config.record()), ()):
            if run.config["seed"] not in found or run.config.get("preset") == config.preset:
                found[run.config["seed"]] = run
        runs = tuple(found[seed] for seed in sorted(found) if seeds is None or seed in seeds)
        if not runs:
            return None
        ledgers = [bundles.totals(run.record) for run in runs]
        largest = max(ledgers, key=lambda ledger: ledger.get("nbytes", 0))
        return Cell(
            metrics.spread([metrics.average_accuracy(run.accuracy) for run in runs]),  # type: ignore[arg-type]
            metrics.spread([metrics.learning_accuracy(run.accuracy) for run in runs]),  # type: ignore[arg-type]
            largest.get("nbytes", 0),
            largest.get("host", 0),
            largest.get("kinds", {}),
            runs,
        )

    def diverged(self, config: RunConfig) -> bool:
        """Whether a run of a config was ended by a loss that is not finite."""
        return _identity(config.record()) in self._diverged

    def points(self, benchmark: str) -> list[Point]:
        """The points of a benchmark, from equal-bytes, the goals, table 1, and OGD of table 2."""
        configs = [*presets.equal_bytes([benchmark], seeds=1).runs]
        configs += [run for run in presets.goals([benchmark], seeds=1).runs if _tuned(run)]
        configs += presets.table1([benchmark], seeds=1).runs + presets.table2([benchmark], ["ogd"], seeds=1).runs
        found: dict[str, Point] = {}
        for config in configs:
            cell, seeds = self.cell(config, {config.seed}), self.cell(config)
            if cell is not None and seeds is not None:
                found.setdefault(_identity(config.record()), Point(row_of(config), cell, seeds.accuracy))
        return sorted(found.values(), key=lambda point: (ROWS.index(point.row), point.nbytes))


def row_of(config: RunConfig) -> str:
    """Which of `ROWS` a run belongs to."""
    return HALF if config.method.options.get("offload") else config.method.name


def outside(ours: Spread, cell: published.Published) -> bool:
    """Whether a mean is more than two published standard deviations away."""
    return abs(round(ours.mean - cell.mean, 6)) > 2 * cell.std


def _identity(config: Mapping[str, Any]) -> str:
    return json.dumps({key: value for key, value in config.items() if key not in FREE}, sort_keys=True)


def _tuned(config: RunConfig) -> bool:
    """Whether a run of the goals has the options that are best on held-out data, as all methods have at equal bytes."""
    own = [goal for goal in goals.goal_list() if goal.benchmark == config.benchmark]
    keys = {goal.key for goal in own if goal.method == config.method}
    better = {goal.key.removesuffix("-tuned") for goal in own if goal.key.endswith("-tuned")}
    return bool(keys - {"one-rule", "quarter", "blocks-bfloat16"} - better)
