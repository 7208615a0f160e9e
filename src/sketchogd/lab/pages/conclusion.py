"""What the runs of a page say, in a sentence per benchmark: which method ends highest, by how much, with which bytes.

The accuracy is the average accuracy after the last task, a mean over `n` seeds with deviation s. Methods that keep
training examples are compared with, but do not win: the question is what can be had without keeping data.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sketchogd.budget import format_bytes
from sketchogd.lab.methods import registry
from sketchogd.lab.pages.groups import title_of

Data = Mapping[str, Any]
"""A group as `report.page_data` has it."""


def conclusion(groups: Sequence[Data]) -> tuple[str, list[str]]:
    """The sentence on top of the page and, where there are several benchmarks, one more for each of them."""
    found: dict[str, list[Data]] = {}
    for group in groups:
        if "row" in group:
            found.setdefault(group["benchmark"], []).append(group)
    if not found:
        return "No finished run has accuracies yet.", []
    sentences = [_of_benchmark(title_of(name), members) for name, members in found.items()]
    if len(found) == 1:
        return sentences[0], []
    return _of_all(found), sentences


def _of_all(found: Mapping[str, Sequence[Data]]) -> str:
    """Which method is best on how many of several benchmarks."""
    winners: dict[str, list[str]] = {}
    for name, members in found.items():
        winners.setdefault(registry.title(_best(_free(members) or members)["row"]["method"]), []).append(name)
    (first, places), *others = sorted(winners.items(), key=lambda item: -len(item[1]))
    kind = (
        " of the methods that keep no examples" if any(g["keeps_examples"] for m in found.values() for g in m) else ""
    )
    if len(places) == 1:
        every = "; ".join(f"{title} on {_listed(map(title_of, names))}" for title, names in winners.items())
        return f"Which{kind or ' method'} has the highest average accuracy differs by benchmark: {every}."
    where = f"on all {len(found)} benchmarks" if not others else f"on {len(places)} of {len(found)} benchmarks"
    rest = "".join(f"; on {_listed(map(title_of, names))} it is {title}" for title, names in others)
    return f"{first} has the highest average accuracy{kind} {where}{rest}."


def _of_benchmark(title: str, groups: Sequence[Data]) -> str:
    """The sentence of one benchmark, with a warning where its numbers do not carry it."""
    free = _free(groups)
    best = _best(free or groups)
    accuracy = best["row"]["accuracy"]
    if len(groups) == 1:
        return f"On {title}, {best['label']} ends at an average accuracy of {_mean(best)}{_kept(best)}."
    plain = [group for group in free if group["row"]["nbytes"] == 0]
    unprotected = _best(plain) if plain else None
    stored = [group for group in groups if group["keeps_examples"]]
    if unprotected is best:
        others = [group for group in free if group is not best]
        next_ = f"; {_best(others)['label']} comes closest ({_mean(_best(others))})" if others else ""
        said = f"On {title}, no method that keeps no examples ends above {best['label']}, "
        said += f"which keeps nothing ({_mean(best)}){next_}"
    else:
        said = f"On {title}, {best['label']} ends highest"
        said += " of the methods that keep no examples" if stored and free else ""
        said += f": average accuracy {_mean(best)}{_kept(best)}"
        if unprotected:
            # Of the rounded numbers, so that a reader's own subtraction agrees.
            gain = round(accuracy, 3) - round(unprotected["row"]["accuracy"], 3)
            said += f", {gain:.3f} above {unprotected['label']}, which keeps nothing ({_mean(unprotected)})"
    if stored and free:
        rival = _best(stored)
        said += f"; {rival['label']}, which keeps examples, reaches {_mean(rival)}{_kept(rival)}"
    return f"{said}.{_doubt(best, free or groups)}"


def _doubt(best: Data, rivals: Iterable[Data]) -> str:
    """What to be careful about: a lead of less than two standard errors √(s₁²/n₁ + s₂²/n₂), or a single seed."""
    others = [group for group in rivals if group is not best]
    if not others:
        return ""
    second = _best(others)
    rows = best["row"], second["row"]
    if min(row["n"] for row in rows) < 2:
        return " With one seed, small differences may be chance."
    error = math.sqrt(sum(row["accuracy_std"] ** 2 / row["n"] for row in rows))
    if rows[0]["accuracy"] - rows[1]["accuracy"] > 2 * error:
        return ""
    return f" Its lead over {second['label']} ({_mean(second)}) is within two standard errors, so it may be chance."


def _free(groups: Iterable[Data]) -> list[Data]:
    return [group for group in groups if not group["keeps_examples"]]


def _best(groups: Iterable[Data]) -> Data:
    return max(groups, key=lambda group: group["row"]["accuracy"])


def _mean(group: Data) -> str:
    row = group["row"]
    return f"{row['accuracy']:.3f}" + (f" ± {row['accuracy_std']:.3f}" if row["n"] > 1 else "")


def _kept(group: Data) -> str:
    nbytes = group["row"]["nbytes"]
    return "" if nbytes is None else f" with {format_bytes(nbytes)} kept"


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
