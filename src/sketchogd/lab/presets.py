"""The paper's experiments and ours, each a function that returns a `Preset`: a name and the runs it consists of.

Every memory setting of the paper is in this file; the numbers it prints are in `published`. The paper projects every
step; these presets project the joint displacement of 50, which lands on the same constraint with a fiftieth of the
projections. `--every 1` is the paper's to the letter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sketchogd.budget import parse_bytes
from sketchogd.lab import published
from sketchogd.lab.configs import RunConfig, Training
from sketchogd.lab.methods import KINDS, Method, method, unknown
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

EQUAL_BYTES = dict.fromkeys(BENCHMARKS, "10MB") | {"split-cifar100": "256MB"}
LAYER_OPTIONS: dict[str, dict[str, Any]] = {"split-cifar100": {"ridge": 200.0}}
"""Where the default ridge of layer-sketch is not the right one."""

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
    """A method with its usual settings, which for layer-sketch depend on the benchmark."""
    extra = LAYER_OPTIONS.get(benchmark, {}) if name == "layer-sketch" else {}
    return method(name, **{**extra, **settings})


def table1(benchmarks: Names = None, methods: Names = None, seeds: int = 5) -> Preset:
    """Table 1: the paper's methods where sketches see every training gradient."""
    runs = _grid("table1", benchmarks, methods or tuple(published.TABLE_1), seeds, table1_method)
    return Preset("table1", "experiment 1: every training gradient", runs)


def table2(benchmarks: Names = None, methods: Names = None, seeds: int = 5) -> Preset:
    """Table 2: the paper's methods on the same 4,800 gradients."""
    runs = _grid("table2", benchmarks, methods or tuple(published.TABLE_2), seeds, table2_method)
    return Preset("table2", "experiment 2: the same 4,800 gradients for all", runs)


def spectra(benchmarks: Names = None, methods: Names = None, seeds: int = 1) -> Preset:
    """The figure of singular values: 4,800 gradients of each benchmark, as OGD keeps them."""

    def kept(name: str, benchmark: str) -> Method:
        return method(name, examples=SIZES[benchmark].compressed)

    runs = _grid("spectra", benchmarks, methods or ("ogd",), seeds, kept)
    return Preset("spectra", "singular values of 4,800 gradients", runs)


def curves(benchmarks: Names = None, methods: Names = None, seeds: int = 1) -> Preset:
    """The figures of accuracy along training: the runs of table 1, evaluated after every epoch."""
    runs = _grid("curves", benchmarks, methods or tuple(published.TABLE_1), seeds, table1_method)
    return Preset("curves", "accuracy of chosen tasks along training", runs)


def equal_bytes(
    benchmarks: Names = None, methods: Names = None, seeds: int = 1, budget: str | int | None = None
) -> Preset:
    """Every method at one budget, all bytes counted: those that have a size are given the largest that fits."""
    chosen = methods or [name for name in KINDS if name not in ("ogd", "sgd")]

    def sized(name: str, benchmark: str) -> Method:
        limit = parse_bytes(EQUAL_BYTES[benchmark] if budget is None else budget)
        return default_method(name, benchmark, budget=limit)

    runs = _grid("equal-bytes", benchmarks, chosen, seeds, sized)
    return Preset("equal-bytes", "every method at one budget", runs)


def demo(seeds: int = 1) -> Preset:
    """Two minutes on two cores: five rotations of the embedded MNIST, 15 degrees apart, and five methods."""
    chosen = [
        method("sgd"),
        method("ogd", examples=60),
        method("sketchogd", rank=150, examples=400),
        method("layer-sketch", ridge=0.2),
        method("a-gem", per_task=120, batch=30),
    ]
    training = Training(epochs=5, lr=0.01)
    size: dict[str, Any] = {"tasks": 5, "n_train": 2000, "n_test": 2000, "degrees": 15.0}
    runs = [
        RunConfig("rotated-mnist", settings, training, seed, "demo", **size)
        for seed in range(seeds)
        for settings in chosen
    ]
    return Preset("demo", "Rotated MNIST in two minutes", tuple(runs))


PRESETS: dict[str, Callable[..., Preset]] = {
    "table1": table1,
    "table2": table2,
    "spectra": spectra,
    "curves": curves,
    "equal-bytes": equal_bytes,
}
"""What `sketchogd reproduce` knows."""


def changed(preset: Preset, *, every: int | None = None, epochs: int | None = None) -> Preset:
    """The preset with other numbers of steps between projections, or of epochs."""
    runs = []
    for run in preset.runs:
        settings = run.method
        if every is not None and KINDS[settings.name].every != 1:  # methods without a projection stay
            settings = replace(settings, every=every)
        training = run.training if epochs is None else replace(run.training, epochs=epochs)
        runs.append(replace(run, method=settings, training=training))
    return replace(preset, runs=tuple(runs))


def _grid(
    preset: str, benchmarks: Names, methods: Sequence[str], seeds: int, choose: Callable[[str, str], Method]
) -> tuple[RunConfig, ...]:
    """Seeds × benchmarks × methods, in an order in which every method has its first seed before any has its second."""
    chosen = benchmarks or BENCHMARKS
    for name in chosen:
        if name not in BENCHMARKS:
            raise ValueError(unknown("benchmark", name, BENCHMARKS))
    if seeds < 1:
        raise ValueError(f"at least one seed is needed; got {seeds}")
    return tuple(
        RunConfig(benchmark, choose(name, benchmark), training_for(benchmark), seed, preset)
        for seed in range(seeds)
        for benchmark in chosen
        for name in methods
    )
