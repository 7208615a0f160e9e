"""Accuracies to reach, and the runs that decide whether they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sketchogd.budget import ANCHORS
from sketchogd.lab.methods import KINDS, Method, method
from sketchogd.lab.runs.config import RunConfig
from sketchogd.lab.streams import record
from sketchogd.paper.equal_bytes import BLOCKED, HALF_BASIS, block_options
from sketchogd.paper.settings import (
    MB,
    PAPER,
    PAPER_BYTES,
    TUNED_SKETCH,
    Names,
    Preset,
    checked,
    default_method,
    distinct,
    training_for,
)

ONE_RULE: dict[str, Any] = {}
"""The options of layer-sketch that are the same for all benchmarks: the usual ones."""


@dataclass(frozen=True)
class Goal:
    """An accuracy to reach with a method on a benchmark; `words` states the condition, `key` names it."""

    key: str
    benchmark: str
    method: Method
    accuracy: float
    words: str


_COUNTED = {name: own.counted for name, own in PAPER.items()}
_BFLOAT16 = {name: own.bfloat16 for name, own in PAPER.items() if own.bfloat16 is not None}

_LAYERS = {
    "tuned": "strength tuned on held-out training data",
    "one-rule": "one rule for all four",
    "quarter": "the same rule, the anchor in one byte per weight",
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
        budget = PAPER[benchmark].pull_bytes
        words = "the paper's budget" if budget == PAPER_BYTES[benchmark] else f"{budget / MB:g} MB"
        words += ", everything counted in it; strength tuned on held-out training data"
        chosen = default_method("sketchogd-pull", benchmark, budget=budget, **block_options(benchmark, budget))
        found.append(Goal("pull", benchmark, chosen, accuracy, words))
    for key, words in _LAYERS.items():
        for benchmark, own in PAPER.items():
            budget = own.small_bytes // (4 if key == "quarter" else 1)
            tuned = record(benchmark).tuned["layer-sketch"] if key == "tuned" else {}
            options = ANCHORS[1] if key == "quarter" else tuned
            chosen = method("layer-sketch", budget=budget, **ONE_RULE, **options)
            found.append(Goal(key, benchmark, chosen, own.layers, f"{budget / MB:g} MB, {words}"))
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
    """The runs that decide whether the goals are reached."""
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
