"""The numbers the paper prints, as plain data: mean and standard deviation of the average accuracy over five runs.

`TABLE_1`: sketches see every training gradient. `TABLE_2`: every method compresses the same 4,800 gradients, and OGD
keeps them all. Runs are comparable if they follow `PROTOCOL`, `TASKS` and `EXAMPLES`; `PAPER` compares them in reports.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from sketchogd.lab.pages.reference import Comparison, Reference
from sketchogd.lab.records.metrics import Spread


class Published(NamedTuple):
    """One printed cell."""

    mean: float
    std: float
    table: str


BENCHMARKS = ("rotated-mnist", "permuted-mnist", "split-mnist", "split-cifar100")
"""Columns of both tables, in the paper's order."""

TABLE_1 = {
    "sketchogd-1": ((0.865, 0.004), (0.832, 0.004), (0.679, 0.004), (0.676, 0.002)),
    "sketchogd-2": ((0.876, 0.004), (0.826, 0.004), (0.675, 0.007), (0.672, 0.002)),
    "sketchogd-3": ((0.875, 0.006), (0.825, 0.002), (0.676, 0.006), (0.673, 0.002)),
    "pca-ogd": ((0.849, 0.004), (0.821, 0.004), (0.673, 0.001), (0.674, 0.002)),
    "random-ogd": ((0.847, 0.007), (0.819, 0.002), (0.667, 0.004), (0.672, 0.002)),
    "sgd": ((0.792, 0.009), (0.734, 0.019), (0.604, 0.003), (0.649, 0.002)),
    "a-gem": ((0.902, 0.002), (0.887, 0.001), (0.905, 0.001), (0.379, 0.024)),
}

TABLE_2 = {
    "sketchogd-1": ((0.863, 0.005), (0.830, 0.002), (0.684, 0.007), (0.674, 0.003)),
    "sketchogd-2": ((0.860, 0.006), (0.818, 0.005), (0.673, 0.006), (0.675, 0.002)),
    "sketchogd-3": ((0.862, 0.007), (0.812, 0.003), (0.677, 0.003), (0.675, 0.001)),
    "pca-ogd": ((0.864, 0.004), (0.830, 0.002), (0.678, 0.006), (0.675, 0.002)),
    "random-ogd": ((0.847, 0.007), (0.819, 0.002), (0.667, 0.004), (0.672, 0.002)),
    "ogd": ((0.888, 0.006), (0.838, 0.004), (0.714, 0.002), (0.675, 0.006)),
}

TABLES = {"table1": TABLE_1, "table2": TABLE_2}

PROTOCOL = {"epochs": 30, "lr": 1e-3, "batch": 10, "optimizer": "sgd", "degrees": 5.0}
"""Settings that all published runs share."""

TASKS = {"rotated-mnist": 10, "permuted-mnist": 10, "split-mnist": 5, "split-cifar100": 20}
"""Tasks of each benchmark."""

EXAMPLES = {"rotated-mnist": 10_000, "permuted-mnist": 10_000, "split-mnist": 2_000, "split-cifar100": 2_500}
"""Training examples of one task."""


def lookup(benchmark: str, method: str, table: str | None = None) -> Published | None:
    """The printed cell of a method, or None; without a table, from table 1 or, for methods not in it, from table 2.

    >>> lookup("split-mnist", "sgd")
    Published(mean=0.604, std=0.003, table='table1')
    >>> lookup("rotated-mnist", "ogd").table
    'table2'
    """
    if benchmark not in BENCHMARKS:
        return None
    column = BENCHMARKS.index(benchmark)
    for name in [table] if table in TABLES else list(TABLES):
        if method in TABLES[name]:
            return Published(*TABLES[name][method][column], name)
    return None


def departures(benchmark: str, config: Mapping[str, Any], tasks: int) -> str:
    """How a run of `tasks` tasks departs from the published protocol, judging by its config; empty if it does not.

    >>> departures("split-mnist", {"epochs": 3}, tasks=5)
    'epochs 3 instead of 30'
    """
    pairs = [(key, config.get(key), value) for key, value in PROTOCOL.items()]
    pairs += [("n_train", config.get("n_train"), EXAMPLES.get(benchmark)), ("n_test", config.get("n_test"), "all")]
    pairs += [("tasks", tasks, TASKS.get(benchmark)), ("validation", config.get("validation"), "test data")]
    pairs.append(("budget", config.get("budget"), "the published sizes"))
    return ", ".join(f"{key} {ours} instead of {theirs}" for key, ours, theirs in pairs if ours not in (None, theirs))


class Paper(Reference):
    """The paper's tables as a reference; a run whose preset names one of `TABLES` is compared with that one."""

    source = "the values published in the SketchOGD paper"
    tables: ClassVar[Mapping[str, str]] = {"table1": "table 1", "table2": "table 2"}

    def compare(
        self, benchmark: str, method: str, config: Mapping[str, Any], tasks: int, accuracy: Spread
    ) -> Comparison:
        """Our average accuracy beside the printed one; outside: |difference| > 2 s_published + s_ours."""
        cell, shortened = lookup(benchmark, method, config.get("preset")), departures(benchmark, config, tasks)
        if cell is None:
            return Comparison(shortened=shortened)
        if shortened:
            return Comparison(cell.mean, cell.std, cell.table, shortened)
        difference = accuracy.mean - cell.mean
        outside = bool(abs(difference) > 2 * cell.std + accuracy.std)
        return Comparison(cell.mean, cell.std, cell.table, shortened, difference, outside)


PAPER = Paper()
