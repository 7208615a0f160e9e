"""The report's figures for print, by matplotlib: curves, accuracy matrices, accuracy over bytes, spectra, errors.

Each function takes the groups of one benchmark (`groups.collect`) and returns a `Figure` that the caller owns, or None
if the runs have no data for it. Nothing is shown, no backend is chosen, and matplotlib is imported only when a figure
is made. `T` tasks.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sketchogd.budget import format_bytes
from sketchogd.lab.pages import drawing
from sketchogd.lab.pages.groups import Group, collect, curves_of, kept_bytes, styles_of, title_of
from sketchogd.lab.pages.trajectory import trajectory
from sketchogd.lab.records import metrics
from sketchogd.lab.records.sketch_errors import mean_errors
from sketchogd.lab.records.spectra import mean_spectrum

if TYPE_CHECKING:
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
    """The accuracy matrix of every method, mean over seeds: row i after task i, column j the accuracy on task j."""
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
        image = axis.imshow(
            A, cmap="viridis", vmin=seen.min(), vmax=seen.max(), extent=(0.5, T + 0.5, T + 0.5, 0.5), rasterized=True
        )
        axis.set_title(f"{drawing.text(group.label)}\n{_score(group).mean:.3f}", fontsize=8)
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.tick_params(length=2, labelsize=8)
    for axis in axes[len(scored) :]:
        axis.set_axis_off()
    figure.supxlabel("accuracy on task", fontsize=9)
    figure.supylabel("after training on task", fontsize=9)
    future = any((A[np.triu_indices(len(A), 1)] < seen.min()).any() for A in matrices)
    figure.colorbar(image, ax=list(axes), label="test accuracy", shrink=0.8, extend="min" if future else "neither")
    return figure


def pareto(groups: Sequence[Group]) -> "Figure | None":
    """Average accuracy over bytes kept, log x; the grey line is the best accuracy within each number of bytes."""
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
    best = -1.0
    front = []
    for nbytes, score, _, _ in sorted(points, key=lambda point: (point[0], -point[1].mean)):
        if score.mean > best:
            front.append((nbytes, score.mean))
            best = score.mean
    right = max(positive, default=1000) * 4
    axis.step([x for x, _ in front] + [right], [y for _, y in front] + [best], where="post", color="#9aa0a8", lw=1)
    for nbytes, score, group, style in points:
        look = {**drawing.point(style), "label": drawing.text(group.label)}
        axis.errorbar(nbytes, score.mean, yerr=score.std or None, ms=6, **look)
    axis.set_xlim(-edge / 4 if len(positive) < len(points) else edge / 2, right)
    powers = [10.0**e for e in range(16) if edge / 2 <= 10**e <= right]
    axis.set_xticks([0.0] * (len(positive) < len(points)) + powers)
    axis.set_xticks([], minor=True)
    axis.xaxis.set_major_formatter(lambda value, _: format_bytes(value))
    drawing.tidy(axis, drawing.text(title_of(groups[0].benchmark)), "memory kept between tasks")
    axis.set_ylabel("average accuracy")
    figure.legend(loc="outside right upper", frameon=False)
    return figure


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
