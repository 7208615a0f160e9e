"""The page's numbers as CSV: one row per method and setting, and one per run."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

RESULTS = (
    *("benchmark", "method", "variant", "n", "accuracy", "accuracy_std", "forgetting", "forgetting_std"),
    *("learning", "learning_std", "nbytes", "host_nbytes", "seconds", "keeps_examples"),
)
COMPARED = ("published", "published_std", "published_table", "difference")
RUNS = ("benchmark", "method", "variant", "seed", "accuracy", "forgetting", "learning", "nbytes", "seconds", "run")


def results_csv(groups: Iterable[Mapping[str, Any]], compared: bool) -> str:
    """The rows of the result tables at full precision; a single seed has no standard deviation.

    Args:
        groups: those of `report.page_data`.
        compared: whether to add the columns of a comparison with published values.
    """
    rows = []
    for group in groups:
        if "row" in group:
            row = {**group["row"], "keeps_examples": group["keeps_examples"]}
            if row["n"] == 1:
                row |= {key: None for key in row if key.endswith("_std") and key != "published_std"}
            rows.append(row)
    return _csv((*RESULTS, *(COMPARED if compared else ())), rows)


def runs_csv(groups: Iterable[Mapping[str, Any]]) -> str:
    """One row per run at full precision, so that spreads and tests can be computed again."""
    rows = []
    for group in groups:
        if "row" in group:
            shared = {key: group["row"][key] for key in ("benchmark", "method", "variant")}
            rows += [{**shared, **run} for run in group["runs"]]
    return _csv(RUNS, rows)


def _csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    """A value as a cell; a text that a spreadsheet would take for a formula gets an apostrophe before it."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return "" if value is None else value
