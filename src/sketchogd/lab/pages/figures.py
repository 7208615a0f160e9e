"""The report's figures for print, by matplotlib: curves, matrices, accuracy over bytes and strength, spectra, errors.

Each function takes the groups of one benchmark (`groups.collect`) and returns a `Figure` that the caller owns, or None
if the runs have no data for it. Nothing is shown, no backend is chosen, and matplotlib is imported only when a figure
is made. `T` tasks.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sketchogd.budget import format_bytes
from sketchogd.lab.methods import registry
from sketchogd.lab.pages import drawing
from sketchogd.lab.pages.groups import Group, collect, curves_of, kept_bytes, styles_of, title_of
from sketchogd.lab.pages.tradeoff import new_accuracy, old_accuracy, strengths
from sketchogd.lab.pages.trajectory import trajectory
from sketchogd.lab.records import metrics
from sketchogd.lab.records.sketch_errors import mean_errors
from sketchogd.lab.records.spectra import mean_spectrum

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def save_all(runs_folder: str | Path, out_folder: str | Path, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Write every figure that the runs have data for, BENCHMARK-KIND.FORMAT, and return the paths.

    Raises:
        RecordError: there are no run folders.
        ValueError: matplotlib cannot write a format.
    """
    groups = collect(runs_folder)[0]
    out = Path(out_folder)
    out.mkdir(parents=True, exist_ok=True)
    kinds: dict[str, Callable[[list[Group]], Figure | None]] = {
        "curves": curves,
        "matrix": heat_maps,
        "pareto": pareto,
        "tradeoff": tradeoff,
        "spectra": spectra,
        "errors": errors_over_rank,
    }
    paths = []
    for benchmark in dict.fromkeys(group.benchmark for group in groups):
        name = re.sub(r"[^\w-]+", "-", benchmark)
        for kind, draw in kinds.items():
            figure = draw([group for group in groups if group.benchmark == benchmark])
            if figure is None:
                continue
            for each in formats:
                path = out / f"{name}-{kind}.{each}"
                drawing.save(figure, path, each)
                paths.append(path)
    return paths


def curves(groups: Sequence[Group], tasks: Iterable[int] | None = None) -> "Figure | None":
    """Test accuracy of tasks along training, mean ± one standard deviation.

    The y axis starts at the lowest accuracy after a task was trained, so the first steps on a task are cut off.

    Args:
        groups: the groups of one benchmark.
        tasks: which tasks, counted from 1; by default those of the benchmark's record (`Benchmark.curves`) or, without
            one, the first, the middle and the last.
    """
    scored = _scored(groups)
    if not scored:
        return None
    T = max(len(group.matrices[0]) for group, _ in scored)
    own = curves_of(scored[0][0].benchmark)
    chosen = list(tasks) if tasks is not None else list(own) if own and max(own) <= T else sorted({1, (T + 1) // 2, T})
    figure = drawing.figure(3.0 * len(chosen) + 0.6, 2.9)
    axes = figure.subplots(1, len(chosen), sharey=True, squeeze=False)[0]
    low = 1.0
    for group, style in scored:
        x, mean, std = trajectory(group)
        for axis, task in zip(axes, chosen, strict=True):
            if task > mean.shape[1]:
                continue
            y, spread, kept = mean[:, task - 1], std[:, task - 1], ~np.isnan(mean[:, task - 1])
            low = min([low, *(y - spread)[kept & (x >= task)]])
            axis.plot(x[kept], y[kept], label=drawing.text(group.label), **drawing.line(style))
            shade = {"color": drawing.colour(style), "alpha": 0.14, "lw": 0}
            axis.fill_between(x[kept], (y - spread)[kept], (y + spread)[kept], **shade)
    for axis, task in zip(axes, chosen, strict=True):
        drawing.tidy(axis, f"Task {task}", "tasks trained")
        axis.set_xlim(0, 1.02 * T)
    axes[0].set_ylabel("test accuracy")
    top = axes[0].get_ylim()[1]
    axes[0].set_ylim(max(0.0, low - 0.05 * (top - low)), min(1.0, top))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 2 * len(chosen)), frameon=False)
    return figure


def heat_maps(groups: Sequence[Group]) -> "Figure | None":
    """The accuracy matrix of every method, mean over seeds: row i after task i, column j the accuracy on task j.

    Tasks that are still to come are blank. Every cell has its number, up to ten tasks and twelve methods.
    """
    scored = _scored(groups)
    if not scored:
        return None
    matrices = [group.matrices.mean(axis=0) for group, _ in scored]
    seen = np.concatenate([A[np.tril_indices(len(A))] for A in matrices])
    columns = min(4, len(scored))
    rows = -(-len(scored) // columns)
    figure = drawing.figure(2.0 * columns + 0.9, 2.15 * rows + 0.2)
    from matplotlib.ticker import MaxNLocator

    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, A, (group, _) in zip(axes, matrices, scored, strict=False):
        T = len(A)
        low, high = seen.min(), seen.max()
        blank = np.where(np.tri(T, dtype=bool), A, np.nan)
        edges = (0.5, T + 0.5, T + 0.5, 0.5)
        image = axis.imshow(blank, cmap="viridis", vmin=low, vmax=high, extent=edges, rasterized=True)
        for i, j in zip(*np.tril_indices(T), strict=True) if T <= 10 and len(scored) <= 12 else ():
            ink = "black" if A[i, j] - low > 0.58 * (high - low) else "white"
            number = f"{A[i, j]:.2f}".removeprefix("0").replace("1.00", "1.0")
            size = {"fontsize": min(7.0, 46 / T), "color": ink}
            axis.text(j + 1, i + 1, number, ha="center", va="center", **size)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_title(f"{drawing.text(group.label)}\n{_score(group).mean:.3f}", fontsize=8)
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.tick_params(length=2, labelsize=8)
    for axis in axes[len(scored) :]:
        axis.set_axis_off()
    figure.supxlabel("accuracy on task", fontsize=9)
    figure.supylabel("after training on task", fontsize=9)
    figure.colorbar(image, ax=list(axes), label="test accuracy", shrink=0.8)
    return figure


def pareto(groups: Sequence[Group]) -> "Figure | None":
    """Average accuracy over bytes kept, log x, with the best accuracy within each number of bytes.

    The grey line is that of the methods that keep no examples; where others do, the dashed line is that of all.
    """
    points = [
        (nbytes, _score(group), group, style)
        for group, style in _scored(groups)
        if (nbytes := kept_bytes(group)) is not None
    ]
    if not points:
        return None
    figure = drawing.figure(6.4, 4.0)
    axis = figure.subplots()
    positive = [nbytes for nbytes, *_ in points if nbytes > 0]
    edge = min(positive, default=1000)
    # A logarithmic axis has no zero: a stretch around it is linear.
    axis.set_xscale("symlog", linthresh=edge / 2, linscale=0.4)
    right = max(positive, default=1000) * 4
    free = [(float(x), score.mean) for x, score, group, _ in points if not registry.keeps_examples(group.method)]
    everything = [(float(x), score.mean) for x, score, _, _ in points]
    looks: list[tuple[list[tuple[float, float]], dict[str, Any]]] = [(free, {"color": "#9aa0a8", "lw": 1.6})]
    if len(free) < len(everything):
        looks.append((everything, {"color": "#1c1f24", "lw": 0.9, "ls": (0, (4, 3))}))
    for chosen, look in looks:
        front = frontier(chosen)
        if front:
            ends = [*front, (right, front[-1][1])]
            axis.step([x for x, _ in ends], [y for _, y in ends], where="post", **look)
    for nbytes, score, group, style in points:
        dot = {**drawing.point(style), "label": drawing.text(group.label)}
        axis.errorbar(nbytes, score.mean, yerr=score.std or None, ms=6, **dot)
    axis.set_xlim(-edge / 4 if len(positive) < len(points) else edge / 2, right)
    powers = [10.0**e for e in range(16) if edge / 2 <= 10**e <= right]
    axis.set_xticks([0.0] * (len(positive) < len(points)) + powers)
    axis.set_xticks([], minor=True)
    axis.xaxis.set_major_formatter(lambda value, _: format_bytes(value))
    drawing.tidy(axis, drawing.text(title_of(groups[0].benchmark)), "memory kept between tasks")
    axis.set_ylabel("average accuracy")
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def frontier(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those of the points (bytes, accuracy) that no other beats with as few bytes, by rising bytes.

    >>> frontier([(2, 0.5), (1, 0.4), (3, 0.45), (2, 0.6)])
    [(1, 0.4), (2, 0.6)]
    """
    front: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return front


def tradeoff(groups: Sequence[Group]) -> "Figure | None":
    """Old against new accuracy (`tradeoff.py`), one line per method along its strengths, each point with its own."""
    families: dict[str, list[tuple[float, float, float]]] = {}
    for group, strength in zip(groups, strengths(groups), strict=True):
        if strength is not None and len(group.matrices[0]) > 1:
            A = group.matrices.mean(axis=0)
            families.setdefault(strength.family, []).append((strength.value, new_accuracy(A), old_accuracy(A)))
    if not families:
        return None
    figure = drawing.figure(6.4, 4.0 + 0.2 * len(families))
    axis = figure.subplots()
    for style, (family, points) in enumerate(families.items()):
        points.sort()
        look = {**drawing.line(style), "markevery": None}
        axis.plot([x for _, x, _ in points], [y for _, _, y in points], label=drawing.text(family), **look)
    _name_points(axis, [((x, y), f"{value:g}") for points in families.values() for value, x, y in points])
    drawing.tidy(axis, drawing.text(title_of(groups[0].benchmark)), "accuracy on new tasks, right after each")
    axis.set_ylabel("accuracy on old tasks, at the end")
    figure.legend(loc="outside lower center", frameon=False)
    return figure


def _name_points(axis: "Axes", named: Iterable[tuple[tuple[float, float], str]]) -> None:
    """Write names beside points, but for those whose name would lie on another."""
    axis.autoscale_view()  # matplotlib would set the limits only when it draws
    taken: list[np.ndarray] = []
    for point, name in named:
        place = axis.transAxes.inverted().transform(axis.transData.transform(point))
        if all(np.hypot(*((place - other) / (0.05, 0.04))) > 1 for other in taken):
            axis.annotate(name, point, (4, 4), textcoords="offset points", fontsize=7)
            taken.append(place)


def spectra(groups: Sequence[Group]) -> "Figure | None":
    """Singular values of the remembered gradients, log x, with the stable rank dotted."""
    found = [
        (group, style, spectrum)
        for group, style in zip(groups, styles_of(groups), strict=True)
        if (spectrum := mean_spectrum(run.spectra() for run in group.runs)) is not None
    ]
    if not found:
        return None
    figure = drawing.figure(5.6, 3.2)
    axis = figure.subplots()
    for group, style, spectrum in found:
        rank = spectrum.stable_rank
        look = {**drawing.line(style), "markevery": [0]}
        axis.plot(spectrum.index, spectrum.values, label=f"{drawing.text(group.label)}, stable rank {rank:.1f}", **look)
        axis.axvline(max(rank, 1.0), color=drawing.colour(style), ls=":", lw=1.4)
    axis.set_xscale("log")
    axis.set_xlim(left=0.9)
    axis.set_ylim(bottom=0)
    drawing.tidy(axis, drawing.text(title_of(groups[0].benchmark)), "index of the singular value")
    axis.set_ylabel("singular value")
    axis.legend(frameon=False)
    return figure


def errors_over_rank(groups: Sequence[Group]) -> "Figure | None":
    """Share of the gradients' energy that sketches of rank k leave out, measured, beside every bound; log axes.

    Drawn for the first group with such data (`sketch_errors`), mean over seeds.
    """
    found = ((group, mean_errors(run.spectra() for run in group.runs)) for group in groups)
    group, data = next(((group, data) for group, data in found if data is not None), (None, None))
    if group is None or data is None:
        return None
    drawn = {
        "bound_product_printed": ("Theorem 3 as printed", 1, ":", None),
        "bound_gradient": ("Theorem 1", 0, "--", None),
        "error_gradient": ("gradient sketch, measured", 0, "-", "o"),
        "bound_product_tight": ("Theorem 3, tight", 1, "--", None),
        "error_product": ("product sketch, measured", 1, "-", "s"),
        "optimum": ("optimum (SVD)", 6, "-", None),
    }
    figure = drawing.figure(5.6, 3.6)
    axis = figure.subplots()
    for key, (label, style, dash, marker) in drawn.items():
        axis.plot(data["k"], data[key], label=label, color=drawing.colour(style), ls=dash, marker=marker, ms=4, lw=1.4)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks(data["k"], [f"{k:.0f}" for k in data["k"]])
    axis.set_xticks([], minor=True)
    axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    axis.yaxis.set_minor_formatter(lambda value, _: f"{100 * value:g} %" if f"{value:e}"[0] in "25" else "")
    axis.tick_params(which="both", labelsize=8)
    title = f"{drawing.text(title_of(group.benchmark))}, gradients of {drawing.text(group.label)}"
    drawing.tidy(axis, title, "rank k")
    axis.set_ylabel("energy left out")
    axis.legend(loc="lower left", frameon=False, fontsize=8)
    return figure


def _scored(groups: Sequence[Group]) -> list[tuple[Group, int]]:
    """The groups with a complete accuracy matrix, each with its style."""
    return [pair for pair in zip(groups, styles_of(groups), strict=True) if len(pair[0].matrices)]


def _score(group: Group) -> metrics.Spread:
    return metrics.spread([metrics.average_accuracy(A) for A in group.matrices])
