"""What is measured of a learner at the end of its run: its own arrays, and registered ones."""

import numpy as np
import pytest
import torch
from torch import nn

import sketchogd as so
from sketchogd.lab.methods import Setup, build, method, protected
from sketchogd.lab.runs import measure
from sketchogd.paper import rank_errors
from sketchogd.paper.measurements import errors_of_kept_rows


def setup():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8))
    return Setup(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda x, y, group: model(x).sum(), 1, 64)


def learner(name, **settings):
    return shown(build(method(name, **settings), setup()))


def shown(made):
    """The learner after a task of 80 examples."""
    g = torch.Generator().manual_seed(1)
    made.end_task(torch.randn(80, 12, generator=g), torch.randint(0, 8, (80,), generator=g))
    return made


def test_singular_values_are_those_of_the_kept_rows():
    made = learner("ogd")
    found = made.measurements()
    assert list(found) == ["singular_values", "stable_rank"]
    values = found["singular_values"]
    assert len(values) == 80
    assert (np.diff(values) <= 0).all()
    assert found["stable_rank"] == pytest.approx((values**2).sum() / values[0] ** 2, rel=1e-5)
    assert found["stable_rank"].shape == ()


@pytest.mark.parametrize(
    ("name", "settings"),
    [("sgd", {}), ("layer-sketch", {"rank": 4}), ("sketchogd-blocks", {"rank": 4, "blocks": 2}), ("si", {})],
)
def test_most_methods_have_nothing_to_measure(name, settings):
    assert measure.measured(learner(name, **settings)) == {}


def test_the_paper_measures_errors_where_all_rows_are_kept():
    assert errors_of_kept_rows in measure.MEASUREMENTS
    made = learner("ogd")
    found = measure.measured(made)
    assert list(found) == ["singular_values", "stable_rank", *rank_errors.KEYS]
    expected = rank_errors.errors_over_rank(made.protection.memory.sketch)
    assert len(expected["k"]) == 2  # 50 and 79 of 80
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array)
    assert list(measure.measured(learner("sketchogd", rank=60))) == ["singular_values", "stable_rank"]


def test_rows_of_blocks_have_no_common_spectrum():
    memory = so.GradientMemory(so.AllRows(), blocks=2)
    assert measure.measured(shown(protected(method("ogd"), setup(), memory))) == {}


def test_a_registered_measurement_is_made_after_the_learner_s_own(monkeypatch):
    monkeypatch.setattr(measure, "MEASUREMENTS", [])
    mine = measure.register_measurement(lambda made: {"stable_rank": np.array(-1.0), "bytes": np.array(made.nbytes)})
    assert [mine] == measure.MEASUREMENTS
    made = learner("sketchogd", rank=6)
    found = measure.measured(made)
    assert (float(found["stable_rank"]), int(found["bytes"])) == (-1.0, made.nbytes)
    assert len(found["singular_values"]) == 6
