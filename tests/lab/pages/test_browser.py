"""The page in Chromium, on a desk and on a phone: what it shows, to the eye, the mouse, a finger and the keyboard."""

import time

import numpy as np
import pytest

from sketchogd.lab.pages.tradeoff import new_accuracy, old_accuracy
from sketchogd.lab.records import sketch_errors
from tests.lab.pages.records import HOSTILE, matrix, write_run
from tests.lab.pages.selectors import CELLS, CORNER, TIP, split


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
