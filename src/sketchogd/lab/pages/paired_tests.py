"""The best method of a benchmark against every other, seed by seed: data of one table of the report page."""

from collections.abc import Sequence
from typing import Any

from sketchogd.lab.pages.groups import Group
from sketchogd.lab.records import metrics


def paired_tests(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """For each benchmark, compare the group with the highest mean over at least two seeds to every other group.

    Groups that share fewer than two seeds with the best one are left out.

    Returns:
        One row of plain values per comparison: benchmark, best and other (labels), difference, n, p_t and p_sign_flip,
        as `metrics.paired_test` has them on the common seeds.
    """
    rows = []
    for benchmark in dict.fromkeys(group.benchmark for group in groups):
        scores = {g.label: _by_seed(g) for g in groups if g.benchmark == benchmark}
        several = {label: found for label, found in scores.items() if len(found) > 1}
        if not several:
            continue
        best = max(several, key=lambda label: metrics.spread(list(several[label].values())).mean)
        for label, found in several.items():
            common = sorted(found.keys() & several[best].keys())
            if label == best or len(common) < 2:
                continue
            test = metrics.paired_test([several[best][s] for s in common], [found[s] for s in common])
            row = {"benchmark": benchmark, "best": best, "other": label, "difference": test.difference, "n": test.n}
            # An infinite t (differences without spread) cannot be written as JSON; its p value says the same.
            rows.append({**row, "p_t": test.p_t, "p_sign_flip": test.p_sign_flip})
    return rows


def _by_seed(group: Group) -> dict[int, float]:
    found = {}
    for run in group.runs:
        seed = run.config.get("seed")
        if isinstance(seed, int) and run.complete:
            found[seed] = metrics.average_accuracy(run.accuracy)  # type: ignore[arg-type]
    return found
