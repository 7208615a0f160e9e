"""Experiments of our own: every method over a range of budgets, the goals, and settings tuned without test data.

Letters: p protected parameters, T tasks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from sketchogd.budget import ANCHORS, parse_bytes
from sketchogd.lab.configs import RunConfig
from sketchogd.lab.methods import KINDS, Method, method, unknown
from sketchogd.lab.published import EXAMPLES, TASKS
from sketchogd.lab.settings import (
    PAPER_BYTES,
    PARAMETERS,
    SIZES,
    SMALL_BYTES,
    TUNED,
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

ONE_RULE: dict[str, Any] = {}
"""The options of layer-sketch that are the same for all benchmarks: the usual ones."""


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
        settings |= _blocks(benchmark, budget)
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


def _blocks(benchmark: str, budget: int) -> dict[str, Any]:
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


@dataclass(frozen=True)
class Goal:
    """An accuracy to reach with a method on a benchmark; `words` says under which condition, `key` in one word."""

    key: str
    benchmark: str
    method: Method
    accuracy: float
    words: str


_COUNTED = dict(zip(PARAMETERS, (0.890, 0.830, 0.690, 0.676), strict=True))
_BFLOAT16 = {"rotated-mnist": 0.900, "permuted-mnist": 0.843}
_LAYERS = {
    "tuned": "strength tuned on held-out training data",
    "one-rule": "one rule for all four",
    "quarter": "the same rule, the anchor in one byte a weight",
}


def goal_list() -> list[Goal]:
    """All goals. The paper's budget is 1,200 vectors of length p in float32."""
    found = [_sketch_goal("counted", benchmark, accuracy, {}) for benchmark, accuracy in _COUNTED.items()]
    found += [_sketch_goal("bfloat16", benchmark, accuracy, {}) for benchmark, accuracy in _BFLOAT16.items()]
    for key, goals in (("counted", _COUNTED), ("bfloat16", _BFLOAT16)):
        found += [_sketch_goal(key, b, goals[b], options) for b, options in TUNED_SKETCH.items() if b in goals]
    found += [
        Goal(key, benchmark, method("sketchogd-blocks", budget=PAPER_BYTES[benchmark], **half), accuracy, words)
        for key, goals, half, words in (
            ("blocks", _COUNTED, {}, "the paper's budget, everything counted in it; 16 blocks"),
            ("blocks-bfloat16", _BFLOAT16, HALF_BASIS, "a bfloat16 basis in the paper's budget; 16 blocks"),
        )
        for benchmark, accuracy in goals.items()
        if benchmark in BLOCKED
    ]
    for benchmark, accuracy in _COUNTED.items():
        budget = PULL_BYTES[benchmark]
        words = "the paper's budget" if budget == PAPER_BYTES[benchmark] else f"{budget / MB:g} MB"
        words += ", everything counted in it; strength tuned on held-out training data"
        chosen = default_method("sketchogd-pull", benchmark, budget=budget, **_blocks(benchmark, budget))
        found.append(Goal("pull", benchmark, chosen, accuracy, words))
    for key, words in _LAYERS.items():
        for benchmark, accuracy in zip(PARAMETERS, (0.905, 0.925, 0.910, 0.665), strict=True):
            budget = SMALL_BYTES[benchmark] // (4 if key == "quarter" else 1)
            options = ANCHORS[1] if key == "quarter" else TUNED["layer-sketch"][benchmark] if key == "tuned" else {}
            chosen = method("layer-sketch", budget=budget, **ONE_RULE, **options)
            found.append(Goal(key, benchmark, chosen, accuracy, f"{budget / MB:g} MB, {words}"))
    return found


def _sketch_goal(key: str, benchmark: str, accuracy: float, tuned: Mapping[str, Any]) -> Goal:
    """A goal for sketchogd with its usual settings, or with tuned ones."""
    size: dict[str, Any] = {"budget": PAPER_BYTES[benchmark]} if key == "counted" else {"rank": 2400, **HALF_BASIS}
    words = {
        "counted": "the paper's budget, everything counted in it",
        "bfloat16": "a bfloat16 basis of 2,400 vectors",
    }[key]
    if tuned:
        words += "; every {every} and power {power:g}, tuned on held-out training data".format(**tuned)
    suffix = "-tuned" if tuned else ""
    return Goal(key + suffix, benchmark, default_method("sketchogd", benchmark, **size, **tuned), accuracy, words)


def goals(benchmarks: Names = None, methods: Names = None, seeds: int = 5) -> Preset:
    """The runs that decide the goals."""
    chosen = checked(benchmarks, seeds)
    runs = [
        RunConfig(goal.benchmark, goal.method, training_for(goal.benchmark), seed, "goals")
        for seed in range(seeds)
        for goal in goal_list()
        if goal.benchmark in chosen and goal.method.name in (methods or KINDS)
    ]
    if not runs:
        raise ValueError(f"no goal is set for {', '.join(methods or ())} on {', '.join(chosen)}")
    return Preset("goals", "the configurations that the goals are set for", distinct(runs))


# ---------------------------------------------------------------- tuning

VALIDATION = 0.1
PULL_STRENGTHS = {
    "rotated-mnist": (1.0, 512.0),
    "permuted-mnist": (1.0, 512.0),
    "split-mnist": (4.0, 2048.0),
    "split-cifar100": (4.0, 128.0),
}
"""The weakest and the strongest pull by gradients that is tried: as far as it takes to see accuracy fall."""

TUNED_OPTIONS: dict[str, dict[str, Sequence[float]]] = {
    "sketchogd": {"every": (50, 500, 1000, 2000, 5000), "power": (0.0, 1.0)},
    "layer-sketch": {"strength": (0.5, 1.0, 2.0, 4.0, 8.0), "damping": (0.015, 0.05, 0.15)},
    "sketchogd-pull": {"strength": tuple(2.0**i for i in range(12))},
    "gpm": {"energy": (0.9, 0.95, 0.97, 0.99, 0.999)},
    "ewc": {"strength": (0.1, 1.0, 10.0, 100.0, 1000.0, 3000.0)},
    "si": {"strength": (0.01, 0.1, 1.0, 10.0, 100.0), "damping": (0.1, 1.0)},
}
"""The options that are tuned for each method, and the values that are tried, all with all."""


def ridges(benchmarks: Names = None, methods: Names = None, seeds: int = 1) -> Preset:
    """Settings to choose from, scored on a tenth of the training data that is held out."""
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
    """A method with each of its `TUNED_OPTIONS`."""
    options = TUNED_OPTIONS[name]
    room = {"sketchogd": PAPER_BYTES, "sketchogd-pull": PULL_BYTES}.get(name, SMALL_BYTES)
    budget = room[benchmark] if KINDS[name].sizes else None
    fixed = _blocks(benchmark, room[benchmark]) if name == "sketchogd-pull" else {}
    choices: list[dict[str, Any]] = [dict(zip(options, values, strict=True)) for values in product(*options.values())]
    if name == "sketchogd-pull":
        weakest, strongest = PULL_STRENGTHS[benchmark]
        choices = [each for each in choices if weakest <= each["strength"] <= strongest]
    return [method(name, budget=budget, **fixed, **each) for each in choices]


def blocked(benchmark: str, small: bool) -> dict[str, Method]:
    """A gradient sketch for each of so many blocks, in the paper's budget beside one for all, or, `small`, in 80 MB."""
    numbers: Sequence[int] = (2, 4, 8, 16, 32) if benchmark in BLOCKED else (4, 16)
    if small:
        numbers = (16, SMALL_BLOCKS) if benchmark in BLOCKED else ()
    budget = SMALL_BUDGET if small else PAPER_BYTES[benchmark]
    one = {} if small else {"1": method("sketchogd", budget=budget)}
    return one | {str(n): method("sketchogd-blocks", budget=budget, blocks=n) for n in numbers}


def anchored(benchmark: str) -> dict[str, Method]:
    """A layer memory in a quarter of its usual bytes, by what is left of its anchor, where that fits."""
    budget = SMALL_BYTES[benchmark] // 4
    in_full, rounded, none = (method("layer-sketch", budget=budget, **options) for options in ANCHORS)
    found = {"in full": in_full} if 4 * PARAMETERS[benchmark] < budget else {}
    return found | {"one byte a weight": rounded, "none (inputs projected hard)": replace(none, every=1)}
