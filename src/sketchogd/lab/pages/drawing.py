"""What all figures of the lab share: colours and marks by style, axes, text, and how a figure is saved.

A style is a number (`published.STYLES`): colour (eight), then dash and marker. matplotlib is imported when a figure is
made and not before; nothing is shown and no backend is chosen.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sketchogd.storage import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b8528a", "#e69f00", "#56b4e9", "#1c1f24", "#8c8c8c")
"""Okabe and Ito's colours, told apart by colour-blind readers; yellow, too pale on white, is left out."""

MARKERS = ("o", "s", "^", "D", "v")
DASHES = ("-", (0, (4, 1.5)), (0, (1.2, 1.5)))


def figure(width: float, height: float) -> "Figure":
    """An empty figure of so many inches, which belongs to the caller."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def save(figure: Any, path: Path, kind: str, dpi: int = 200) -> None:
    """Write a figure as `kind` ("png", "pdf", "svg"), whole or not at all."""
    from matplotlib import rc_context

    # Type 42 keeps text selectable, and journals ask for it; without a date, equal runs give equal files.
    settings: dict[Any, Any] = {"pdf.fonttype": 42, "svg.hashsalt": "sketchogd", "svg.fonttype": "none"}
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    with rc_context(settings), atomic.replacing(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=dpi, metadata=metadata)


def tidy(axis: "Axes", title: str, xlabel: str) -> None:
    """A title on the left, light horizontal lines, and no box."""
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_xlabel(xlabel)
    axis.grid(axis="y", color="#e2e3e0", lw=0.7)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def text(label: str) -> str:
    """A label as plain text, cut to what a figure has room for.

    A dollar would begin a formula, and a leading underscore hides a label from the legend.
    """
    escaped = (label if len(label) <= 40 else f"{label[:39]}…").replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


def colour(style: int) -> str:
    """The colour of a style."""
    return PALETTE[style % len(PALETTE)]


def marker(style: int) -> str:
    """The marker of a style."""
    return MARKERS[(style + style // len(PALETTE)) % len(MARKERS)]


def line(style: int) -> dict[str, Any]:
    """How `plot` draws a curve of a style, its marker at the end."""
    dash = DASHES[style // len(PALETTE) % len(DASHES)]
    return {"color": colour(style), "marker": marker(style), "ms": 4, "markevery": [-1], "ls": dash, "lw": 1.4}


def point(style: int) -> dict[str, Any]:
    """How `errorbar` draws a point of a style."""
    return {"color": colour(style), "fmt": marker(style), "elinewidth": 1.3}


def written_bytes(value: float) -> str:
    """Bytes for an axis.

    >>> written_bytes(545_328_000), written_bytes(250_000)
    ('545.328 MB', '250 kB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g} B"
