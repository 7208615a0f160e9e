"""Old against new accuracy over strength: which runs belong to one trade-off, and what the two accuracies are."""

import numpy as np
import pytest

from sketchogd.lab.pages import report
from sketchogd.lab.pages.groups import collect
from sketchogd.lab.pages.tradeoff import Strength, new_accuracy, old_accuracy, strengths
from tests.lab.pages.records import matrix, write_run


def test_groups_that_differ_in_their_strength_only_are_a_family(tmp_path):
    for strength in (0.5, 8.0):
        for damping in (0.1, 0.2):
            options = {"strength": strength, "damping": damping}
            write_run(tmp_path, "layer-sketch", 0, matrix(np.full(3, strength / 10)), options=options)
    write_run(tmp_path, "layer-sketch", 0, matrix(np.full(3, 0.5)), options={"strength": None, "damping": 0.1})
    write_run(tmp_path, "ewc", 0, matrix(np.full(3, 0.5)), options={"strength": 3.0})
    write_run(tmp_path, "sgd", 0, matrix(np.full(3, 0.5)))
    groups = collect(tmp_path)[0]
    found = {group.label: strength for group, strength in zip(groups, strengths(groups), strict=True)}
    assert found == {
        "SGD": None,
        "LayerSketch (damping 0.1)": None,
        "LayerSketch (damping 0.1, strength 0.5)": Strength("LayerSketch (damping 0.1)", 0.5),
        "LayerSketch (damping 0.1, strength 8.0)": Strength("LayerSketch (damping 0.1)", 8.0),
        "LayerSketch (damping 0.2, strength 0.5)": Strength("LayerSketch (damping 0.2)", 0.5),
        "LayerSketch (damping 0.2, strength 8.0)": Strength("LayerSketch (damping 0.2)", 8.0),
        "EWC": None,
    }
    data = {group["label"]: group.get("strength") for group in report.page_data(tmp_path)["groups"]}
    assert data["LayerSketch (damping 0.2, strength 8.0)"] == {"family": "LayerSketch (damping 0.2)", "value": 8.0}
    assert data["SGD"] is None


def test_old_is_the_end_of_the_tasks_before_the_last_and_new_the_diagonal_after_the_first():
    A = np.array([[0.9, np.nan, np.nan], [0.8, 0.7, np.nan], [0.4, 0.6, 0.5]])
    assert old_accuracy(A) == pytest.approx((0.4 + 0.6) / 2)
    assert new_accuracy(A) == pytest.approx((0.7 + 0.5) / 2)
    assert np.isnan([old_accuracy(A[:1, :1]), new_accuracy(A[:1, :1])]).all()
