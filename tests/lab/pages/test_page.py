"""The page as a file, read without a browser: a conclusion, complete tables, downloads, nothing empty, no markup."""

import json
import re

import numpy as np
import pytest

from sketchogd.lab.pages import report
from sketchogd.lab.pages.downloads import results_csv
from sketchogd.lab.pages.groups import collect
from sketchogd.lab.records import RunFolder
from sketchogd.paper.published import PAPER
from tests.lab.pages.records import HOSTILE, embedded, evaluations, linked, matrix, tables, text, write_run


def page_of(runs, reference=PAPER, title="A title"):
    path = report.write_html(runs, runs.parent / "page.html", title, reference)
    return path.read_text(encoding="utf-8")


@pytest.fixture
def own(tmp_path):
    """One seed of two methods on a stream that no paper knows, with accuracies on tasks to come as well."""
    for method, final, nbytes in (("sgd", [0.4, 0.8], 0), ("layer-sketch", [0.7, 0.8], 2_000_000)):
        A = matrix(final)
        A[0, 1] = 0.123
        write_run(tmp_path / "runs", method, 0, A, benchmark="my stream", nbytes=nbytes)
    return tmp_path / "runs"


def test_page_embeds_the_records_and_lets_no_markup_through(runs):
    write_run(runs, HOSTILE, 0, matrix(np.full(5, 0.5)), option=HOSTILE)
    write_run(runs, HOSTILE, 0, matrix(np.full(5, 0.5)), option="=1+1")
    page = page_of(runs, title=HOSTILE)
    data = embedded(page)
    groups = {group["label"]: group for group in data["groups"] if group["benchmark"] == "split-mnist"}
    assert f"{HOSTILE} (option {json.dumps(HOSTILE)[1:-1]})" in groups
    assert data["title"] == HOSTILE
    # The only "<script" are those of the page, and the hostile text is text wherever it stands.
    assert len(re.findall(r"<script\b", page)) == 2
    assert "<img" not in page
    assert any(HOSTILE in cell for row in tables(page)["Results on Split MNIST"] for cell in row)
    assert any(HOSTILE in cell for row in tables(page)["Runs left out"] for cell in row)
    rows = [group["row"] for group in data["groups"]]
    assert rows == report.summary_table(runs, PAPER)
    expected = np.mean([run.accuracy for run in collect(runs)[0][1].runs], axis=0)
    found = groups["SGD"]["matrix"]
    np.testing.assert_allclose(np.concatenate(found), expected[np.tril_indices(5)], atol=1e-5)
    spectrum = groups["SketchOGD-2"]["spectrum"]
    assert spectrum["stable_rank"] == pytest.approx(1.64)
    assert spectrum["values"] == pytest.approx([10.0 / i for i in spectrum["index"]])
    assert not re.search(r"(src|href)=\"(?!#|data:)", page), "the page refers to another file"
    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\'' in page


def test_a_sentence_on_top_says_which_method_is_best(own):
    said = re.search(r'<p class="conclusion" id="conclusion">(.*?)</p>', page_of(own))[1]
    assert said == (
        "On my stream, LayerSketch ends highest: average accuracy 0.750 with 2 MB kept, 0.150 above SGD, which keeps "
        "nothing (0.600). With one seed, small differences may be chance."
    )


def test_own_runs_get_neither_the_papers_introduction_nor_empty_columns(own):
    page = page_of(own)
    assert tables(page)["Results on my stream"][0] == [
        "Method",
        "",
        "Accuracy",
        "Memory",
        "Forgetting",
        "Learning",
        "Seeds",
    ]
    for word in ("paper", "Published", "published", "Difference", "▲"):
        assert word not in text(page), word
    assert "published" not in linked(page, "results.csv")[0]


def test_runs_that_depart_from_the_protocol_are_not_compared_but_it_is_said(tmp_path):
    write_run(tmp_path / "runs", "sgd", 0, matrix(np.full(5, 0.6)), n_train=500)
    page = page_of(tmp_path / "runs")
    assert "Published" not in tables(page)["Results on Split MNIST"][0]
    assert "n_train 500 instead of" in text(page)


def test_published_values_have_columns_where_they_can_be_compared(runs):
    page = page_of(runs)
    head, sgd, sketch, layer = tables(page)["Results on Split MNIST"]
    assert head == ["Method", "", "Accuracy", "Memory", "Forgetting", "Learning", "Published", "Difference", "Seeds"]
    assert sgd == [
        *("SGD", "", "0.650 ± 0.010", "0 B", "0.375 ± 0.010", "0.950 ± 0.002", "0.604 ± 0.003"),
        *("+0.046▲ above the error bars", "3"),
    ]
    assert sketch[2:4] == ["0.675 ± 0.010", "545 MB"]
    assert layer[2:] == ["0.913", "1.05 MB", "0.037", "0.943", "–", "–", "1"]
    assert "The runs are shown beside the values published in" in text(page)


def test_one_seed_has_no_deviation_anywhere(own):
    page = page_of(own)
    assert "±" not in text(page)
    assert {row["accuracy_std"] for row in linked(page, "results.csv")} == {""}


def test_tasks_to_come_are_blank_even_where_they_were_measured(own):
    for group in embedded(page_of(own))["groups"]:
        assert [len(row) for row in group["matrix"]] == [1, 2]
        assert [len(row) for run in group["runs"] for row in run["matrix"]] == [1, 2]
        assert "0.123" not in json.dumps(group)


def test_runs_of_a_group_are_on_the_page_one_by_one(runs):
    """From what the page has of each run, its means follow."""
    data = embedded(page_of(runs))
    (sgd,) = [g for g in data["groups"] if g["label"] == "SGD" and g["benchmark"] == "split-mnist"]
    recorded = [run.accuracy for run in collect(runs)[0][1].runs]
    for run, A in zip(sgd["runs"], recorded, strict=True):
        np.testing.assert_allclose(np.concatenate(run["matrix"]), A[np.tril_indices(5)], atol=1e-5)
        assert run["accuracy"] == pytest.approx(A[-1].mean())
        # Task j is followed from the first epoch on it to the end; its last value is the matrix's.
        assert [values[-1] for values in run["curve"]] == pytest.approx(A[-1].tolist(), abs=1e-4)
        ends = [i for i, x in enumerate(sgd["x"]) if x == round(x)]
        assert [run["curve"][0][i] for i in ends] == pytest.approx(A[:, 0].tolist(), abs=1e-4)
    assert np.mean([run["accuracy"] for run in sgd["runs"]]) == pytest.approx(sgd["row"]["accuracy"])


def test_runs_that_were_first_measured_at_different_times_stay_aligned(tmp_path):
    """One run has no accuracy at the first evaluation of a task: a gap, not a shift."""
    A = matrix([0.5, 0.9])
    for seed in range(2):
        events = list(evaluations(A, 3))
        events[0]["accuracy"][0] = None if seed else 0.3
        write_run(tmp_path / "runs", "sgd", seed, A, events=events)
    (group,) = embedded(page_of(tmp_path / "runs"))["groups"]
    first, second = (run["curve"][0] for run in group["runs"])
    assert (first[0], second[0]) == (0.3, None)
    assert first[1:] == second[1:]


def test_csv_files_are_the_records(runs):
    page = page_of(runs)
    rows = report.summary_table(runs, PAPER)
    found = linked(page, "results.csv")
    for key in ("benchmark", "method", "variant"):
        assert [row[key] for row in found] == [row[key] for row in rows]
    for key in ("accuracy", "forgetting", "learning", "nbytes", "n", "seconds"):
        assert [float(row[key]) for row in found] == [row[key] for row in rows]
    assert [row["published"] for row in found] == ["" if r["published"] is None else str(r["published"]) for r in rows]
    shown = linked(page, "runs.csv")
    recorded = [run for group in collect(runs)[0] for run in group.runs]
    assert [(row["method"], row["seed"]) for row in shown] == [
        (r.config["method"], str(r.config["seed"])) for r in recorded
    ]
    np.testing.assert_allclose([float(row["accuracy"]) for row in shown], [r.accuracy[-1].mean() for r in recorded])


def test_a_name_is_no_formula_in_a_spreadsheet():
    row = dict.fromkeys(("accuracy", "accuracy_std", "forgetting", "forgetting_std"), -0.5)
    group = {"keeps_examples": False, "row": {**row, "benchmark": "=cmd()", "method": "+x", "variant": "@y", "n": 2}}
    shown = results_csv([group], compared=False).splitlines()[1]
    assert shown.startswith("'=cmd(),'+x,'@y,2,-0.5,-0.5,-0.5,-0.5,")


def test_nothing_is_empty_without_scripts(runs, own):
    """Disclosures have their tables, and what only scripts fill is marked so that it is not shown without them."""
    for folder in (runs, own):
        page = page_of(folder)
        for name, rows in tables(page).items():
            assert len(rows) > 1, name
        for summary, content in re.findall(r"<details[^>]*><summary>(.*?)</summary>(.*?)</details>", page, re.DOTALL):
            assert "<tbody><tr" in content, summary
        # Empty elements are the scripts' to fill; each is inside of something that is shown with scripts only.
        for tag in re.findall(r"<(?:div|section|p|ul|dl)\b[^>]*></", page):
            assert "scripted" in tag or 'id="panels"' in tag or 'id="tip"' in tag or 'id="left-out"' in tag, tag
        assert re.search(r'<section id="figures" class="scripted"', page)
        assert "html:not([data-theme]) .scripted" in page


def test_a_page_without_accuracies_says_so(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "failed")
    folder.start({"benchmark": "split-mnist", "method": "ogd", "seed": 0})
    folder.fail(RuntimeError("it broke"))
    page = page_of(tmp_path / "runs")
    assert "No finished run has accuracies yet." in text(page)
    assert tables(page)["Runs left out"][1] == ["failed", "failed: RuntimeError: it broke"]
