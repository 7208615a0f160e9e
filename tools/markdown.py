"""Markdown for the pages: tables, the text of their cells, and parts of a file between two markers."""

from collections.abc import Sequence

from sketchogd.budget import format_bytes
from sketchogd.lab.records.metrics import Spread

DASH = "–"
"""A cell without runs."""

SEEDS = 5
"""The usual number of seeds, which is not mentioned."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table, its first column to the left and the others to the right.

    >>> table(["", "a"], [["b", "1"]])
    ['| | a |', '|---|---:|', '| b | 1 |']
    """

    def written(cells: Sequence[str]) -> str:
        return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|"

    return [written(head), f"|---|{'|'.join('---:' for _ in head[1:])}|", *map(written, rows)]


def with_part(text: str, part: str) -> str:
    """The text with what stands between the first and the last line of `part`, both markers, replaced by it.

    Raises:
        ValueError: the markers are not there, once each and in order.
    """
    begin, end = part.splitlines()[0], part.splitlines()[-1]
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"the page needs the two lines {begin} and {end}, in this order")
    return text.split(begin)[0] + part + text.split(end)[1]


def spread(value: Spread, usual: int = SEEDS) -> str:
    """Mean ± standard deviation, with the number of seeds where it is not the usual one.

    >>> spread(Spread(0.8766, 0.0042, 5)), spread(Spread(0.8766, 0.0042, 3)), spread(Spread(0.8766, 0.0, 1))
    ('0.877 ± 0.004', '0.877 ± 0.004 (3 seeds)', '0.877 (1 seed)')
    """
    text = f"{value.mean:.3f}" + (f" ± {value.std:.3f}" if value.n > 1 else "")
    return text if value.n == usual else f"{text} ({value.n} seed{'s' if value.n > 1 else ''})"


def signed(difference: float) -> str:
    """A difference with its sign.

    >>> signed(0.0021), signed(-0.0149), signed(-0.0001)
    ('+0.002', '−0.015', '0.000')
    """
    text = f"{abs(difference):.3f}"
    return text if float(text) == 0 else f"{'+' if difference > 0 else '−'}{text}"


def size(nbytes: int) -> str:
    """Bytes in a cell, where nothing is a plain 0.

    >>> size(545_328_000), size(1_601_312), size(0)
    ('545 MB', '1.6 MB', '0')
    """
    return format_bytes(nbytes) if nbytes else "0"
