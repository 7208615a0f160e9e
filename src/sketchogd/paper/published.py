"""The numbers the paper prints, as plain data: mean and standard deviation of the average accuracy over five runs.

`TABLE_1`: sketches see every training gradient. `TABLE_2`: every method compresses the same 4,800 gradients, and OGD
keeps them all. `PROTOCOL`, `TASKS` and `EXAMPLES` are what a run must follow for its numbers to be comparable.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sketchogd.lab.records.metrics import Spread


class Published(NamedTuple):
    """One printed cell."""

    mean: float
    std: float
    table: str


BENCHMARKS = {
    "rotated-mnist": "Rotated MNIST",
    "permuted-mnist": "Permuted MNIST",
    "split-mnist": "Split MNIST",
    "split-cifar100": "Split CIFAR-100",
}
"""Columns of both tables, in the paper's order, with the titles they have in print."""

METHODS = {
    "sgd": "SGD",
    "ogd": "OGD",
    "random-ogd": "RandomOGD",
    "pca-ogd": "PCA-OGD",
    "sketchogd-1": "SketchOGD-1",
    "sketchogd-2": "SketchOGD-2",
    "sketchogd-3": "SketchOGD-3",
    "sketchogd": "SketchOGD",
    "sketchogd-blocks": "SketchOGD in blocks",
    "sketchogd-pull": "SketchOGD in blocks, pulled",
    "gradient-ogd": "Gradients projected",
    "layer-sketch": "LayerSketch",
    "gpm": "GPM",
    "fd-ogd": "FD-OGD",
    "ipca-ogd": "IPCA-OGD",
    "ewc": "EWC",
    "si": "SI",
    "a-gem": "A-GEM",
    "replay": "Replay",
}
"""Titles of the lab's methods, in the order in which they are listed; other methods follow under their own names."""

KEEPS_EXAMPLES = ("a-gem", "a-gem-published", "replay")
"""Methods that keep training examples of old tasks, which the others do without."""

STYLES = (
    *("layer-sketch", "sketchogd", "sketchogd-2", "a-gem", "sketchogd-3", "sketchogd-1", "ogd", "sgd"),
    *("gpm", "fd-ogd", "ipca-ogd", "replay", "si", "ewc", "pca-ogd", "random-ogd"),
    *("sketchogd-blocks", "sketchogd-pull"),
)
"""The place of a method is its style in all figures: colour (eight), dash and marker. Others get the free places."""

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

CURVES = {
    "rotated-mnist": (1, 5, 9),
    "permuted-mnist": (1, 5, 9),
    "split-mnist": (1, 3, 5),
    "split-cifar100": (2, 9, 18),
}
"""Tasks, counted from 1, whose accuracy the paper draws along training."""


def lookup(benchmark: str, method: str, table: str | None = None) -> Published | None:
    """The printed cell of a method, or None; without a table, table 1 and, for what only table 2 has, table 2.

    >>> lookup("split-mnist", "sgd")
    Published(mean=0.604, std=0.003, table='table1')
    >>> lookup("rotated-mnist", "ogd").table
    'table2'
    """
    if benchmark not in BENCHMARKS:
        return None
    column = list(BENCHMARKS).index(benchmark)
    for name in [table] if table in TABLES else list(TABLES):
        if method in TABLES[name]:
            return Published(*TABLES[name][method][column], name)
    return None


def departures(benchmark: str, config: Mapping[str, Any], tasks: int) -> str:
    """How a run of `tasks` tasks departs from the published protocol, as far as its config tells; empty if it does not.

    >>> departures("split-mnist", {"epochs": 3}, tasks=5)
    'epochs 3 instead of 30'
    """
    pairs = [(key, config.get(key), value) for key, value in PROTOCOL.items()]
    pairs += [("n_train", config.get("n_train"), EXAMPLES.get(benchmark)), ("n_test", config.get("n_test"), "all")]
    pairs += [("tasks", tasks, TASKS.get(benchmark)), ("validation", config.get("validation"), "test data")]
    pairs.append(("budget", config.get("budget"), "the published sizes"))
    return ", ".join(f"{key} {ours} instead of {theirs}" for key, ours, theirs in pairs if ours not in (None, theirs))


def compare(
    benchmark: str, method: str, config: Mapping[str, Any], tasks: int, accuracy: Spread
) -> dict[str, float | str | bool | None]:
    """Our average accuracy beside the printed one, as the last columns of a row of the report's table.

    A config whose preset names one of `TABLES` is compared with that one. `outside`: |difference| > 2 s_published +
    s_ours.
    """
    cell = lookup(benchmark, method, config.get("preset"))
    row: dict[str, float | str | bool | None] = {"published": None, "published_std": None, "published_table": None}
    row |= {"shortened": departures(benchmark, config, tasks), "difference": None, "outside": None}
    if cell:
        row |= {"published": cell.mean, "published_std": cell.std, "published_table": cell.table}
    if cell and not row["shortened"]:
        difference = accuracy.mean - cell.mean
        row |= {"difference": difference, "outside": bool(abs(difference) > 2 * cell.std + accuracy.std)}
    return row
