"""The report page: its template, style and scripts beside this file, and the function that assembles them.

The text and the tables are written here and complete without scripts; the scripts draw the figures, sort and filter.
Data from records reaches the page escaped, or as JSON that the scripts show as text, never as markup. The page's
content security policy admits nothing from outside, and no script but this one.
"""

import base64
import datetime
import hashlib
import html
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any
from urllib.parse import quote

from sketchogd.lab.pages import downloads, tables
from sketchogd.lab.pages.conclusion import conclusion

SCRIPTS = (
    *("dom.js", "seeds.js", "tables.js", "charts.js", "maps.js", "pareto.js", "figures.js", "exports.js"),
    *("filters.js", "page.js"),
)


def render(title: str, data: dict[str, Any]) -> str:
    """One self-contained HTML page that shows `data`, the tree of `report.page_data`."""
    assets = resources.files(__package__)
    script = "\n".join(assets.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    parts = {
        "title": html.escape(title),
        "style": assets.joinpath("page.css").read_text(encoding="utf-8"),
        "script": script,
        "digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        # Inside a script element only "<" could end the data; a JSON parser reads the escape back.
        "data": json.dumps({"title": title, **data}, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        **_content(data),
    }
    template = assets.joinpath("page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _content(data: Mapping[str, Any]) -> dict[str, str]:
    """The parts of the page that come from records, as HTML."""
    groups, titles = data["groups"], {each["name"]: each["title"] for each in data["benchmarks"]}
    rows = [group["row"] for group in groups if "row" in group]
    compared = any(tables.comparable(row) for row in rows)
    headline, sentences = conclusion(groups)
    several = any(row["n"] > 1 for row in rows)
    pairs = tables.pairs(data["pairs"], titles)
    return {
        "conclusion": html.escape(headline),
        "sentences": _list(sentences),
        "beside": html.escape(f"The runs are shown beside {data['reference']['source']}.") if compared else "",
        "spread": "Mean ± standard deviation over seeds. " if several else "",
        "marks": _MARKS if compared else "",
        "ranges": _ranges(several, compared) if rows else "",
        "facts": _facts(data),
        "tables": "".join(tables.results(data, each) for each in data["benchmarks"]),
        "notes": tables.notes(groups, data["reference"]["tables"]),
        "results_csv": _link(downloads.results_csv(groups, compared)),
        "runs_csv": _link(downloads.runs_csv(groups)),
        "pairs": _PAIRS.format(table=pairs) if pairs else "",
        "timings": tables.timings(groups, titles),
        "runs": tables.every_run(groups, titles),
        "machines": "".join(map(_machine, data["machines"])),
        "left_out": tables.left_out(data["left_out"]),
    }


_MARKS = """A difference is marked <span class="mark up">▲</span> or <span class="mark down">▼</span> where it exceeds
      two published standard deviations plus ours."""

_PAIRS = """<details id="pair-box"><summary>The best method against each other one, seed by seed</summary>
      <p class="text">Difference of the average accuracies on the same seeds, with two-sided p values of Student’s t
        and of sign flips, which assume only that the differences are symmetric: with five seeds that is never below
        0.063.</p>
      <div class="table">{table}</div>
    </details>"""


def _ranges(several: bool, compared: bool) -> str:
    """What the marks beside the names of the methods are."""
    spread = " ± one standard deviation" if several else ""
    return (
        f"Beside the names, the dot is the accuracy{spread}{', the bar the published one ± two' if compared else ''}."
    )


def _list(sentences: list[str]) -> str:
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="sentences">{items}</ul>' if items else ""


def _facts(data: Mapping[str, Any]) -> str:
    runs = sum(len(group["runs"]) for group in data["groups"])
    methods = len({group["label"] for group in data["groups"]})
    counted = [
        (runs, "run", "runs"),
        (len(data["benchmarks"]), "benchmark", "benchmarks"),
        (methods, "method or setting", "methods and settings"),
    ]
    shown = [(one if count == 1 else several, str(count)) for count, one, several in counted]
    if data["ended"]:
        ended = datetime.datetime.fromtimestamp(data["ended"], tz=datetime.timezone.utc)
        shown.append(("newest run", f"{ended:%Y-%m-%d}"))
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in shown)


def _machine(machine: Mapping[str, Any]) -> str:
    """A card with a device, its versions, and how many of the runs it did."""
    device, versions = machine["device"], machine["versions"]
    named = " · ".join(str(device[key]) for key in ("kind", "name") if device.get(key))
    threads = f"{device['threads']} of {device.get('cpus')} CPUs" if device.get("threads") else ""
    facts = [("Device", named), ("Threads", threads), *versions.items()]
    rows = "".join(f"<dt>{html.escape(str(k))}</dt><dd>{html.escape(str(v))}</dd>" for k, v in facts if v)
    runs = f"{machine['runs']} run{'' if machine['runs'] == 1 else 's'}"
    return f'<div class="card"><h3>{runs}</h3><dl>{rows}</dl></div>'


def _link(csv: str) -> str:
    """A CSV file as the address of a link."""
    return f"data:text/csv;charset=utf-8,{quote(csv)}"
