"""Tuning: settings scored on training data that is held out, never on test data."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from sketchogd.budget import ANCHORS, HARD
from sketchogd.lab.methods import KINDS, Method, method
from sketchogd.lab.names import unknown
from sketchogd.lab.runs.config import RunConfig
from sketchogd.paper.equal_bytes import BLOCKED, SMALL_BLOCKS, SMALL_BUDGET, block_options
from sketchogd.paper.settings import (
    PAPER,
    PAPER_BYTES,
    PARAMETERS,
    Names,
    Preset,
    checked,
    distinct,
    training_for,
)

VALIDATION = 0.1
"""Share of the training data that is held out."""

TUNED_OPTIONS: dict[str, dict[str, Sequence[float]]] = {
    "sketchogd": {"every": (50, 500, 1000, 2000, 5000), "power": (0.0, 1.0)},
    "layer-sketch": {"strength": (0.5, 1.0, 2.0, 4.0, 8.0), "damping": (0.015, 0.05, 0.15)},
    "sketchogd-pull": {"strength": tuple(2.0**i for i in range(12))},
    "gpm": {"energy": (0.9, 0.95, 0.97, 0.99, 0.999)},
    "ewc": {"strength": (0.1, 1.0, 10.0, 100.0, 1000.0, 3000.0)},
    "si": {"strength": (0.01, 0.1, 1.0, 10.0, 100.0), "damping": (0.1, 1.0)},
}
"""The options that are tuned for each method, and the values that are tried, in all combinations."""


def ridges(benchmarks: Names = None, methods: Names = None, seeds: int = 1) -> Preset:
    """Settings scored on a tenth of the training data, which is held out.

    Raises:
        ValueError: unknown benchmark, a method with nothing to tune, or no seeds.
    """
    runs = []
    for seed in range(seeds):
        for benchmark in checked(benchmarks, seeds):
            for name in methods or TUNED_OPTIONS:
                if name not in TUNED_OPTIONS:
                    raise ValueError(unknown("method with something to tune", name, TUNED_OPTIONS))
                choices = tried(name, benchmark)
                choices += anchored(benchmark).values() if name == "layer-sketch" else ()
                choices += (
                    [m for b in (True, False) for m in blocked(benchmark, b).values()] if name == "sketchogd" else []
                )
                runs += [held_out(benchmark, each, seed) for each in choices]
    return Preset("ridges", "settings scored on held-out training data", distinct(runs))


def held_out(benchmark: str, chosen: Method, seed: int = 0) -> RunConfig:
    """A run that is scored on training data held out from it."""
    return RunConfig(benchmark, chosen, training_for(benchmark), seed, "ridges", validation=VALIDATION)


def tried(name: str, benchmark: str) -> list[Method]:
    """A method once for every combination of its `TUNED_OPTIONS`."""
    options, own = TUNED_OPTIONS[name], PAPER[benchmark]
    room = {"sketchogd": PAPER_BYTES[benchmark], "sketchogd-pull": own.pull_bytes}.get(name, own.small_bytes)
    budget = room if KINDS[name].sizes else None
    fixed = block_options(benchmark, room) if name == "sketchogd-pull" else {}
    choices: list[dict[str, Any]] = [dict(zip(options, values, strict=True)) for values in product(*options.values())]
    if name == "sketchogd-pull":
        weakest, strongest = own.pull_strengths
        choices = [each for each in choices if weakest <= each["strength"] <= strongest]
    return [method(name, budget=budget, **fixed, **each) for each in choices]


def blocked(benchmark: str, small: bool) -> dict[str, Method]:
    """Gradient sketches by number of blocks: in the paper's budget, beside one for all, or, if `small`, in 80 MB."""
    numbers: Sequence[int] = (2, 4, 8, 16, 32) if benchmark in BLOCKED else (4, 16)
    if small:
        numbers = (16, SMALL_BLOCKS) if benchmark in BLOCKED else ()
    budget = SMALL_BUDGET if small else PAPER_BYTES[benchmark]
    one = {} if small else {"1": method("sketchogd", budget=budget)}
    return one | {str(n): method("sketchogd-blocks", budget=budget, blocks=n) for n in numbers}


def anchored(benchmark: str) -> dict[str, Method]:
    """A layer memory in a quarter of its usual bytes with each kind of anchor that fits."""
    budget = PAPER[benchmark].small_bytes // 4
    in_full, rounded, none = (method("layer-sketch", budget=budget, **options) for options in ANCHORS[: HARD + 1])
    found = {"in full": in_full} if 4 * PARAMETERS[benchmark] < budget else {}
    return found | {"one byte per weight": rounded, "none (inputs projected hard)": replace(none, every=1)}
