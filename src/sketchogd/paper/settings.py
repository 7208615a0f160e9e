"""What experiments are made of: the paper's memory settings, ours per benchmark (`PAPER`), and grids of runs.

Letters: p protected parameters, k and l the ranks of the paper's sketches.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sketchogd.lab.methods import Method, method
from sketchogd.lab.names import unknown
from sketchogd.lab.runs.config import RunConfig, Training, default_method
from sketchogd.lab.streams import record

__all__ = [
    "MB",
    "PAPER",
    "PAPER_BYTES",
    "PARAMETERS",
    "SIZES",
    "TUNED_SKETCH",
    "Names",
    "PaperBenchmark",
    "Preset",
    "Sizes",
    "checked",
    "default_method",
    "distinct",
    "grid",
    "table1_method",
    "table2_method",
    "training_for",
]

MB = 1_000_000


@dataclass(frozen=True)
class Preset:
    """A named list of runs, with one line about it."""

    name: str
    summary: str
    runs: tuple[RunConfig, ...]


@dataclass(frozen=True)
class Sizes:
    """The paper's memory settings on one benchmark, per task unless said otherwise.

    Args:
        pca: PCA-OGD of experiment 1: gradients sampled, and components kept.
        agem: A-GEM: examples kept, and the size of its memory batch.
        compressed: gradients that every method of experiment 2 is shown (4,800 in all).
        kept: the share of the 1,200 vectors.
    """

    pca: tuple[int, int]
    agem: tuple[int, int]
    compressed: int
    kept: int


@dataclass(frozen=True)
class PaperBenchmark:
    """What the paper's experiments and ours need to know of a benchmark beside its `Benchmark` record.

    Args:
        sizes: the paper's memory settings.
        budgets: bytes at which all methods are compared, beside the paper's budget.
        small_bytes: budget of a layer memory in the goals, a few times the size of the protected weights.
        agem_bytes: budget at which A-GEM is as in table 1, and so not run again.
        layer_full_bytes: about where a layer memory keeps its second moments exactly and more bytes change nothing.
        pull_bytes: budget of a pull by gradients in the goals, at which its strength is tuned.
        pull_strengths: the weakest and the strongest pull by gradients that is tried, as far as it takes to see
            accuracy fall.
        tuned_sketch: options of `sketchogd` in its tuned goals and at equal bytes, chosen on held-out data.
        counted: accuracy to reach with sketches in the paper's budget, everything counted.
        bfloat16: accuracy to reach with a bfloat16 basis of 2,400 vectors, None for no such goal.
        layers: accuracy to reach with layer memories.
        blocked: whether held-out data favours a gradient sketch per block of the parameters over one for all.
        ablated: whether the ablations are run on it.
        every_step: by table, the methods that are run again with a projection after every step.
        released: methods of table 1 that are run again with the permutations of the paper's released code.
        mixed_heads: whether A-GEM is run again with its heads mixed up, as in the released code.
        slowness: how many times fewer runs a piece of `tools.reproduce_all` has, to fit into ten minutes.
    """

    sizes: Sizes
    budgets: tuple[int, ...]
    small_bytes: int
    agem_bytes: int
    layer_full_bytes: int
    pull_bytes: int
    pull_strengths: tuple[float, float]
    tuned_sketch: Mapping[str, Any]
    counted: float
    layers: float
    bfloat16: float | None = None
    blocked: bool = True
    ablated: bool = False
    every_step: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    released: tuple[str, ...] = ()
    mixed_heads: bool = False
    slowness: int = 1


_MLP: dict[str, Any] = {
    "budgets": (MB // 4, MB // 2, MB, 2 * MB, 5 * MB, 20 * MB, 80 * MB),
    "small_bytes": 2 * MB,
    "agem_bytes": 5 * MB,
    "layer_full_bytes": 5 * MB,
    "pull_bytes": 80 * MB,
}
"""What the benchmarks with the MLP share."""

PAPER = {
    "rotated-mnist": PaperBenchmark(
        sizes=Sizes(pca=(200, 100), agem=(120, 120), compressed=480, kept=120),
        **_MLP,
        pull_strengths=(1.0, 512.0),
        tuned_sketch={"every": 2000, "power": 1.0},
        counted=0.890,
        bfloat16=0.900,
        layers=0.905,
        ablated=True,
    ),
    "permuted-mnist": PaperBenchmark(
        sizes=Sizes(pca=(200, 100), agem=(120, 120), compressed=480, kept=120),
        **_MLP,
        pull_strengths=(1.0, 512.0),
        tuned_sketch={"every": 50, "power": 0.0},
        counted=0.830,
        bfloat16=0.843,
        layers=0.925,
        every_step={"table1": ("sketchogd-1", "sketchogd-2", "random-ogd")},
        released=("sgd", "sketchogd-1", "sketchogd-2", "random-ogd"),
    ),
    "split-mnist": PaperBenchmark(
        sizes=Sizes(pca=(300, 180), agem=(240, 240), compressed=960, kept=240),
        **_MLP,
        pull_strengths=(4.0, 2048.0),
        tuned_sketch={"every": 500, "power": 0.0},
        counted=0.690,
        layers=0.910,
        ablated=True,
        every_step={
            "table1": ("sketchogd-1", "sketchogd-2", "sketchogd-3", "pca-ogd", "random-ogd"),
            "table2": ("sketchogd-2", "ogd"),
        },
    ),
    "split-cifar100": PaperBenchmark(
        sizes=Sizes(pca=(200, 50), agem=(60, 1200), compressed=240, kept=60),
        budgets=(MB, 4 * MB, 16 * MB, 64 * MB, 256 * MB, 1500 * MB),
        small_bytes=16 * MB,
        agem_bytes=16 * MB,
        layer_full_bytes=64 * MB,
        pull_bytes=7_687_200_000,  # the paper's budget
        pull_strengths=(4.0, 128.0),
        tuned_sketch={"every": 50, "power": 0.0},
        counted=0.676,
        layers=0.665,
        blocked=False,
        mixed_heads=True,
        slowness=4,
    ),
}
"""The paper's benchmarks by name, in its order."""

PARAMETERS = {name: record(name).parameters for name in PAPER}
"""p."""

PAPER_BYTES = {name: 1200 * 4 * p for name, p in PARAMETERS.items()}
"""The paper's budget: 1,200 vectors of length p in float32."""

SIZES = {name: own.sizes for name, own in PAPER.items()}
"""`PaperBenchmark.sizes` by benchmark."""

TUNED_SKETCH = {name: own.tuned_sketch for name, own in PAPER.items()}
"""`PaperBenchmark.tuned_sketch` by benchmark; in the ablations `sketchogd` projects as often as the other methods."""

SKETCHES: dict[str, dict[str, int]] = {
    "sketchogd-1": {"rank": 1200},
    "sketchogd-2": {"rank": 600},
    "sketchogd-3": {"rank": 299, "corank": 301},
}
"""k, and k with l: in each case 1,200 vectors of length p are kept, the stored test matrices included."""

RANDOM_KEPT = 1200
"""RandomOGD, gradients in all, equally many of each task."""

Names = Sequence[str] | None


def training_for(benchmark: str) -> Training:
    """How the paper trains on a benchmark, quirks included."""
    return record(benchmark).training


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


def checked(benchmarks: Names, seeds: int) -> Sequence[str]:
    """The benchmarks that were asked for, by default all of the paper's.

    Raises:
        ValueError: a benchmark is not one of the paper's, or there are no seeds.
    """
    chosen = benchmarks or tuple(PAPER)
    for name in chosen:
        if name not in PAPER:
            raise ValueError(unknown("benchmark of the paper", name, PAPER))
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
    """The runs without repetitions, in the order of their first appearance.

    Raises:
        ValueError: two different runs have the same name, and so the same folder.
    """
    kept: dict[str, RunConfig] = {}
    for run in runs:
        if kept.setdefault(run.name, run) != run:
            raise ValueError(f"two different runs would share the folder {run.name}")
    return tuple(kept.values())
