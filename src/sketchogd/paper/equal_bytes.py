"""Experiments of our own: every method over a range of budgets, the goals, and settings tuned without test data.

Letters: p protected parameters, T tasks.
"""

from typing import Any

from sketchogd.budget import parse_bytes
from sketchogd.lab.methods import KINDS, Method, method, unknown
from sketchogd.lab.runs.config import RunConfig
from sketchogd.paper.published import EXAMPLES, TASKS
from sketchogd.paper.settings import (
    PAPER_BYTES,
    PARAMETERS,
    SIZES,
    SMALL_BYTES,
    TUNED_SKETCH,
    Names,
    Preset,
    checked,
    default_method,
    distinct,
    training_for,
)

MB = 1_000_000
_MLP = (MB // 4, MB // 2, MB, 2 * MB, 5 * MB, 20 * MB, 80 * MB)
_CIFAR = (MB, 4 * MB, 16 * MB, 64 * MB, 256 * MB, 1500 * MB)
BUDGETS = {name: (*(_CIFAR if name == "split-cifar100" else _MLP), PAPER_BYTES[name]) for name in PARAMETERS}
"""From the size of a part of the weights to the paper's."""

FEWEST_VECTORS = {
    "sketchogd": 10,
    "sketchogd-blocks": 10,
    "sketchogd-pull": 10,
    "sketchogd-1": 10,
    "fd-ogd": 10,
    "ipca-ogd": 10,
    "sketchogd-2": 20,
    "sketchogd-3": 40,
}
"""Below so many vectors of length p a sketch of gradients protects next to nothing; pca-ogd and random-ogd need T."""

SMALL_BUDGET, SMALL_BLOCKS = 80 * MB, 64
"""With so many bytes or fewer the sketches of blocks have small ranks, and held-out data favours more blocks."""

PULL_BYTES = dict.fromkeys(PARAMETERS, SMALL_BUDGET) | {"split-cifar100": PAPER_BYTES["split-cifar100"]}
"""What a pull by gradients is given in the goals, and where its strength is tuned: a seventh of the paper's budget for
the MNIST benchmarks, and all of it for Split CIFAR-100."""

ELSEWHERE = dict.fromkeys(("sketchogd-1", "sketchogd-2", "sketchogd-3", "pca-ogd", "random-ogd"), PAPER_BYTES)
ELSEWHERE |= {"sketchogd": PAPER_BYTES, "sketchogd-blocks": PAPER_BYTES, "sketchogd-pull": PULL_BYTES}
ELSEWHERE |= {"layer-sketch": SMALL_BYTES, "a-gem": dict.fromkeys(PARAMETERS, 5 * MB) | {"split-cifar100": 16 * MB}}
"""Budgets whose runs belong to table 1 (the paper's methods at the paper's sizes) or to the goals (ours)."""

FIXED_SIZE = ("ewc", "si")
EXAMPLE_BYTES = dict.fromkeys(PARAMETERS, 4 * 1024 + 16) | {"split-cifar100": 4 * 3072 + 16}
"""A raw example as A-GEM and replay keep it: float32, its label and its group."""

LAYER_FULL_BYTES = dict.fromkeys(PARAMETERS, 5 * MB) | {"split-cifar100": 64 * MB}
"""About where a layer memory keeps its second moments exactly and more bytes change nothing."""

HALF_BASIS: dict[str, Any] = {"basis_dtype": "bfloat16", "offload": "cpu"}
"""A basis of two bytes a number on the device, and the sketch in four on the host."""

BLOCKED = ("rotated-mnist", "permuted-mnist", "split-mnist")
"""Benchmarks on which held-out data favours a gradient sketch for each block of the parameters over one for all."""


# ---------------------------------------------------------------- equal bytes


def equal_bytes(
    benchmarks: Names = None, methods: Names = None, seeds: int = 1, budget: str | int | None = None
) -> Preset:
    """Every method over budgets from 0.25 MB to the paper's, all bytes counted; or all at the one that is given.

    Left out: budgets that a method cannot use (too small for it, or beyond where it keeps everything), and runs at the
    paper's own sizes, which tables 1 and 2 and the goals have. What has a fixed size appears once.
    """
    chosen = checked(benchmarks, seeds)
    for name in methods or ():
        if name not in KINDS:
            raise ValueError(unknown("method", name, KINDS))
    usual = [name for name in KINDS if name not in ("sgd", "ogd", "gradient-ogd", "both", "a-gem-published")]
    given = None if budget is None else parse_bytes(budget)
    runs = []
    for seed in range(seeds):
        for benchmark in chosen:
            for name in methods or usual:
                sized = _over_budgets(name, benchmark) if given is None else _at_budget(name, benchmark, given)
                runs += [RunConfig(benchmark, m, training_for(benchmark), seed, "equal-bytes") for m in sized]
    if not runs:
        raise ValueError(f"none of {', '.join(methods or usual)} fits into {budget}")
    return Preset("equal-bytes", "accuracy over the bytes that are kept", distinct(runs))


def _over_budgets(name: str, benchmark: str) -> list[Method]:
    if name in FIXED_SIZE:
        return [default_method(name, benchmark)]
    budgets = BUDGETS[benchmark]
    chosen = []
    for previous, budget in zip((0, *budgets), budgets, strict=False):
        if previous < _most_bytes(name, benchmark):
            sized = _at_budget(name, benchmark, budget)
            elsewhere = ELSEWHERE.get(name, {}).get(benchmark) == budget
            chosen += [m for m in sized if not elsewhere or m.options.get("basis_dtype")]
    return chosen


def _at_budget(name: str, benchmark: str, budget: int) -> list[Method]:
    """The settings of a method at a budget: none where it does not fit, two where the basis may have two bytes."""
    p, sizes, tasks = PARAMETERS[benchmark], SIZES[benchmark], TASKS[benchmark]
    settings: dict[str, Any] = {"budget": budget}
    if name in ("layer-sketch", "gpm"):
        # The copy of the weights that lazy projection needs would take most of a small budget.
        if name == "gpm" and budget < 8 * p:
            return [method(name, every=1, **settings)]
        return [default_method(name, benchmark, **settings)]
    if name == "sketchogd-blocks" and benchmark not in BLOCKED:
        return []
    if name in ("sketchogd-blocks", "sketchogd-pull"):
        settings |= block_options(benchmark, budget)
    if name in ("pca-ogd", "random-ogd") or name in FEWEST_VECTORS:
        settings |= {"samples": sizes.pca[0]} if name == "pca-ogd" else {}
        settings |= TUNED_SKETCH.get(benchmark, {}) if name == "sketchogd" else {}
        fewest = FEWEST_VECTORS.get(name, tasks)
        if (fewest + 1) * 4 * p > budget:
            return []
        halves = [HALF_BASIS] if name == "sketchogd" and budget >= 20 * 4 * p else []
        return [default_method(name, benchmark, **settings, **extra) for extra in ({}, *halves)]
    if name == "a-gem":
        return [default_method(name, benchmark, batch=sizes.agem[1], **settings)]
    if name in FIXED_SIZE and budget < {"ewc": 2, "si": 3}[name] * 4 * p:
        return []
    return [default_method(name, benchmark, **settings)]


def block_options(benchmark: str, budget: int) -> dict[str, Any]:
    """The number of blocks at a budget, where that is not as usual."""
    return {"blocks": SMALL_BLOCKS} if benchmark in BLOCKED and budget <= SMALL_BUDGET else {}


def _most_bytes(name: str, benchmark: str) -> float:
    """Bytes beyond which a method has no use for more, or is not tried with more."""
    if name == "sketchogd-pull":
        return PULL_BYTES[benchmark]
    if name in ("layer-sketch", "gpm"):
        return LAYER_FULL_BYTES[benchmark]
    if name in ("a-gem", "replay"):
        return EXAMPLE_BYTES[benchmark] * EXAMPLES[benchmark] * TASKS[benchmark]
    return float("inf")


# ---------------------------------------------------------------- goals


# ---------------------------------------------------------------- tuning
