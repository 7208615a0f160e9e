"""The page in Chromium: sorting, filters, downloads, colours, and the page without JavaScript."""

import io
import json
import struct
import time
import xml.etree.ElementTree as ElementTree

import pytest

from sketchogd.lab.pages import report
from sketchogd.lab.pages.groups import collect
from sketchogd.lab.records import metrics
from sketchogd.paper.published import PAPER
from tests.lab.pages.records import embedded, linked
from tests.lab.pages.selectors import CELLS, CORNER, SHOWN, TIP, split
from tools import screenshots


def test_tables_are_sorted_by_their_headings(browser, page):
    page(1400)
    assert [row[0] for row in browser.js(CELLS)] == ["SGD", "SketchOGD-2", "LayerSketch"]
    accuracy = "document.querySelector('.table[data-benchmark=\"split-mnist\"] thead th[data-key=accuracy]')"
    browser.js(f"{accuracy}.querySelector('button').focus()")
    for direction, order in (
        ("descending", ["LayerSketch", "SketchOGD-2", "SGD"]),
        ("ascending", ["SGD", "SketchOGD-2", "LayerSketch"]),
    ):
        browser.key("Enter")
        assert [row[0] for row in browser.js(CELLS)] == order
        assert browser.js(f"{accuracy}.getAttribute('aria-sort')") == direction


def test_seeds_can_be_chosen(browser, runs, page):
    """Means and deviations over two of three seeds are those of the records; one seed has no deviation and no band."""
    page(1400)
    bands = f"[...document.querySelectorAll('{split('curves')} path')].filter(p => p.getAttribute('opacity')).length"
    assert browser.js(bands) > 0
    browser.click(*browser.centre("#seeds summary"))
    browser.click(*browser.centre("#seeds input[value='0']"))
    (sgd,) = [g for g in collect(runs)[0] if g.label == "SGD" and g.benchmark == "split-mnist"]
    found = metrics.spreads([run.accuracy for run in sgd.runs[1:]])
    cells = {row[0]: row for row in browser.js(CELLS)}
    assert cells["SGD"][2] == f"{found['accuracy'].mean:.3f} ± {found['accuracy'].std:.3f}"
    assert cells["SGD"][4] == f"{found['forgetting'].mean:.3f} ± {found['forgetting'].std:.3f}"
    assert cells["SGD"][-1] == "2"
    assert "LayerSketch" not in cells, "its only seed is hidden"
    screenshots.draw(browser)
    browser.point(*browser.centre(CORNER))
    assert browser.js(TIP).startswith("SGD: 0.505")
    runs_shown = "[...document.querySelectorAll('#run-table tbody tr')].filter(r => !r.hidden).map(r => r.dataset.seed)"
    assert set(browser.js(runs_shown)) == {"1", "2"}
    assert "means over the chosen seeds" in browser.js("document.getElementById('filtered').textContent")
    browser.js("document.querySelector('#seeds input[value=\"1\"]').click()")
    screenshots.draw(browser)
    cells = {row[0]: row for row in browser.js(CELLS)}
    assert [cells["SGD"][i] for i in (2, -1)] == ["0.660", "1"]
    assert "±" not in " ".join(cell for row in cells.values() for cell in row[:6])
    assert browser.js(bands) == 0
    browser.click(*browser.centre("#reset"))
    assert len(browser.js(CELLS)) == 3
    assert browser.problems() == []


def test_methods_and_benchmarks_can_be_chosen(browser, page):
    page(1400)
    browser.js("document.querySelector('#benchmarks button').focus()")
    browser.key("ArrowRight")
    browser.key("ArrowRight")
    assert browser.js("document.activeElement.textContent") == "Split MNIST"
    visible = "[...document.querySelectorAll('{}')].filter(e => !e.hidden).map(e => e.dataset.benchmark)"
    assert browser.js(visible.format("#tables > div")) == ["split-mnist"]
    assert browser.js(visible.format("#panels > div")) == ["split-mnist"]
    assert set(browser.js(visible.format("#run-table tbody tr"))) == {"split-mnist"}
    browser.js("document.querySelector('#methods summary').focus()")
    browser.key("Enter")
    browser.js("document.querySelector('#methods input[value=SGD]').focus()")
    browser.key(" ")
    browser.key("Escape")
    assert not browser.js("document.getElementById('methods').open")
    assert browser.js("document.querySelector('#methods .count').textContent") == "2 of 3"
    assert [row[0] for row in browser.js(CELLS)] == ["SketchOGD-2", "LayerSketch"]
    screenshots.draw(browser)
    titles = f"[...document.querySelectorAll('{SHOWN} [data-kind=matrix] h4')].map(h => h.textContent)"
    assert browser.js(titles) == ["SketchOGD-2 · 0.675", "LayerSketch · 0.913"]


def test_tasks_of_the_curves_can_be_chosen(browser, page):
    page(1400)
    figure = f'{SHOWN}[data-benchmark="split-mnist"] [data-kind=curves]'
    panels = f"[...document.querySelectorAll('{figure} h4')].map(h => h.textContent)"
    assert browser.js(panels) == ["Task 1", "Task 3", "Task 5"]
    browser.js(f'document.querySelector(\'{SHOWN}[data-benchmark="split-mnist"] [data-task="3"]\').click()')
    assert browser.js(panels) == ["Task 1", "Task 5"]


def downloaded(folder, name):
    """The content of a file that the browser was told to save."""
    for _ in range(200):
        if (folder / name).exists() and not list(folder.glob("*.crdownload")):
            return (folder / name).read_bytes()
        time.sleep(0.05)
    raise AssertionError(f"{name} did not arrive; there are {[path.name for path in folder.iterdir()]}")


def test_data_and_figures_can_be_downloaded(browser, page, tmp_path):
    path = page(1400, dark=True)
    folder = tmp_path / "downloads"
    folder.mkdir()
    browser.downloads_to(folder)
    browser.click(*browser.centre("#json"))
    shown = path.read_text(encoding="utf-8")
    assert json.loads(downloaded(folder, "results.json")) == embedded(shown)
    browser.click(*browser.centre("a[download='runs.csv']"))
    content = downloaded(folder, "runs.csv").decode()
    assert len(content.splitlines()) == 1 + len(linked(shown, "runs.csv"))
    for kind in ("curves", "pareto", "matrix", "spectra"):
        for button, suffix in ((1, "svg"), (2, "png")):
            box = f'.bench[data-benchmark="split-mnist"] [data-kind={kind}]'
            browser.click(*browser.centre(f"{box} .export:nth-child({button})"))
            content = downloaded(folder, f"split-mnist-{kind}.{suffix}")
            size = browser.js(f"document.querySelector('{box}').clientWidth") + 32
            if suffix == "svg":
                root = ElementTree.fromstring(content)
                assert float(root.get("width")) == size
                assert b"var(" not in content, "colours of the style sheet are not in the file"
                assert b"NaN" not in content
                assert b"rgb(28, 31, 36)" in content, "text is dark, though the page is"
                assert b"rgb(232, 233, 235)" not in content
                texts = [node.text for node in root.iter() if node.tag.endswith("text")]
                assert any("SketchOGD-2" in text for text in texts), "the legend is part of the figure"
            else:
                width, _ = struct.unpack(">II", content[16:24])
                assert (content[:4], width) == (b"\x89PNG", 2 * size)
    assert browser.js("document.documentElement.dataset.theme") == "dark"
    assert browser.problems() == []


def test_a_saved_figure_is_in_light_colours_with_something_on_it(browser, page, tmp_path):
    matplotlib = pytest.importorskip("matplotlib.image")
    page(1400, dark=True)
    (tmp_path / "png").mkdir()
    browser.downloads_to(tmp_path / "png")
    browser.click(*browser.centre('.bench[data-benchmark="split-mnist"] [data-kind=matrix] .export:nth-child(2)'))
    pixels = matplotlib.imread(io.BytesIO(downloaded(tmp_path / "png", "split-mnist-matrix.png")))[..., :3]
    assert (pixels[0, 0] == 1).all()
    coloured = (pixels.max(axis=2) - pixels.min(axis=2) > 0.3).mean()
    assert coloured > 0.05, "the cells of the matrices"
    assert (pixels.mean(axis=2) > 0.9).mean() > 0.5, "on white"


def test_without_javascript_the_page_is_complete(browser, page, runs):
    path = report.write_html(runs, runs.parent / "page.html", reference=PAPER)
    browser.open(path.as_uri(), 390, script=False)
    seen = browser.call("DOMSnapshot.captureSnapshot", computedStyles=["display"], includePaintOrder=False)
    words = {seen["strings"][i] for document in seen["documents"] for i in document["layout"]["text"] if i >= 0}
    text = " ".join(words)
    for shown in ("0.650", "± 0.010", "LayerSketch", "results.csv", "Every run"):
        assert shown in text, shown
    for hidden in ("Dark", "results.json", "Point at a figure", "all runs, whatever is filtered"):
        assert hidden not in text, hidden


def test_the_theme_is_changed_by_its_button(browser, page):
    page(1400)
    before = browser.js("getComputedStyle(document.body).backgroundColor")
    browser.click(*browser.centre("#theme"))
    assert browser.js("getComputedStyle(document.body).backgroundColor") != before
    browser.click(*browser.centre("#theme"))
    assert browser.js("getComputedStyle(document.body).backgroundColor") == before
