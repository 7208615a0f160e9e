"""The figures of docs/results.md, written as PNG into one folder: curves, accuracy over bytes, spectra, errors."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sketchogd.budget import format_bytes
from sketchogd.lab.methods import registry
from sketchogd.lab.pages import drawing, figures
from sketchogd.lab.pages.groups import Group, collect, title_of
from sketchogd.lab.records.sketch_errors import mean_errors
from sketchogd.lab.records.spectra import mean_spectrum
from sketchogd.paper import published
from tools.evidence import HALF, ROWS, Evidence, Point
from tools.results_tables import title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 110


def names(root: Path, found: Evidence) -> dict[str, list[str]]:
    """The figures that the results have data for, file names without ending, by section of the page."""
    named: dict[str, list[str]] = {"curves": [], "equal-bytes": [], "spectra": []}
    for benchmark in published.BENCHMARKS:
        curves = _groups(root / "table1", benchmark)
        if curves:
            named["curves"].append(f"curves-{benchmark}")
            if benchmark == "split-cifar100" and any(group.method == "a-gem" for group in curves):
                named["curves"].append(f"curves-{benchmark}-a-gem")
        if found.points(benchmark):
            named["equal-bytes"].append(f"bytes-{benchmark}")
        groups = _groups(root / "spectra", benchmark)
        if any(mean_spectrum(run.spectra() for run in group.runs) for group in groups):
            named["spectra"].append(f"spectrum-{benchmark}")
        if any(mean_errors(run.spectra() for run in group.runs) for group in groups):
            named["spectra"].append(f"errors-{benchmark}")
    return named


def write(root: Path, found: Evidence, out: Path) -> list[Path]:
    """Draw all figures into the folder `out`; other PNG files in it are removed."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name in (name for section in names(root, found).values() for name in section):
        figure = draw(root, found, name)
        if figure is not None:
            written.append(out / f"{name}.png")
            drawing.save(figure, written[-1], "png", dpi=DPI)
    for path in out.glob("*.png"):
        if path not in written:
            path.unlink()
    return written


def draw(root: Path, found: Evidence, name: str) -> "Figure | None":
    """The figure of a name from `names`."""
    kind, _, benchmark = name.partition("-")
    if kind == "curves":
        with_agem = benchmark != "split-cifar100"  # it is far below the others there, and has a figure of its own
        groups = _groups(root / "table1", benchmark.removesuffix("-a-gem"))
        return figures.curves([group for group in groups if with_agem or group.method != "a-gem"])
    if kind == "bytes":
        return over_bytes(found.points(benchmark), benchmark)
    groups = _groups(root / "spectra", benchmark)
    return figures.spectra(groups) if kind == "spectrum" else figures.errors_over_rank(groups)


def over_bytes(points: Sequence[Point], benchmark: str) -> "Figure":
    """Accuracy over the bytes kept, one line per method; dotted to the right: the bytes of an offloaded sketch."""
    figure = drawing.figure(7.6, 4.6)
    axis = figure.subplots()
    axis.set_xscale("log")
    for row in ROWS:
        own = [point for point in points if point.row == row]
        if not own:
            continue
        if row == "sgd":
            axis.axhline(own[0].cell.accuracy.mean, color="#8c8c8c", ls=":", lw=1.2, label="SGD (keeps nothing)")
            continue
        x, y = [point.nbytes for point in own], [point.cell.accuracy.mean for point in own]
        label = f"{title(row)} (raw data)" if registry.keeps_examples(row) else title(row)
        axis.plot(x, y, label=label, **_look(row))
        for point in own:
            if point.cell.host:
                axis.plot([point.nbytes, point.cell.nbytes], [point.cell.accuracy.mean] * 2, **_dotted(row))
    axis.xaxis.set_major_formatter(lambda value, _: format_bytes(value))
    drawing.tidy(axis, title_of(benchmark), "bytes kept between tasks, all counted")
    axis.grid(axis="x", color="#eeeeec", lw=0.7)
    axis.set_ylabel("average accuracy")
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def _look(row: str) -> dict[str, Any]:
    """Lines of our own methods are bold; a bfloat16 basis has an open marker."""
    style = registry.style("sketchogd" if row == HALF else row)
    assert style is not None
    ours = row in ("layer-sketch", "sketchogd")
    look = {**drawing.line(style), "markevery": None, "ms": 5, "lw": 2.2 if ours else 1.1}
    return {**look, "mfc": "white", "ls": "--"} if row == HALF else look


def _dotted(row: str) -> dict[str, Any]:
    return {"color": _look(row)["color"], "ls": ":", "lw": 1.2, "marker": "|", "markevery": [-1]}


def _groups(folder: Path, benchmark: str) -> list[Group]:
    path = folder / f"{benchmark}.json"
    return [group for group in collect(path)[0] if len(group.matrices)] if path.exists() else []
