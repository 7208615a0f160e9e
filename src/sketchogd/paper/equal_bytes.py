"""Every method over a range of budgets, all bytes counted. Letters: p protected parameters, T tasks."""

from typing import Any

from sketchogd.budget import parse_bytes
from sketchogd.lab.methods import KINDS, Method, method
from sketchogd.lab.names import unknown
from sketchogd.lab.runs.config import RunConfig
from sketchogd.lab.streams import record
from sketchogd.paper.settings import (
    MB,
    PAPER,
    PAPER_BYTES,
    PARAMETERS,
    SIZES,
    TUNED_SKETCH,
    Names,
    Preset,
    checked,
    default_method,
    distinct,
    training_for,
)

BUDGETS = {name: (*own.budgets, PAPER_BYTES[name]) for name, own in PAPER.items()}
"""From the size of a part of the weights to the paper's budget."""

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
"""With fewer vectors of length p a sketch of gradients protects next to nothing; pca-ogd and random-ogd need T."""

SMALL_BUDGET, SMALL_BLOCKS = 80 * MB, 64
"""At this budget and below the sketches of blocks have small ranks, and held-out data favours more blocks."""

PAPER_SIZED = ("sketchogd-1", "sketchogd-2", "sketchogd-3", "pca-ogd", "random-ogd", "sketchogd", "sketchogd-blocks")
"""Methods whose runs at the paper's budget belong to table 1 or to the goals."""

FIXED_SIZE = ("ewc", "si")
LEFT_OUT = (
    *("sgd", "ogd", "gradient-ogd", "both", "a-gem-published"),
    *("layer-memory", "protect", "der", "gpm-published", "sgp", "owm", "orfit", "laplace", "l2", "averaging", "lwf"),
)
"""Methods without a size or for comparison only, and those that came later, which are compared on networks."""

EXAMPLE_BYTES = {name: record(name).example_nbytes for name in PAPER}
"""Bytes per raw example as A-GEM and replay keep it."""

HALF_BASIS: dict[str, Any] = {"basis_dtype": "bfloat16", "offload": "cpu"}
"""A basis of two bytes per number on the device, and the sketch of four on the host."""

BLOCKED = tuple(name for name, own in PAPER.items() if own.blocked)
"""Benchmarks on which held-out data favours a gradient sketch per block of the parameters over one for all."""


def equal_bytes(
    benchmarks: Names = None, methods: Names = None, seeds: int = 1, budget: str | int | None = None
) -> Preset:
    """Every method over budgets from 0.25 MB to the paper's, all bytes counted; or all at the one that is given.

    Left out: budgets that a method cannot use (too small for it, or larger than everything it could keep), and runs
    that table 1 or the goals have. Methods of fixed size appear once.

    Raises:
        ValueError: unknown benchmark or method, no seeds, or a budget that no method fits into.
    """
    chosen = checked(benchmarks, seeds)
    for name in methods or ():
        if name not in KINDS:
            raise ValueError(unknown("method", name, KINDS))
    usual = [name for name in KINDS if name not in LEFT_OUT]
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
            elsewhere = _elsewhere(name, benchmark) == budget
            chosen += [m for m in sized if not elsewhere or m.options.get("basis_dtype")]
    return chosen


def _at_budget(name: str, benchmark: str, budget: int) -> list[Method]:
    """The settings of a method at a budget: none where it does not fit, two where the basis may have two bytes."""
    p, sizes, tasks = PARAMETERS[benchmark], SIZES[benchmark], record(benchmark).tasks
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
        settings |= TUNED_SKETCH[benchmark] if name == "sketchogd" else {}
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
    """The number of blocks at a budget, where it is not the usual one."""
    return {"blocks": SMALL_BLOCKS} if benchmark in BLOCKED and budget <= SMALL_BUDGET else {}


def _elsewhere(name: str, benchmark: str) -> int | None:
    """The budget at which a method's run belongs to table 1 (the paper's methods) or to the goals (ours)."""
    own = PAPER[benchmark]
    if name in PAPER_SIZED:
        return PAPER_BYTES[benchmark]
    return {"sketchogd-pull": own.pull_bytes, "layer-sketch": own.small_bytes, "a-gem": own.agem_bytes}.get(name)


def _most_bytes(name: str, benchmark: str) -> float:
    """Bytes beyond which a method has no use for more, or is not tried with more."""
    own, known = PAPER[benchmark], record(benchmark)
    if name == "sketchogd-pull":
        return own.pull_bytes
    if name in ("layer-sketch", "gpm"):
        return own.layer_full_bytes
    if name in ("a-gem", "replay"):
        return known.example_nbytes * known.examples * known.tasks
    return float("inf")
