"""The table of a report and what a page is made of: their numbers are those of the records."""

import dataclasses
import json
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
from tests.lab.pages.records import HOSTILE, embedded, evaluations, matrix, write_run


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
    assert "The runs are shown beside the numbers of &lt;others&gt;." in page
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
