"""Old against new accuracy over the strength of the protection, for methods that were run with several strengths.

`T` tasks, `A` (T × T) the accuracy matrix. A stronger protection keeps old tasks better and learns new ones worse.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sketchogd.lab.methods import registry
from sketchogd.lab.pages.groups import Group, flattened

KEY = "options.strength"


@dataclass(frozen=True)
class Strength:
    """A group's place in a trade-off: its strength, and the name of the groups that differ from it in that only."""

    family: str
    value: float


def strengths(groups: Sequence[Group]) -> list[Strength | None]:
    """For each group its strength, None if no other group differs from it in its strength only.

    Strengths are the positive numbers in `options.strength`; a method's own default there (None) has no place on the
    axis.
    """
    values = [flattened(group.runs[0].config) for group in groups]
    families: dict[str, list[int]] = {}
    for i, (group, setting) in enumerate(zip(groups, values, strict=True)):
        strength = setting.pop(KEY, None)
        if isinstance(strength, int | float) and strength > 0 and len(group.matrices):
            key = json.dumps([group.benchmark, group.method, setting], sort_keys=True)
            families.setdefault(key, []).append(i)
            setting[KEY] = strength
    found: list[Strength | None] = [None] * len(groups)
    several = [members for members in families.values() if len({values[i][KEY] for i in members}) > 1]
    for members, label in zip(several, _labels([groups[each[0]] for each in several]), strict=True):
        for i in members:
            found[i] = Strength(label, float(values[i][KEY]))
    return found


def old_accuracy(A: np.ndarray) -> float:
    """Mean accuracy after the last task on all tasks before it: 1/(T−1) Σ_{j<T−1} A[T−1, j]; NaN for one task."""
    return float(A[-1, :-1].mean()) if len(A) > 1 else float("nan")


def new_accuracy(A: np.ndarray) -> float:
    """Mean accuracy on the tasks after the first, each right after it: 1/(T−1) Σ_{j≥1} A[j, j]; NaN for one task."""
    return float(np.diagonal(A)[1:].mean()) if len(A) > 1 else float("nan")


def _labels(firsts: Sequence[Group]) -> list[str]:
    """A label per family from one of its groups: the method's title, and what its families on a benchmark differ in."""
    labels = []
    for group in firsts:
        same = [_parts(other) for other in firsts if (other.benchmark, other.method) == (group.benchmark, group.method)]
        own = [part for part in _parts(group) if not all(part in parts for parts in same)]
        title = registry.title(group.method)
        labels.append(f"{title} ({', '.join(own)})" if own else title)
    return labels


def _parts(group: Group) -> list[str]:
    return [part for part in group.variant.split(", ") if part and not part.startswith("strength ")]
