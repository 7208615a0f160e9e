"""The table of counts in docs/reliability.md, from the JSON of a campaign."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.campaign.children import BAD
from tools.markdown import table, with_part

HOME = Path(__file__).parents[2]
COUNTS = HOME / "benchmarks" / "results" / "reliability-cpu.json"
PAGE = HOME / "docs" / "reliability.md"
BEGIN, END = "<!-- counts of the campaign -->", "<!-- end of the counts -->"


def counts(found: Mapping[str, Any]) -> str:
    """A row per part: attempts, what came of them, and how many ended as none may."""
    rows = []
    for name, part in found["parts"].items():
        came = {key: n for key, n in part.items() if key not in (*BAD, "attempts", "seconds", "first bad") and n}
        bad = {key: part[key] for key in BAD if part[key]}
        said = [", ".join(f"{n:,} {key}" for key, n in each.items()) for each in (came, bad)]
        rows.append([name, f"{part['attempts']:,}", said[0], said[1] or "0"])
    return "\n".join([BEGIN, *table(["part", "attempts", "came out", "must not be"], rows), END])


def write(found: Mapping[str, Any]) -> None:
    """Put the table into the page."""
    PAGE.write_text(with_part(PAGE.read_text(encoding="utf-8"), counts(found)), encoding="utf-8")
