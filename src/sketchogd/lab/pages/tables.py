"""The page's tables as HTML, complete without scripts: results, paired tests, times, every run, runs left out.

The scripts make them sortable, hide rows, and replace the numbers that depend on the seeds shown (`data-key`).
Everything from records passes `html.escape`.
"""

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sketchogd.budget import format_bytes

Data = Mapping[str, Any]
MISSING = "–"


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Args:
        title: its heading.
        cell: a row's cell, as HTML.
        value: what the column is sorted by; None where it cannot be.
        key: the name by which the scripts find its cells.
        style: its CSS class.
        descending: whether the first click on the heading puts the largest on top.
        note: what the heading says when pointed at.
    """

    title: str
    cell: Callable[[Any], str]
    value: Callable[[Any], Any] | None = None
    key: str = ""
    style: str = ""
    descending: bool = False
    note: str = ""


def results(data: Data, benchmark: Data) -> str:
    """The result table of one benchmark; published values have columns only where a row can be compared with them."""
    groups = [(i, group) for i, group in enumerate(data["groups"]) if group["benchmark"] == benchmark["name"]]
    groups = [(i, group) for i, group in groups if "row" in group]
    if not groups:
        return ""
    best = max(group["row"]["accuracy"] for _, group in groups)
    columns = [
        Column("Method", lambda g: name(g[1]), lambda g: g[1]["label"], style="left"),
        Column("", lambda g: "", key="range", style="wide", note="dot: mean ± one standard deviation"),
        _measured("Accuracy", "accuracy", True, best),
        Column("Memory", lambda g: _memory(g[1]["row"]), lambda g: g[1]["row"]["nbytes"], note="kept between tasks"),
        _measured("Forgetting", "forgetting", False),
        _measured("Learning", "learning", True),
    ]
    if any(comparable(group["row"]) for _, group in groups):
        tables = data["reference"]["tables"]
        columns += [
            Column("Published", lambda g: _published(g[1]["row"], tables), lambda g: g[1]["row"]["published"]),
            Column("Difference", lambda g: _difference(g[1]["row"]), lambda g: g[1]["row"]["difference"]),
        ]
    columns.append(Column("Seeds", lambda g: str(g[1]["row"]["n"]), lambda g: g[1]["row"]["n"], key="n"))
    title = benchmark["title"]
    shown = table(f"Results on {title}", columns, groups, lambda g: {"group": g[0], "method": g[1]["label"]})
    attributes = f'class="table" data-benchmark="{html.escape(benchmark["name"])}"'
    return f"<div {attributes}><h3>{html.escape(title)}</h3>{shown}</div>"


def notes(groups: Iterable[Data], tables: Mapping[str, str]) -> str:
    """What the result tables need to be understood: daggers, and where published values come from or are left out."""
    rows = [(group, group["row"]) for group in groups if "row" in group]
    said = []
    if any(group["keeps_examples"] for group, _ in rows):
        said.append("† keeps training examples of earlier tasks; the other methods do not.")
    compared = [(group["label"], row["published_table"]) for group, row in rows if comparable(row)]
    if compared:
        usual, *others = tables
        from_ = {key: dict.fromkeys(label for label, table in compared if table == key) for key in others}
        exceptions = "".join(f"; {tables[key]} for {', '.join(labels)}" for key, labels in from_.items() if labels)
        said.append(f"Published values are the paper’s {tables[usual]}{exceptions}.")
    shortened = dict.fromkeys(row["shortened"] for _, row in rows if row["published"] is not None and row["shortened"])
    if shortened:
        said.append(
            "Not compared with published values, because the runs depart from the published protocol: "
            f"{'; '.join(shortened)}."
        )
    return html.escape(" ".join(said))


def pairs(rows: Sequence[Data], titles: Mapping[str, str]) -> str:
    """The best method of each benchmark against every other, seed by seed; empty without such tests."""
    if not rows:
        return ""
    columns = [
        Column("Benchmark", lambda r: html.escape(titles[r["benchmark"]]), lambda r: titles[r["benchmark"]]),
        Column("Best", lambda r: html.escape(r["best"]), lambda r: r["best"], style="left"),
        Column("Against", lambda r: html.escape(r["other"]), lambda r: r["other"], style="left"),
        Column("Difference", lambda r: signed(r["difference"]), lambda r: r["difference"], descending=True),
        Column("p (t)", lambda r: _p(r["p_t"]), lambda r: r["p_t"]),
        Column("p (sign flips)", lambda r: _p(r["p_sign_flip"]), lambda r: r["p_sign_flip"]),
        Column("Seeds", lambda r: str(r["n"]), lambda r: r["n"]),
    ]
    return table("Paired tests", columns, rows, lambda r: {"benchmark": r["benchmark"], "method": r["other"]})


def timings(groups: Sequence[Data], titles: Mapping[str, str]) -> str:
    """Seconds of a run, in all and by what they were spent on."""
    groups = [group for group in groups if "row" in group]
    if not groups:
        return ""
    phases = list(dict.fromkeys(name for group in groups for name in group["timings"] if name != "total"))

    def phase(key: str) -> Column:
        return Column(html.escape(key), lambda g: duration(g["timings"].get(key)), lambda g: g["timings"].get(key))

    def device(group: Data) -> str:
        return ", ".join(dict.fromkeys(run["device"] or MISSING for run in group["runs"]))

    columns = [
        Column("Method", name, lambda g: g["label"], style="left"),
        Column("Time of a run", lambda g: duration(g["row"]["seconds"]), lambda g: g["row"]["seconds"]),
        *map(phase, phases),
        Column(
            "Benchmark", lambda g: html.escape(titles[g["benchmark"]]), lambda g: titles[g["benchmark"]], style="left"
        ),
        Column("Device", lambda g: html.escape(device(g)), device, style="left"),
    ]
    shown = table("Time of a run", columns, groups, lambda g: {"benchmark": g["benchmark"], "method": g["label"]})
    return f'<div class="table">{shown}</div>'


def every_run(groups: Iterable[Data], titles: Mapping[str, str]) -> str:
    """One row per run."""
    rows = [(group, run) for group in groups for run in group["runs"]]
    columns = [
        Column("Run", lambda r: html.escape(r[1]["run"]), lambda r: r[1]["run"], style="left"),
        Column("Accuracy", lambda r: _fraction(r[1]["accuracy"], 4), lambda r: r[1]["accuracy"], descending=True),
        Column("Seed", lambda r: html.escape(_seed(r[1])), lambda r: r[1]["seed"]),
        Column("Time", lambda r: duration(r[1]["seconds"]), lambda r: r[1]["seconds"]),
        Column("Method", lambda r: html.escape(r[0]["label"]), lambda r: r[0]["label"], style="left"),
        Column(
            "Benchmark",
            lambda r: html.escape(titles[r[0]["benchmark"]]),
            lambda r: titles[r[0]["benchmark"]],
            style="left",
        ),
    ]
    return table(
        "Every run",
        columns,
        rows,
        lambda r: {"benchmark": r[0]["benchmark"], "method": r[0]["label"], "seed": _seed(r[1])},
    )


def left_out(rows: Sequence[Data]) -> str:
    """The runs that are part of no number, with the reason; empty if there are none."""
    if not rows:
        return ""
    columns = [
        Column(title, lambda r, key=key: html.escape(r[key]), lambda r, key=key: r[key], style="left")  # type: ignore[misc]
        for title, key in (("Run", "run"), ("Reason", "reason"))
    ]
    return (
        '<h3>Runs left out</h3><p class="note">Not part of any number on this page.</p>'
        f'<div class="table">{table("Runs left out", columns, rows, lambda r: {})}</div>'
    )


def table(
    caption: str, columns: Sequence[Column], rows: Iterable[Any], attributes: Callable[[Any], Mapping[str, Any]]
) -> str:
    """A table in a box of its own that scrolls sideways; `attributes` are the `data-` attributes of a row."""
    heads = "".join(
        f"<th{_attributes(scope='col', class_=column.style, title=column.note, data_key=column.key)}"
        f"{' data-sort' if column.value else ''}{' data-descending' if column.descending else ''}>{column.title}</th>"
        for column in columns
    )
    body = []
    for row in rows:
        cells = []
        for i, column in enumerate(columns):
            value = column.value(row) if column.value else None
            shown = _attributes(class_=column.style, data_key=column.key, data_value=value)
            cells.append(
                f'<th scope="row"{shown}>{column.cell(row)}</th>' if not i else f"<td{shown}>{column.cell(row)}</td>"
            )
        named = _attributes(**{f"data_{key}": value for key, value in attributes(row).items()})
        body.append(f"<tr{named}>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(caption)}"><table>'
        f'<caption class="hidden-text">{html.escape(caption)}</caption><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
        '<p class="hint" aria-hidden="true">Swipe sideways for more columns →</p>'
    )


def name(group: Data) -> str:
    """A method's name with its setting below; the scripts put the marker of its style before it."""
    variant = group["row"]["variant"]
    title = group["label"].removesuffix(f" ({variant})") if variant else group["label"]
    dagger = '<sup title="keeps training examples">†</sup>' if group["keeps_examples"] else ""
    below = f'<span class="variant">{html.escape(variant)}</span>' if variant else ""
    solid = ' class="solid"' if len(title) < 19 else ""
    return (
        f'<span class="name" data-style="{group["style"]}"><span><span{solid}>{html.escape(title)}</span>'
        f"{dagger}{below}</span></span>"
    )


def comparable(row: Data) -> bool:
    """Whether there is a published value for the same protocol."""
    return row["published"] is not None and not row["shortened"]


def spread(mean: float | None, std: float | None, n: int) -> str:
    """A mean over n seeds; a single seed has no deviation."""
    return _fraction(mean) + (f'<span class="pm"> ± {_fraction(std)}</span>' if n > 1 and mean is not None else "")


def signed(value: float | None) -> str:
    """A difference with its sign."""
    return MISSING if value is None else f"{value:+.3f}".replace("-", "−")


def duration(seconds: float | None) -> str:
    """A time as text.

    >>> duration(3.21), duration(75.2), duration(150), duration(7300), duration(None)
    ('3.2 s', '75 s', '2 min', '2 h 02 min', '–')
    """
    if seconds is None:
        return MISSING
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _measured(title: str, key: str, descending: bool, best: float | None = None) -> Column:
    def cell(item: tuple[int, Data]) -> str:
        row = item[1]["row"]
        shown = spread(row[key], row[f"{key}_std"], row["n"])
        return f'<span class="best">{shown}</span>' if row[key] == best else shown

    return Column(title, cell, lambda item: item[1]["row"][key], key, descending=descending)


def _memory(row: Data) -> str:
    """All bytes kept; below, those of them that lie on the host."""
    if row["nbytes"] is None:
        return MISSING
    host = f'<span class="variant">host {format_bytes(row["host_nbytes"])}</span>' if row["host_nbytes"] else ""
    return format_bytes(row["nbytes"]) + host


def _published(row: Data, tables: Mapping[str, str]) -> str:
    if row["published"] is None:
        return f'<span class="dim">{MISSING}</span>'
    dim = "" if comparable(row) else "dim"
    title = tables.get(row["published_table"], "")
    shown = _fraction(row["published"])
    shown += "" if row["published_std"] is None else f'<span class="pm"> ± {_fraction(row["published_std"])}</span>'
    return f"<span{_attributes(class_=dim, title=title)}>{shown}</span>"


def _difference(row: Data) -> str:
    if row["shortened"] and row["published"] is not None:
        return f'<span class="dim" title="{html.escape(row["shortened"])}">n/a</span>'
    if row["difference"] is None:
        return f'<span class="dim">{MISSING}</span>'
    if not row["outside"]:
        return signed(row["difference"])
    side, mark, said = ("up", "▲", "above") if row["difference"] > 0 else ("down", "▼", "below")
    return (
        f'<span class="flag {side}">{signed(row["difference"])}</span>'
        f'<span class="mark" aria-hidden="true">{mark}</span>'
        f'<span class="hidden-text"> {said} the error bars</span>'
    )


def _attributes(**values: Any) -> str:
    """HTML attributes; empty and missing ones are left out."""
    kept = {key.rstrip("_").replace("_", "-"): value for key, value in values.items() if value not in (None, "")}
    return "".join(f' {key}="{html.escape(str(value))}"' for key, value in kept.items())


def _fraction(value: float | None, digits: int = 3) -> str:
    return MISSING if value is None else f"{value:.{digits}f}".replace("-", "−")


def _p(value: float) -> str:
    return "&lt; 0.001" if value < 0.001 else f"{value:.3f}"


def _seed(run: Data) -> str:
    return MISSING if run["seed"] is None else str(run["seed"])
