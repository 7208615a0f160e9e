"""What experiments are made of: the paper's memory settings, how it trains, tuned options, and grids of runs.

Letters: p protected parameters, k and l the ranks of the paper's sketches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sketchogd.budget import ANCHORS, anchor_for
from sketchogd.lab.methods import Method, method, unknown
from sketchogd.lab.runs.config import RunConfig, Training
from sketchogd.lab.streams import BENCHMARKS


@dataclass(frozen=True)
class Preset:
    """A named list of runs, with one line about it."""

    name: str
    summary: str
    runs: tuple[RunConfig, ...]


@dataclass(frozen=True)
class Sizes:
    """The paper's memory settings on one benchmark, counted for one task unless said otherwise.

    pca: PCA-OGD of experiment 1, sampled gradients and components kept. agem: A-GEM, examples kept, and the size of
    its memory batch. compressed: gradients that every method of experiment 2 is shown (4,800 in all). kept: a task's
    share of the 1,200 vectors.
    """

    pca: tuple[int, int]
    agem: tuple[int, int]
    compressed: int
    kept: int


SIZES = {
    "rotated-mnist": Sizes(pca=(200, 100), agem=(120, 120), compressed=480, kept=120),
    "permuted-mnist": Sizes(pca=(200, 100), agem=(120, 120), compressed=480, kept=120),
    "split-mnist": Sizes(pca=(300, 180), agem=(240, 240), compressed=960, kept=240),
    "split-cifar100": Sizes(pca=(200, 50), agem=(60, 1200), compressed=240, kept=60),
}

SKETCHES: dict[str, dict[str, int]] = {
    "sketchogd-1": {"rank": 1200},
    "sketchogd-2": {"rank": 600},
    "sketchogd-3": {"rank": 299, "corank": 301},
}
"""k, and k with l: in each case 1,200 vectors of length p are kept, the stored test matrices included."""

RANDOM_KEPT = 1200
"""RandomOGD, gradients in all, equally many of each task."""

PAPER_TRAINING = Training(epochs=30, batch=10, lr=1e-3, optimizer="sgd")
CIFAR_TRAINING = replace(PAPER_TRAINING, frozen=("conv*",), eval_after_first_step=True)
"""The published Split CIFAR-100 runs never update the convolutions and stay in evaluation mode after the first step."""

PARAMETERS = {"rotated-mnist": 113_610, "permuted-mnist": 113_610, "split-mnist": 112_802, "split-cifar100": 1_601_500}
"""p."""

PAPER_BYTES = {benchmark: 1200 * 4 * p for benchmark, p in PARAMETERS.items()}
"""The paper's budget: 1,200 vectors of length p in float32."""

SMALL_BYTES = dict.fromkeys(BENCHMARKS, 2_000_000) | {"split-cifar100": 16_000_000}
"""What a layer memory is given in the goals: a few times the size of the protected weights."""

TUNED: dict[str, dict[str, dict[str, Any]]] = {
    "layer-sketch": {
        "rotated-mnist": {"strength": 1.0, "damping": 0.015},
        "permuted-mnist": {"strength": 1.0, "damping": 0.015},
        "split-mnist": {"strength": 4.0, "damping": 0.05},
        "split-cifar100": {"strength": 1.0, "damping": 0.015},
    },
    "sketchogd-pull": {
        "rotated-mnist": {"strength": 4.0},
        "permuted-mnist": {"strength": 2.0},
        "split-mnist": {"strength": 512.0},
        "split-cifar100": {"strength": 8.0},
    },
    "gpm": {
        "rotated-mnist": {"energy": 0.97},
        "permuted-mnist": {"energy": 0.97},
        "split-cifar100": {"energy": 0.9},
    },
    "ewc": {"split-mnist": {"strength": 1000.0}, "split-cifar100": {"strength": 1.0}},
    "si": {
        "permuted-mnist": {"strength": 10.0, "damping": 1.0},
        "split-mnist": {"strength": 100.0},
        "split-cifar100": {"strength": 100.0, "damping": 1.0},
    },
}
"""Options by method and benchmark where the usual ones are not the best; chosen by `sketchogd reproduce ridges`."""

TUNED_SKETCH: dict[str, dict[str, Any]] = {
    "rotated-mnist": {"every": 2000, "power": 1.0},
    "permuted-mnist": {"every": 50, "power": 0.0},
    "split-mnist": {"every": 500, "power": 0.0},
    "split-cifar100": {"every": 50, "power": 0.0},
}
"""The same for `sketchogd`, which has them in its tuned goals and at equal bytes; in the ablations it projects as often
as the others do."""

Names = Sequence[str] | None


def training_for(benchmark: str) -> Training:
    """How the paper trains on a benchmark, quirks included."""
    return CIFAR_TRAINING if benchmark == "split-cifar100" else PAPER_TRAINING


def table1_method(name: str, benchmark: str) -> Method:
    """A method of experiment 1: sketches see every training gradient."""
    sizes = SIZES[benchmark]
    if name in SKETCHES:
        return method(name, **SKETCHES[name])
    if name == "pca-ogd":
        return method(name, samples=sizes.pca[0], components=sizes.pca[1])
    if name == "random-ogd":
        return method(name, capacity=RANDOM_KEPT)
    if name == "a-gem":
        return method(name, per_task=sizes.agem[0], batch=sizes.agem[1])
    return default_method(name, benchmark)


def table2_method(name: str, benchmark: str) -> Method:
    """A method of experiment 2: all compress the same 4,800 gradients to 1,200 vectors; OGD keeps all of them."""
    sizes = SIZES[benchmark]
    if name in SKETCHES:
        return method(name, examples=sizes.compressed, **SKETCHES[name])
    if name == "pca-ogd":
        return method(name, samples=sizes.compressed, components=sizes.kept)
    if name == "ogd":
        return method(name, examples=sizes.compressed)
    return table1_method(name, benchmark)


def default_method(name: str, benchmark: str, **settings: Any) -> Method:
    """A method with its usual settings, or what was tuned for the benchmark; a ridge takes the place of a strength.

    The anchor of a layer memory is kept as its budget asks for, unless something is said about it.
    """
    budget = settings.get("budget")
    if name == "layer-sketch" and budget is not None and not settings.keys() & {"ridge", "anchor_dtype"}:
        p = PARAMETERS[benchmark]
        anchor = ANCHORS[anchor_for(budget, (4 * p, p, 0))]
        settings |= anchor
        if "ridge" in anchor and settings.get("every") is None:
            settings["every"] = 1  # steps that are projected together would need a copy of the weights as well
    tuned = {} if settings.get("ridge") is not None else TUNED.get(name, {}).get(benchmark, {})
    return method(name, **{**tuned, **settings})


def checked(benchmarks: Names, seeds: int) -> Sequence[str]:
    """The benchmarks that were asked for, all four by default; unknown ones, and fewer than one seed, are errors."""
    chosen = benchmarks or tuple(BENCHMARKS)
    for name in chosen:
        if name not in BENCHMARKS:
            raise ValueError(unknown("benchmark", name, BENCHMARKS))
    if seeds < 1:
        raise ValueError(f"at least one seed is needed; got {seeds}")
    return chosen


def grid(
    preset: str, benchmarks: Names, methods: Sequence[str], seeds: int, choose: Callable[[str, str], Method]
) -> tuple[RunConfig, ...]:
    """Seeds × benchmarks × methods, in an order in which every method has its first seed before any has its second."""
    chosen = checked(benchmarks, seeds)
    return tuple(
        RunConfig(benchmark, choose(name, benchmark), training_for(benchmark), seed, preset)
        for seed in range(seeds)
        for benchmark in chosen
        for name in methods
    )


def distinct(runs: Sequence[RunConfig]) -> tuple[RunConfig, ...]:
    """The runs, each once, in the order in which they first appear; equal names must mean equal runs."""
    kept: dict[str, RunConfig] = {}
    for run in runs:
        if kept.setdefault(run.name, run) != run:
            raise ValueError(f"two different runs would share the folder {run.name}")
    return tuple(kept.values())
