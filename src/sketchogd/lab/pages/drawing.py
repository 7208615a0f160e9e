"""What all figures of the lab share: colours and markers by style, axes, text, and how a figure is saved.

A style is a number (`groups.styles_of`) that determines the colour (one of eight), the dash and the marker. matplotlib
is imported only when a figure is made; nothing is shown and no backend is chosen.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sketchogd.storage import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b8528a", "#e69f00", "#56b4e9", "#1c1f24", "#8c8c8c")
"""Okabe and Ito's colours, which colour-blind readers can tell apart, without yellow, which is too pale on white."""

MARKERS = ("o", "s", "^", "D", "v")
DASHES = ("-", (0, (4, 1.5)), (0, (1.2, 1.5)))


def figure(width: float, height: float) -> "Figure":
    """An empty figure of that size in inches; the caller owns it. ImportError, with what to do, without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('figures are drawn by matplotlib, which is missing: pip install "sketchogd[lab]"') from error

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def save(drawn: "Figure", path: Path, kind: str, dpi: int = 200) -> None:
    """Write a figure as `kind` ("png", "pdf", "svg"); the file is written whole or not at all."""
    from matplotlib import rc_context

    # Type 42 keeps text selectable, and journals ask for it; without a date, equal runs give equal files.
    settings: dict[Any, Any] = {"pdf.fonttype": 42, "svg.hashsalt": "sketchogd", "svg.fonttype": "none"}
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    with rc_context(settings), atomic.replacing(path) as temporary:
        drawn.savefig(temporary, format=kind, dpi=dpi, metadata=metadata)


def tidy(axis: "Axes", title: str, xlabel: str) -> None:
    """A title on the left, light horizontal lines, and no box."""
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_xlabel(xlabel)
    axis.grid(axis="y", color="#e2e3e0", lw=0.7)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def text(label: str) -> str:
    """A label as plain text, cut to 40 characters.

    Dollar signs are escaped, since they begin a formula; a leading underscore, which would hide the label from the
    legend, gets a space before it.
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
    """Arguments of `plot` for a curve of a style, with a marker at its end."""
    dash = DASHES[style // len(PALETTE) % len(DASHES)]
    return {"color": colour(style), "marker": marker(style), "ms": 4, "markevery": [-1], "ls": dash, "lw": 1.4}


def point(style: int) -> dict[str, Any]:
    """Arguments of `errorbar` for a point of a style."""
    return {"color": colour(style), "fmt": marker(style), "elinewidth": 1.3}
