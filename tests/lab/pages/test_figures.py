"""The figures for print: made from records, drawn with the records' numbers, without global state."""

import re
import subprocess
import sys
from importlib import resources

import numpy as np
import pytest
import torch

import sketchogd as so
from sketchogd.lab.pages import drawing, figures
from sketchogd.lab.pages.groups import collect
from sketchogd.lab.records import RunFolder
from sketchogd.paper import rank_errors

matplotlib = pytest.importorskip("matplotlib")


def write_run(path, method, seed, final, *, nbytes=1000, benchmark="split-mnist"):
    A = np.full((len(final), len(final)), np.nan)
    A[np.tril_indices(len(final))] = 0.9
    A[-1] = final
    folder = RunFolder(path)
    folder.start({"benchmark": benchmark, "method": method, "seed": seed, "epochs": 30})
    folder.save_accuracy(A)
    folder.finish(ledger={"nbytes": nbytes, "entries": []})
    return folder


def settings():
    """matplotlib's global settings, but for the backend, which is chosen by asking for it."""
    return {key: matplotlib.rcParams[key] for key in matplotlib.rcParams if key != "backend"}


@pytest.fixture
def groups(tmp_path):
    for seed, final in enumerate((0.6, 0.7)):
        write_run(tmp_path / f"sgd-{seed}", "sgd", seed, [final] * 5, nbytes=0)
        write_run(tmp_path / f"layer-{seed}", "layer-sketch", seed, [final + 0.2] * 5, nbytes=2_000_000)
    folder = write_run(tmp_path / "odd", "_a $x^2$ _{name}", 0, [0.5] * 5, nbytes=3_000_000)
    np.savez(folder.path / "spectra.npz", singular_values=np.array([4.0, 2.0, 2.0]))
    return collect(tmp_path)[0]


def test_curves_show_mean_and_legend_of_every_method(groups):
    figure = figures.curves(groups)
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["Task 1", "Task 3", "Task 5"]
    sgd, layer, _ = figure.axes[0].lines
    assert sgd.get_xdata().tolist() == [1, 2, 3, 4, 5]
    assert sgd.get_ydata() == pytest.approx([0.9, 0.9, 0.9, 0.9, 0.65])
    assert layer.get_ydata()[-1] == pytest.approx(0.85)
    assert figure.axes[2].lines[0].get_xdata().tolist() == [5], "task 5 has no accuracy before it was trained"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["SGD", "LayerSketch", r" _a \$x^2\$ _{name}"]


def test_pareto_places_every_method_and_its_front(groups):
    axis = figures.pareto(groups).axes[0]
    front, *_ = axis.lines
    assert np.asarray(front.get_xdata()).tolist()[:2] == [0, 2_000_000], "the third method is dominated"
    assert front.get_ydata() == pytest.approx([0.65, 0.85, 0.85])
    points = {container.get_label(): container.lines[0] for container in axis.containers}
    assert points["SGD"].get_xydata()[0] == pytest.approx([0, 0.65])
    assert [text.get_text() for text in axis.get_xticklabels()] == ["0 B", "1 MB", "10 MB"]


def test_heat_maps_hold_the_mean_matrix(groups):
    figure = figures.heat_maps(groups)
    image = figure.axes[0].images[0].get_array()
    np.testing.assert_allclose(image.filled(np.nan), groups[0].matrices.mean(axis=0))
    assert image[-1, 0] == pytest.approx(0.65)
    assert [text.get_text() for text in figure.axes[0].texts][-5:] == [".65"] * 5
    assert figure.axes[0].get_title() == "SGD\n0.650"


def test_tasks_to_come_are_blank_in_heat_maps(tmp_path):
    folder = write_run(tmp_path / "run", "sgd", 0, [0.5] * 5)
    A = np.full((5, 5), 0.9)
    A[0, 4], A[4, 0] = 0.1, 0.5
    folder.save_accuracy(A)
    image = figures.heat_maps(collect(tmp_path)[0]).axes[0].images[0]
    assert image.get_array().mask.sum() == 10
    assert image.get_clim() == (0.5, 0.9), "and do not stretch the colours"


def test_two_frontiers_where_a_method_keeps_examples(tmp_path):
    for method, final, nbytes in (("sgd", 0.5, 0), ("layer-sketch", 0.7, 2000), ("replay", 0.8, 9000)):
        write_run(tmp_path / method, method, 0, [final] * 5, nbytes=nbytes)
    free, everything, *_ = figures.pareto(collect(tmp_path)[0]).axes[0].lines
    assert free.get_ydata() == pytest.approx([0.5, 0.7, 0.7])
    assert everything.get_ydata() == pytest.approx([0.5, 0.7, 0.8, 0.8])


def test_tradeoff_places_every_strength(tmp_path):
    for strength, old, new in ((1.0, 0.6, 0.9), (10.0, 0.8, 0.7)):
        folder = RunFolder(tmp_path / str(strength))
        options = {"strength": strength}
        folder.start({"benchmark": "split-mnist", "method": "ewc", "seed": 0, "epochs": 30, "options": options})
        folder.save_accuracy(np.array([[0.9, np.nan], [old, new]]))
        folder.finish()
    axis = figures.tradeoff(collect(tmp_path)[0]).axes[0]
    assert axis.lines[0].get_xydata() == pytest.approx(np.array([[0.9, 0.6], [0.7, 0.8]]))
    assert [text.get_text() for text in axis.texts] == ["1", "10"]


def test_spectra_mark_the_stable_rank(groups):
    axis = figures.spectra(groups).axes[0]
    values, rank = axis.lines
    assert values.get_ydata().tolist() == [4, 2, 2]
    assert rank.get_xdata()[0] == pytest.approx((16 + 4 + 4) / 16)
    assert figures.spectra(groups[:2]) is None


def test_errors_over_rank_draw_what_a_run_measured(tmp_path):
    """Measured errors lie between the optimum and the bounds, and survive the way through a file to the figure."""
    generator = torch.Generator().manual_seed(0)
    falling = torch.arange(1, 91) ** -0.6
    sketch = so.AllRows().bind(300)
    sketch.observe(torch.randn(90, 90, generator=generator) * falling @ torch.randn(90, 300, generator=generator))
    arrays = rank_errors.errors_over_rank(sketch, ranks=(20, 40, 80, 90, 200))
    assert arrays["k"].tolist() == [20, 40, 80], "ranks of all directions and more leave nothing out"
    for key, bound in (("error_gradient", "bound_gradient"), ("error_product", "bound_product_tight")):
        assert (arrays["optimum"] < arrays[key]).all()
        assert (arrays[key] < arrays[bound]).all()
    assert (arrays["bound_product_tight"] <= arrays["bound_product_printed"]).all()
    write_run(tmp_path / "none", "sgd", 0, [0.5] * 5)
    for seed, factor in enumerate((1.0, 0.5)):
        folder = write_run(tmp_path / f"ogd-{seed}", "ogd", seed, [0.5] * 5)
        scaled = {key: array * (1.0 if key == "k" else factor) for key, array in arrays.items()}
        np.savez(folder.path / "spectra.npz", singular_values=np.ones(3), **scaled)
    groups = collect(tmp_path)[0]
    lines = {line.get_label(): line for line in figures.errors_over_rank(groups).axes[0].lines}
    assert len(lines) == 6
    np.testing.assert_allclose(lines["product sketch, measured"].get_xdata(), [20, 40, 80])
    np.testing.assert_allclose(lines["product sketch, measured"].get_ydata(), 0.75 * arrays["error_product"])
    (tmp_path / "ogd-0" / "spectra.npz").write_bytes(b"damaged")
    assert figures.errors_over_rank(collect(tmp_path)[0]) is not None


def test_errors_in_coordinates_are_those_of_the_rows_themselves():
    """Means over 8 draws at k = 30: sketches with their own test matrices on the rows themselves give the same.

    A draw varies by 3.5 % (gradient) or 1.8 % (product), so the means differ by 1.7 % at one standard error: 7 % is
    four of them.
    """
    generator = torch.Generator().manual_seed(1)
    G = torch.randn(120, 120, generator=generator) * torch.arange(1, 121) ** -0.6
    G = G @ torch.randn(120, 4000, generator=generator)
    sketch = so.AllRows().bind(4000)
    sketch.observe(G)
    found = [rank_errors.errors_over_rank(sketch, ranks=(30,), seed=seed) for seed in range(8)]
    for key, kind in (("error_gradient", so.GradientSketch), ("error_product", so.ProductSketch)):
        errors = []
        for seed in range(8):
            direct = kind(30, seed=seed + 8).bind(4000)
            direct.observe(G)
            errors.append(so.theory.reconstruction_error(G, direct.basis(), relative=True))
        assert np.mean([arrays[key] for arrays in found]) == pytest.approx(np.mean(errors), rel=0.07)


def test_save_all_writes_each_figure_in_each_format(groups, tmp_path):
    folder = groups[0].runs[0].path.parent
    write_run(folder / "other", "sgd", 0, [0.5] * 2, benchmark="own stream?")
    before = settings()
    paths = figures.save_all(folder, tmp_path / "figures", formats=("png", "pdf"))
    kinds = ("curves", "matrix", "pareto", "spectra")
    expected = {f"split-mnist-{kind}.{each}" for kind in kinds for each in ("png", "pdf")}
    expected |= {f"own-stream--{kind}.{each}" for kind in kinds[:3] for each in ("png", "pdf")}
    assert {path.relative_to(tmp_path / "figures").as_posix() for path in paths} == expected
    starts = {"png": b"\x89PNG", "pdf": b"%PDF"}
    assert all(path.read_bytes().startswith(starts[path.suffix[1:]]) for path in paths)
    assert settings() == before


def test_page_and_print_share_their_colours():
    css = resources.files("sketchogd.lab.pages.assets").joinpath("page.css").read_text(encoding="utf-8")
    light = dict(re.findall(r"--(c\d): (#\w+);", css[: css.index("@media")]))
    assert [light[f"c{i}"] for i in range(len(drawing.PALETTE))] == list(drawing.PALETTE)


def test_matplotlib_is_imported_only_for_a_figure():
    code = "import sys, sketchogd.lab.pages.figures; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
