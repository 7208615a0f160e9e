"""The settings that are tried for each method on a benchmark of networks: as many for each, `TRIES`.

They are scored on `VALIDATION` of the training data, which is held out, and what was best is in chosen.json beside this
file, which `python -m tools.choose --write` makes from the records.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from sketchogd.lab.methods import Method, method
from sketchogd.lab.names import unknown
from sketchogd.lab.streams import BENCHMARKS, Benchmark

TRIES = 4
VALIDATION = 0.2
"""Share of the training data that is held out."""

CHOSEN = Path(__file__).parent / "chosen.json"

Options = dict[str, Any]


def _bases(known: Benchmark, name: str, key: str, values: tuple[float, ...]) -> list[Options]:
    """The published settings, where there are any, with other values of one option."""
    own = dict(known.tuned.get(name, {}))
    usual = {} if own else {"energy": 0.97}
    updates = {} if known.training.optimizer == "sgd" else {"updates": True}
    return [{**usual, **own, **updates, key: value} for value in values]


def _gpm(known: Benchmark) -> list[Options]:
    own = known.tuned.get("gpm-published", {}).get("energy", 0.97)
    return _bases(known, "gpm-published", "energy", (own, *(0.9, 0.95, 0.99)))


def _each(key: str, *values: Any, **fixed: Any) -> Callable[[Benchmark], list[Options]]:
    return lambda known: [{key: value, **fixed} for value in values]


def _owm(known: Benchmark) -> list[Options]:
    updates = {} if known.training.optimizer == "sgd" else {"updates": True}
    return [{"alpha": alpha, **updates} for alpha in (0.1, 1.0, 10.0, 100.0)]


def _der(known: Benchmark) -> list[Options]:
    weights = ((0.1, 0.5), (0.3, 0.5), (0.5, 1.0), (1.0, 0.5))
    return [{"alpha": alpha, "beta": beta, "batch": known.training.batch} for alpha, beta in weights]


OPTIONS: dict[str, Callable[[Benchmark], list[Options]]] = {
    "protect": _each("strength", None, 2.0, 4.0, 12.0),
    "gpm-published": _gpm,
    "sgp": lambda known: _bases(known, "sgp", "scale", (1.0, 3.0, 10.0, 30.0)),
    "owm": _owm,
    "laplace": _each("strength", 1e2, 1e3, 1e4, 1e5),
    "ewc": _each("strength", 1e2, 1e3, 1e4, 1e5, implicit=True),
    "si": _each("strength", 0.1, 1.0, 10.0, 100.0),
    "l2": _each("strength", 0.01, 0.1, 1.0, 10.0, implicit=True),
    "averaging": _each("share", None, 0.5, 0.3, 0.2),
    "lwf": _each("strength", 0.3, 1.0, 3.0, 10.0),
    "a-gem": _each("batch", 10, 32, 64, 128, stored="bytes"),
    "replay": _each("batch", 10, 32, 64, 128, stored="bytes"),
    "der": _der,
}
"""For each method with something to tune: the options of its tries on a benchmark."""

SIZED = ("protect", "a-gem", "replay", "der")
"""Methods that are given the benchmark's budget; the others keep what they keep, and it is in the table."""

KEEP_DATA = ("a-gem", "replay", "der")


def compared() -> dict[str, Benchmark]:
    """The benchmarks on which networks are compared, by name."""
    return {name: known for name, known in BENCHMARKS.items() if known.budget}


def tried(name: str, benchmark: str) -> list[Method]:
    """A method with each of the settings that are tried, the usual one first where there is one.

    Raises:
        ValueError: a method with nothing to tune.
    """
    if name not in OPTIONS:
        raise ValueError(unknown("method with something to tune", name, OPTIONS))
    known = BENCHMARKS[benchmark]
    budget = known.budget if name in SIZED else None
    return [method(name, budget=budget, **options) for options in OPTIONS[name](known)]


def usual(benchmark: str) -> Method:
    """The library's own choice: a budget, and nothing else set."""
    return method("protect", budget=BENCHMARKS[benchmark].budget)


@cache
def choices() -> dict[str, dict[str, dict[str, Any]]]:
    """By benchmark and method: `try`, the number of the chosen one, `held_out`, its accuracy, and `tries`, how many."""
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(CHOSEN.read_text()) if CHOSEN.exists() else {}
    return found


def chosen(name: str, benchmark: str) -> Method:
    """A method as it was chosen on held-out data; before that is known, its first try."""
    picked = choices().get(benchmark, {}).get(name, {"try": 0})
    return tried(name, benchmark)[picked["try"]]
