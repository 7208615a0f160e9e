"""The page in Chromium: tables, figures, mouse, finger, keyboard, filters and downloads, on a desk and on a phone."""

import io
import json
import struct
import time
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from sketchogd.lab.pages import report
from sketchogd.lab.pages.groups import collect
from sketchogd.lab.pages.tradeoff import new_accuracy, old_accuracy
from sketchogd.lab.records import metrics, sketch_errors
from sketchogd.paper.published import PAPER
from tests.lab.pages.records import HOSTILE, embedded, linked, matrix, write_run

SHOWN = ".bench:not([hidden])"
TIP = "document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"
CORNER = '.bench[data-benchmark="split-mnist"] [data-kind=matrix] .panel:first-child rect.cell:nth-of-type(11)'
"""The cell of task 1 after the last of five tasks, in the first matrix."""

CELLS = (
    "[...document.querySelectorAll('.table[data-benchmark=\"split-mnist\"] tbody tr')].filter(tr => !tr.hidden)"
    ".map(tr => [...tr.children].map(cell => cell.textContent))"
)


@pytest.fixture
def page(browser, runs, tmp_path):
    """Opens the page of the runs, its figures drawn."""

    def opened(width=1400, dark=False, **options):
        path = report.write_html(runs, tmp_path / "page.html", "A title & more", PAPER)
        browser.open(path.as_uri(), width, dark, **options)
        for i in range(browser.js("document.querySelectorAll('.bench').length")):
            browser.js(f"document.querySelectorAll('.bench')[{i}].scrollIntoView()")
            browser.settle()
        browser.js("scrollTo(0, 0)")
        browser.settle()
        return path

    return opened


def split(kind):
    """A selector of the chart of a figure of Split MNIST."""
    return f'.bench[data-benchmark="split-mnist"] [data-kind={kind}] svg.chart'


def test_the_browser_would_report_errors_and_requests(browser, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text("<img src='https://example.invalid/x.png'><script>console.error('a'); missing()</script>")
    browser.open(page.as_uri())
    assert len(browser.problems()) >= 2
    assert "https://example.invalid/x.png" in browser.requests()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1400, 390])
def test_page_shows_the_numbers_of_the_records(browser, runs, page, width, dark):
    write_run(runs, HOSTILE, 0, matrix(np.full(5, 0.5)))
    write_run(runs, "x" * 150, 0, matrix([0.5]), benchmark="y" * 150)
    arrays = {key: np.array([0.5, 0.2]) for key in sketch_errors.KEYS} | {"k": np.array([50, 79])}
    np.savez(next(runs.glob("*sketchogd-2*")) / "spectra.npz", singular_values=10.0 / np.arange(1, 501), **arrays)
    path = page(width, dark)
    cells = {row[0]: row for row in browser.js(CELLS)}
    assert cells["SGD"][2:6] == ["0.650 ± 0.010", "0 B", "0.375 ± 0.010", "0.950 ± 0.002"]
    assert cells["LayerSketch"][2:] == ["0.913", "1.05 MB", "0.037", "0.943", "–", "–", "1"]
    assert HOSTILE in cells
    kinds = "[...document.querySelectorAll('.bench[data-benchmark=\"{}\"] figure')].map(f => f.dataset.kind)"
    assert browser.js(kinds.format("rotated-mnist")) == ["curves", "pareto", "matrix"]
    assert browser.js(kinds.format("split-mnist")) == ["curves", "pareto", "matrix", "spectra", "errors"]
    lines = browser.js(f"document.querySelectorAll('{split('errors')} path[stroke]').length")
    assert lines == 6, "two measured, three bounds and the optimum"
    assert "stable rank 1.6" in browser.js("document.querySelector('[data-kind=spectra] .key').textContent")
    assert browser.js("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert browser.js("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    assert browser.js("document.title") == "A title & more"
    assert browser.problems() == []
    assert set(browser.requests()) <= {path.as_uri(), "data:,"}


@pytest.mark.parametrize("width", [1400, 390])
def test_labels_of_figures_do_not_collide(browser, runs, page, width):
    for i in range(12):
        accuracy, nbytes = 0.7 + 0.002 * (i % 4), 300_000_000 + 10_000_000 * i
        write_run(runs, f"method {i}", 0, matrix(np.full(5, accuracy)), nbytes=nbytes)
    write_run(runs, "tiny", 0, matrix(np.full(5, 0.7)), nbytes=40)
    page(width)
    collisions = browser.js(
        "[...document.querySelectorAll('svg.chart')].flatMap(chart => {"
        "  const texts = [...chart.querySelectorAll('text:not(.number)')]"
        "    .map(t => [t.textContent, t.getBoundingClientRect()]);"
        "  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1"
        "    && a.top < b.bottom - 3 && b.top < a.bottom - 3;"
        "  return texts.flatMap(([s, a], i) => texts.slice(i + 1).filter(([, b]) => meet(a, b))"
        "    .map(([t]) => s + ' | ' + t));"
        "})"
    )
    assert collisions == []
    outside = browser.js(
        "[...document.querySelectorAll('svg.chart text')].filter(t => { const a = t.getBoundingClientRect(),"
        " b = t.closest('svg').getBoundingClientRect(); return a.left < b.left - 2 || a.right > b.right + 2; })"
        ".map(t => t.textContent)"
    )
    assert outside == []


def test_a_phone_shows_the_important_columns_and_says_that_there_are_more(browser, page):
    page(390)
    head = "[...document.querySelector('.table[data-benchmark=\"split-mnist\"]').querySelectorAll('thead th')]"
    inside = f"{head}.filter(th => {{ const b = th.getBoundingClientRect(); return b.width && b.right <= 376; }})"
    assert browser.js(f"{inside}.map(th => th.textContent)")[:3] == ["Method", "Accuracy", "Memory"]
    hint = "getComputedStyle(document.querySelector('.table[data-benchmark=\"split-mnist\"] .hint')).display"
    assert browser.js(hint) == "block"
    scroll = "document.querySelector('.table[data-benchmark=\"split-mnist\"] .scroll')"
    assert browser.js(f"{scroll}.classList.contains('more')")
    browser.js(f"{scroll}.scrollLeft = 10000")
    browser.settle()
    assert not browser.js(f"{scroll}.classList.contains('more')")


def test_a_tap_shows_values_until_the_next_one_elsewhere(browser, page):
    page(390)
    browser.tap(*browser.centre(CORNER))
    assert browser.js(TIP) == "SGD: 0.500task 1, after training on task 5"
    time.sleep(0.3)
    assert browser.js(TIP), "the values went away when the finger was lifted"
    box = browser.js("document.getElementById('tip').getBoundingClientRect().toJSON()")
    assert box["left"] >= 0
    assert box["right"] <= 390
    browser.tap(*browser.centre("#figures-title"))
    assert browser.js(TIP) == ""
    assert browser.js("document.querySelectorAll('.cell-focus[visibility=visible]').length") == 0
    browser.tap(*browser.centre(split("curves"), across=0.99))
    assert "Task 1 after 5 of 5 tasks" in browser.js(TIP)
    assert "SGD0.500 ± 0.010" in browser.js(TIP)
    # A mark of the plot over bytes; a tap a little beside it is near enough for a finger.
    browser.js(f"document.querySelector('{split('pareto')}').scrollIntoView({{block: 'center'}})")
    browser.settle()
    marks = f"[...document.querySelectorAll('{split('pareto')} .dot')].map(d => d.getBoundingClientRect().toJSON())"
    dot = browser.js(marks)[-1]
    browser.tap(dot["x"] + dot["width"] / 2 + 8, dot["y"] + dot["height"] / 2 + 8)
    assert "average accuracy" in browser.js(TIP)
    # Another chart's values take the place of these.
    browser.tap(*browser.centre(CORNER))
    assert browser.js("document.querySelectorAll('.cell-focus[visibility=visible]').length") == 1
    assert browser.problems() == []


def test_values_go_without_a_change_of_focus(browser, page):
    """As on browsers that do not focus what a finger touches: events alone move the values on, and take them away."""
    page(390)
    cell = f"document.querySelector('{CORNER}')"
    move = (
        "(e => (b => e.dispatchEvent(new PointerEvent('pointermove', {pointerType: 'touch', bubbles: true,"
        " clientX: b.x + b.width / 2, clientY: b.y + b.height / 2})))(e.getBoundingClientRect()))"
    )
    marks = "document.querySelectorAll('.cell-focus[visibility=visible], .cursor[visibility=visible]').length"
    browser.js(f"{move}({cell})")
    assert browser.js(TIP).startswith("SGD: 0.500")
    browser.js(f"{move}(document.querySelector('{split('curves')}'))")
    assert "tasks" in browser.js(TIP)
    assert browser.js(marks) == 1, "the mark on the matrix went with its values"
    browser.js("document.querySelector('h1').dispatchEvent(new PointerEvent('pointerdown', {bubbles: true}))")
    assert browser.js(TIP) == ""
    assert browser.js(marks) == 0


def test_the_mouse_shows_values_and_takes_them_away(browser, page):
    page(1400)
    browser.point(*browser.centre(CORNER))
    assert browser.js(TIP) == "SGD: 0.500task 1, after training on task 5"
    # A task still to come has no value.
    browser.point(*browser.centre(split("matrix"), across=0.9, down=0.1))
    assert browser.js(TIP) == ""
    browser.point(*browser.centre(split("curves"), across=0.99))
    assert "Task 1 after 5 of 5 tasks" in browser.js(TIP)
    browser.point(5, 5)
    assert browser.js(TIP) == ""


def test_keys_show_values(browser, page):
    page(1400)
    browser.js(f"document.querySelector('{split('curves')}').focus()")
    browser.key("End")
    assert "SGD0.500 ± 0.010" in browser.js(TIP)
    browser.key("Escape")
    assert browser.js(TIP) == ""
    browser.js(f"document.querySelector('{split('pareto')}').focus()")
    said = []
    for _ in range(3):
        browser.key("ArrowRight")
        said.append(browser.js("document.querySelector('#tip b').textContent"))
    assert said == ["SGD", "LayerSketch", "SketchOGD-2"], "by rising bytes"
    browser.js(f"document.querySelector('{split('matrix')}').focus()")
    browser.key("ArrowDown")
    assert "task 1, after training on task 5" in browser.js(TIP)
    browser.key("ArrowUp")
    browser.key("ArrowRight")
    assert "task 2, after training on task 4" in browser.js(TIP)
    for _ in range(4):
        browser.key("ArrowRight")
    assert "task 4, after training on task 4" in browser.js(TIP), "tasks to come cannot be reached"
    browser.key("Tab")
    assert "LayerSketch" not in browser.js(TIP), "the values of a chart go when the focus does"
    assert browser.problems() == []


def test_every_control_is_reached_with_tab(browser, page):
    page(1400)
    browser.js("document.body.tabIndex = -1; document.body.focus()")
    reached = set()
    for _ in range(150):
        browser.key("Tab")
        at = browser.js(
            "(a => a.id || a.dataset.task && 'task' || a.closest('.picker')?.id || a.closest('#benchmarks')?.id ||"
            " a.className.baseVal || a.className || a.tagName)(document.activeElement)"
        )
        reached.add(at)
        if at == "BODY":
            break
    assert {"theme", "benchmarks", "methods", "seeds", "json", "task", "chart", "scroll", "export"} <= reached


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
    browser.point(*browser.centre(CORNER))
    assert browser.js(TIP).startswith("SGD: 0.505")
    runs_shown = "[...document.querySelectorAll('#run-table tbody tr')].filter(r => !r.hidden).map(r => r.dataset.seed)"
    assert set(browser.js(runs_shown)) == {"1", "2"}
    assert "means over the chosen seeds" in browser.js("document.getElementById('filtered').textContent")
    browser.js("document.querySelector('#seeds input[value=\"1\"]').click()")
    browser.js("document.querySelector('#panels').scrollIntoView()")
    browser.settle()
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
    browser.js("document.querySelector('#panels').scrollIntoView()")
    browser.settle()
    titles = f"[...document.querySelectorAll('{SHOWN} [data-kind=matrix] h4')].map(h => h.textContent)"
    assert browser.js(titles) == ["SketchOGD-2 · 0.675", "LayerSketch · 0.913"]


def test_tasks_of_the_curves_can_be_chosen(browser, page):
    page(1400)
    figure = f'{SHOWN}[data-benchmark="split-mnist"] [data-kind=curves]'
    panels = f"[...document.querySelectorAll('{figure} h4')].map(h => h.textContent)"
    assert browser.js(panels) == ["Task 1", "Task 3", "Task 5"]
    browser.js(f'document.querySelector(\'{SHOWN}[data-benchmark="split-mnist"] [data-task="3"]\').click()')
    assert browser.js(panels) == ["Task 1", "Task 5"]


def test_tasks_to_come_are_blank_and_cells_have_their_numbers(browser, page):
    page(1400)
    cells = browser.js(f"[...document.querySelector('{split('matrix')}').querySelectorAll('.cell')].length")
    assert cells == 5 * 6 / 2
    numbers = browser.js(
        f"[...document.querySelector('{split('matrix')}').querySelectorAll('.number')].map(t => t.textContent)"
    )
    assert numbers[-5:] == [".50", ".50", ".60", ".70", ".95"]


def test_two_frontiers_where_some_methods_keep_examples(browser, runs, page):
    page(1400)
    fronts = f"[...document.querySelectorAll('{split('pareto')} .front')].map(p => p.getAttribute('d'))"
    assert len(browser.js(fronts)) == 1
    write_run(runs, "replay", 0, matrix(np.full(5, 0.99)), nbytes=5_000_000)
    page(1400)
    free, everything = browser.js(fronts)
    assert free != everything
    # Each frontier ends at the right at the height of its best method: SVG's y axis points down.
    assert float(everything.split(",")[-1]) < float(free.split(",")[-1])


def test_old_against_new_accuracy_over_strength(browser, runs, page):
    for strength, old, new in ((1.0, 0.6, 0.9), (10.0, 0.8, 0.7)):
        A = matrix([old] * 4 + [new], learned=new)
        assert (old_accuracy(A), new_accuracy(A)) == pytest.approx((old, new))
        write_run(runs, "ewc", 0, A, options={"strength": strength})
    page(1400)
    browser.js(f"document.querySelectorAll('{split('tradeoff')}')[1].focus()")
    for key, name, old, new in (("Home", "1", "0.600", "0.900"), ("End", "10", "0.800", "0.700")):
        browser.key(key)
        assert browser.js(TIP) == f"EWC, strength {name}old tasks, at the end{old}new tasks, right after each{new}"
    browser.js(f"document.querySelector('{split('tradeoff')}').focus()")
    browser.key("Home")
    assert browser.js(TIP) == "Strength 1EWC, new tasks0.900EWC, old tasks0.600"


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
