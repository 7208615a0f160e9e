"""The table and the page: their numbers are those of the records, and the page needs nothing but itself."""

import dataclasses
import json
import os
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from sketchogd.lab.pages import report
from sketchogd.lab.pages.groups import collect, styles_of
from sketchogd.lab.pages.reference import Comparison, Reference
from sketchogd.lab.pages.trajectory import trajectory
from sketchogd.lab.records import RecordError, RunFolder, bundles, sketch_errors
from sketchogd.paper.published import PAPER, TABLE_2

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-quic"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe"),
)
HOSTILE = '<script>document.title="broken"</script><img src=x onerror=alert(1)> {{script}} "&'


def matrix(final, learned=0.95):
    """An accuracy matrix whose last row is `final`; every task is learned to `learned` and keeps that until then."""
    T = len(final)
    A = np.full((T, T), np.nan)
    A[np.tril_indices(T)] = learned
    A[-1] = final
    return A


def write_run(root, method, seed, A, *, benchmark="split-mnist", nbytes=1000, events=(), **config):
    folder = RunFolder(root / f"{benchmark}-{method.replace('/', '')[:12]}-{len(list(root.glob('*')))}")
    folder.start({"benchmark": benchmark, "method": method, "seed": seed, "epochs": 30, **config})
    folder.save_accuracy(A)
    for event in events:
        folder.append(event)
    folder.finish(timings={"total": 12.5 + seed}, ledger={"nbytes": nbytes, "entries": []})
    return folder


def evaluations(A, epochs):
    """Evaluations after every epoch, counted from 1, on the tasks seen; the last of a task is the matrix row."""
    for task in range(len(A)):
        for epoch in range(1, epochs + 1):
            row = A[task, : task + 1] * epoch / epochs
            yield {"event": "evaluation", "task": task, "epoch": epoch, "step": 0, "accuracy": row.tolist()}


@pytest.fixture
def runs(tmp_path):
    """Three methods on two benchmarks, one with spectra, and a failed run."""
    root = tmp_path / "runs"
    root.mkdir()
    for seed, shift in enumerate((-0.01, 0.0, 0.01)):
        A = matrix(np.array([0.5, 0.5, 0.6, 0.7, 0.95]) + shift)
        write_run(root, "sgd", seed, A, nbytes=0, events=list(evaluations(A, 30)))
        folder = write_run(root, "sketchogd-2", seed, matrix(np.full(5, 0.675) + shift), nbytes=545_328_000)
        s = 10.0 / np.arange(1, 501)
        np.savez(folder.path / "spectra.npz", singular_values=s, stable_rank=np.float64(1.64))
    write_run(root, "layer-sketch", 0, matrix(np.full(5, 0.913)), nbytes=1_050_000)
    write_run(root, "sgd", 0, matrix(np.full(10, 0.79)), benchmark="rotated-mnist", nbytes=0)
    failed = RunFolder(root / "failed")
    failed.start({"benchmark": "split-mnist", "method": "ogd", "seed": 0})
    failed.fail(RuntimeError(HOSTILE))
    return root


def embedded(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_rows_are_means_over_seeds_beside_the_published_values(runs):
    rows = {(row["benchmark"], row["method"]): row for row in report.summary_table(runs, PAPER)}
    assert list(rows) == [
        ("rotated-mnist", "sgd"),
        ("split-mnist", "sgd"),
        ("split-mnist", "sketchogd-2"),
        ("split-mnist", "layer-sketch"),
    ]
    sgd = rows["split-mnist", "sgd"]
    assert (sgd["n"], sgd["nbytes"], sgd["published"], sgd["published_std"]) == (3, 0, 0.604, 0.003)
    # Final accuracies .5 .5 .6 .7 .95, shifted by −.01, 0, .01; learned to .95 except the last, whose row is final.
    assert sgd["accuracy"] == pytest.approx(0.65)
    assert sgd["accuracy_std"] == pytest.approx(0.01)
    assert sgd["forgetting"] == pytest.approx(0.95 - np.mean([0.5, 0.5, 0.6, 0.7]))
    assert sgd["learning"] == pytest.approx(0.95)
    assert sgd["difference"] == pytest.approx(0.046)
    assert sgd["seconds"] == pytest.approx(13.5)
    assert sgd["outside"] is True
    assert rows["split-mnist", "sketchogd-2"]["outside"] is False
    assert rows["split-mnist", "layer-sketch"]["published"] is None
    assert json.loads(json.dumps(list(rows.values()), allow_nan=False)) == list(rows.values())


@pytest.mark.parametrize(("accuracy", "outside"), [(0.6095, False), (0.6105, True), (0.5985, False), (0.5975, True)])
def test_a_difference_is_marked_beyond_two_published_deviations_plus_ours(tmp_path, accuracy, outside):
    write_run(tmp_path, "sgd", 0, matrix(np.full(5, accuracy)))
    assert report.summary_table(tmp_path, PAPER)[0]["outside"] is outside


def test_the_best_method_is_paired_with_the_others_on_common_seeds(runs):
    (pair,) = [row for row in report.page_data(runs)["pairs"] if row["benchmark"] == "split-mnist"]
    # Both are shifted by the same amount with each seed; LayerSketch has one seed, and cannot be tested.
    assert (pair["best"], pair["other"], pair["n"]) == ("SketchOGD-2", "SGD", 3)
    assert pair["difference"] == pytest.approx(0.025)
    assert pair["p_t"] == pytest.approx(0.0, abs=1e-6)
    assert pair["p_sign_flip"] == pytest.approx(0.25)


def test_errors_over_rank_are_on_the_page(runs):
    path = next(runs.glob("*sketchogd-2*")) / "spectra.npz"
    arrays = {key: np.array([0.5, 0.2]) for key in sketch_errors.KEYS} | {"k": np.array([50, 79])}
    np.savez(path, singular_values=np.ones(3), **arrays)
    (errors,) = [group["errors"] for group in report.page_data(runs)["groups"] if "errors" in group]
    assert errors == {key: values.tolist() for key, values in arrays.items()}


def test_shortened_runs_are_not_compared(tmp_path):
    A = matrix(np.full(3, 0.7))
    folder = RunFolder(tmp_path / "run")
    folder.start({"benchmark": "rotated-mnist", "method": "sgd", "seed": 0, "epochs": 2, "n_train": 500})
    folder.save_accuracy(A)
    folder.finish()
    (row,) = report.summary_table(tmp_path, PAPER)
    assert row["shortened"] == "epochs 2 instead of 30, n_train 500 instead of 10000, tasks 3 instead of 10"
    assert (row["published"], row["difference"], row["outside"], row["nbytes"]) == (0.792, None, None, None)


def test_settings_of_one_method_are_not_mixed_and_seeds_are(tmp_path):
    for seed in range(2):
        for budget, accuracy in (("1MB", 0.6), ("2MB", 0.8)):
            write_run(tmp_path, "sketchogd", seed, matrix(np.full(5, accuracy)), budget=budget, stream_seed=seed)
    rows = report.summary_table(tmp_path)
    assert [(row["variant"], row["n"], round(row["accuracy"], 3)) for row in rows] == [
        ("budget 1MB", 2, 0.6),
        ("budget 2MB", 2, 0.8),
    ]


def test_variants_have_budgets_in_megabytes_and_styles_of_their_own(tmp_path):
    for budget in (250_000, 1_601_312, 545_328_000):
        write_run(tmp_path, "sketchogd", 0, matrix(np.full(5, 0.6)), budget=budget)
    write_run(tmp_path, "own", 0, matrix(np.full(5, 0.6)))
    write_run(tmp_path, "layer-sketch", 0, matrix(np.full(5, 0.6)))
    groups = collect(tmp_path)[0]
    assert [group.label for group in groups] == [
        "SketchOGD (budget 0.25 MB)",
        "SketchOGD (budget 1.60131 MB)",
        "SketchOGD (budget 545 MB)",
        "LayerSketch",
        "own",
    ]
    # The first setting of sketchogd and layer-sketch have the styles of their methods; the others get free ones.
    assert styles_of(groups) == [1, 2, 3, 0, 4]


def test_a_table_2_run_is_compared_with_table_2(tmp_path):
    write_run(tmp_path, "sketchogd-1", 0, matrix(np.full(5, 0.684)), preset="table2")
    (row,) = report.summary_table(tmp_path, PAPER)
    assert (row["published"], row["published_table"]) == (TABLE_2["sketchogd-1"][2][0], "table2")


class Elsewhere(Reference):
    """A reference that is not the paper's, with one value for every run."""

    source = "the numbers of <others>"
    tables: ClassVar = {"all": "their only table"}

    def compare(self, benchmark, method, config, tasks, accuracy):
        return Comparison(0.5, 0.1, "all", "", accuracy.mean - 0.5, False)


def test_without_a_reference_rows_have_the_same_keys_and_no_published_values(runs, tmp_path):
    """Also for benchmarks and methods that the lab does not know: they have their names for titles, and come last."""
    write_run(runs, "own-method", 0, matrix(np.full(3, 0.7)), benchmark="own-stream")
    write_run(runs, "own-method", 0, matrix(np.full(5, 0.7)))
    compared = [field.name for field in dataclasses.fields(Comparison)]
    rows = report.summary_table(runs)
    assert [list(row) for row in rows] == [list(row) for row in report.summary_table(runs, PAPER)]
    assert {row[name] for row in rows for name in compared} == {None}
    assert [(row["benchmark"], row["method"]) for row in rows][-2:] == [
        ("split-mnist", "own-method"),
        ("own-stream", "own-method"),
    ]
    data = report.page_data(runs)
    assert data["benchmarks"][-1] == {"name": "own-stream", "title": "own-stream", "curves": ()}
    assert [group["label"] for group in data["groups"]][-1] == "own-method"
    page = report.write_html(runs, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "published in" not in page.partition("<main>")[0]
    assert embedded(page)["reference"] == {"source": "", "tables": {}}


def test_any_reference_can_be_given(runs, tmp_path):
    assert {row["published"] for row in report.summary_table(runs, Elsewhere())} == {0.5}
    page = report.write_html(runs, tmp_path / "page.html", reference=Elsewhere()).read_text(encoding="utf-8")
    assert "Our runs are shown beside the numbers of &lt;others&gt;, together with" in page
    assert embedded(page)["reference"]["tables"] == {"all": "their only table"}


def test_the_pages_and_the_records_know_nothing_of_the_paper():
    for path in [*Path(report.__file__).parent.rglob("*.py"), *Path(bundles.__file__).parent.rglob("*.py")]:
        assert "sketchogd.paper" not in path.read_text(encoding="utf-8"), path


def test_runs_that_cannot_be_shown_are_named_with_the_reason(runs):
    (runs / "damaged").mkdir()
    (runs / "damaged" / "run.json").write_text("{")
    half = RunFolder(runs / "half")
    half.start({"benchmark": "split-mnist", "method": "ogd", "seed": 1})
    left_out = {item["run"]: item["reason"] for item in collect(runs)[1]}
    assert left_out["failed"] == f"failed: RuntimeError: {HOSTILE}"
    assert left_out["half"] == "not finished"
    assert "damaged" in left_out["damaged"]
    assert str(runs) not in json.dumps(report.page_data(runs))


def test_no_runs_is_an_error_that_says_what_was_expected(tmp_path):
    with pytest.raises(RecordError, match=r"expected run folders"):
        report.write_html(tmp_path, tmp_path / "page.html")


@pytest.mark.parametrize("first", [0, 1])
def test_trajectory_follows_events_whether_epochs_count_from_0_or_1(tmp_path, first):
    A = matrix([0.4, 0.8], learned=0.9)
    events = [{**event, "epoch": event["epoch"] - 1 + first} for event in evaluations(A, 3)]
    folder = RunFolder(tmp_path / "run")
    folder.start({"benchmark": "own", "method": "own", "seed": 0, "epochs": 3})
    folder.save_accuracy(A)
    for event in events:
        folder.append(event)
    folder.finish()
    x, mean, std = trajectory(collect(tmp_path)[0][0])
    np.testing.assert_allclose(x, np.arange(1, 7) / 3, atol=1e-6)
    np.testing.assert_allclose(mean[:, 0], [0.3, 0.6, 0.9, 0.4 / 3, 0.8 / 3, 0.4])
    np.testing.assert_allclose(mean[:, 1], [np.nan] * 3 + [0.8 / 3, 1.6 / 3, 0.8])
    assert np.nanmax(std) == 0


def test_page_embeds_the_records_and_lets_no_markup_through(runs, tmp_path):
    write_run(runs, HOSTILE, 0, matrix(np.full(5, 0.5)), benchmark="split-mnist")
    path = report.write_html(runs, tmp_path / "deep" / "page.html", HOSTILE, PAPER)
    page = path.read_text(encoding="utf-8")
    data = embedded(page)
    groups = {group["label"]: group for group in data["groups"] if group["benchmark"] == "split-mnist"}
    assert HOSTILE in groups
    assert data["title"] == HOSTILE
    assert "<script>document" not in page
    assert "<img" not in page
    rows = [group["row"] for group in data["groups"]]
    assert rows == report.summary_table(runs, PAPER)
    expected = np.mean([run.accuracy for run in collect(runs)[0][1].runs], axis=0)
    np.testing.assert_allclose(np.array(groups["SGD"]["matrix"], dtype=float), expected, atol=1e-5)
    spectrum = groups["SketchOGD-2"]["spectrum"]
    assert spectrum["stable_rank"] == pytest.approx(1.64)
    assert spectrum["values"] == pytest.approx([10.0 / i for i in spectrum["index"]])
    assert not re.search(r"(src|href)=\"(?!#|data:)", page), "the page refers to another file"
    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\'' in page


class Browser:
    """Headless Chromium driven over its debugging pipe, with every console message and request recorded."""

    def __init__(self, profile):
        commands, self.send = os.pipe()
        self.receive, answers = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4; the launcher puts the pipes there.
        launcher = (
            "import fcntl, os, sys; r, w = (fcntl.fcntl(int(a), fcntl.F_DUPFD, 10) for a in sys.argv[1:3]);"
            "os.dup2(r, 3); os.dup2(w, 4); os.execvp(sys.argv[3], sys.argv[3:])"
        )
        command = [sys.executable, "-c", launcher, str(commands), str(answers), CHROMIUM, *FLAGS]
        self.process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self.buffer, self.count, self.session, self.events = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.send, json.dumps(message).encode() + b"\0")
        while (answer := self.next_message()).get("id") != self.count:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def next_message(self, seconds=20):
        deadline = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.receive], [], [], max(0, deadline - time.monotonic()))
            chunk = os.read(self.receive, 1 << 20) if ready else b""
            assert chunk, "Chromium did not answer in time"
            self.buffer += chunk
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def open(self, url, width=1280, dark=False):
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.next_message())

    def js(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def problems(self):
        """Console messages, exceptions and log entries since the page was opened."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event["params"] for event in self.events if event.get("method") in kinds]

    def requests(self):
        found = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in found]

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=10)
        os.close(self.send)
        os.close(self.receive)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the path")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def test_the_browser_would_report_errors_and_requests(browser, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text("<img src='https://example.invalid/x.png'><script>console.error('a'); missing()</script>")
    browser.open(page.as_uri())
    assert len(browser.problems()) >= 2
    assert "https://example.invalid/x.png" in browser.requests()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_page_shows_the_numbers_of_the_records(browser, runs, tmp_path, width, dark):
    write_run(runs, HOSTILE, 0, matrix(np.full(5, 0.5)))
    write_run(runs, "x" * 150, 0, matrix([0.5]), benchmark="y" * 150)
    arrays = {key: np.array([0.5, 0.2]) for key in sketch_errors.KEYS} | {"k": np.array([50, 79])}
    np.savez(next(runs.glob("*sketchogd-2*")) / "spectra.npz", singular_values=10.0 / np.arange(1, 501), **arrays)
    page = report.write_html(runs, tmp_path / "page.html", "A title & more", PAPER)
    browser.open(page.as_uri(), width, dark)
    table = browser.js(
        "[...document.querySelectorAll('[data-benchmark=\"split-mnist\"] tbody tr')]"
        ".map(tr => [...tr.children].map(cell => cell.textContent))"
    )
    cells = {row[0]: [row[2], row[3], row[4].split(" ")[0], row[5], row[7], row[8]] for row in table}
    rows = {row["method"]: row for row in report.summary_table(runs) if row["benchmark"] == "split-mnist"}
    assert cells["SGD"] == ["0.650 ± 0.010", "0.604 ± 0.003", "+0.046▲", "0.375 ± 0.010", "0 B", "3"]
    assert cells["SketchOGD-2"][:1] == [f"{rows['sketchogd-2']['accuracy']:.3f} ± 0.010"]
    assert cells["LayerSketch"] == ["0.913", "–", "–", "0.037", "1.05 MB", "1"]
    assert HOSTILE in cells
    kinds = browser.js("[...document.querySelectorAll('.bench:not([hidden]) figure')].map(f => f.dataset.kind)")
    assert kinds == ["curves", "pareto", "matrix"], "rotated MNIST comes first and has no spectra"
    browser.js("document.querySelectorAll('#benchmarks button')[1].click()")
    kinds = browser.js("[...document.querySelectorAll('.bench:not([hidden]) figure')].map(f => f.dataset.kind)")
    assert kinds == ["curves", "pareto", "matrix", "spectra", "errors"]
    paths = browser.js(
        "document.querySelectorAll('.bench:not([hidden]) [data-kind=errors] svg.chart path[stroke]').length"
    )
    assert paths == 6, "two measured, three bounds and the optimum"
    pairs = browser.js("[...document.querySelectorAll('#pairs tbody tr')].map(tr => tr.textContent)")
    assert pairs == ["Split MNISTSketchOGD-2SGD+0.025< 0.0010.2503"]
    assert "SketchOGD-2 1.6" in browser.js("document.querySelector('[data-kind=spectra] figcaption').textContent")
    assert browser.js("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert browser.js("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    assert browser.js("document.title") == "A title & more"
    assert browser.problems() == []
    assert browser.requests() == [page.as_uri(), "data:,"] or browser.requests() == [page.as_uri()]


def test_page_sorts_chooses_and_answers_to_the_keyboard(browser, runs, tmp_path):
    page = report.write_html(runs, tmp_path / "page.html")
    browser.open(page.as_uri())
    browser.js("document.querySelectorAll('#benchmarks button')[1].click()")
    first = (
        "[...document.querySelectorAll('[data-benchmark=\"split-mnist\"].table tbody th')].map(th => th.textContent)"
    )
    assert browser.js(first) == ["SGD", "SketchOGD-2", "LayerSketch"]
    accuracy = "document.querySelectorAll('[data-benchmark=\"split-mnist\"].table thead th')[2]"
    browser.js(f"{accuracy}.querySelector('button').click()")
    assert browser.js(first) == ["LayerSketch", "SketchOGD-2", "SGD"]
    assert browser.js(f"{accuracy}.getAttribute('aria-sort')") == "descending"
    box = "document.querySelector('.bench:not([hidden])')"
    panels = f"[...{box}.querySelectorAll('[data-kind=curves] h4')].map(h => h.textContent)"
    assert browser.js(panels) == ["Task 1", "Task 3", "Task 5"]
    browser.js(f"{box}.querySelector('[data-task=\"3\"]').click()")
    assert browser.js(panels) == ["Task 1", "Task 5"]
    browser.js(f"{box}.querySelector('[data-kind=curves] svg').focus()")
    for key in ("End", "Escape"):
        event = f"new KeyboardEvent('keydown', {{key: '{key}', bubbles: true}})"
        browser.js(f"{box}.querySelector('[data-kind=curves] svg').dispatchEvent({event})")
        text = browser.js("document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent")
        assert ("SGD0.500 ± 0.010" in text) == (key == "End")
    browser.js("document.querySelector('#legend button').click()")
    titles = f"[...{box}.querySelectorAll('[data-kind=matrix] h4')].map(h => h.textContent)"
    assert browser.js(titles) == ["SketchOGD-2 · 0.675", "LayerSketch · 0.913"]
    before = browser.js("getComputedStyle(document.body).backgroundColor")
    browser.js("document.getElementById('theme').click()")
    assert browser.js("getComputedStyle(document.body).backgroundColor") != before
    assert browser.problems() == []
