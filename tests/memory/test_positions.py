"""Ωᵀ M from a network's tensors as they are, against the rows written down and observed one sketch at a time."""

import pytest
import torch
from torch import nn

import sketchogd as so
from sketchogd.memory.curvature import positions
from sketchogd.memory.curvature.factors import LayerFactors
from sketchogd.memory.curvature.positions import Product
from sketchogd.model.parameters import ProtectedParameters
from sketchogd.sketch import SecondMoment
from sketchogd.sketch.testmatrix import Gaussian, Identity, SparseSign
from tests import models


class Signal(nn.Module):
    """Convolutions of every form over a signal, and one on an example without a batch dimension."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(4, 12, 3, stride=2, padding=1, groups=2)
        self.second = nn.Conv1d(12, 6, 5, dilation=2, padding="same", bias=False)
        self.third = nn.Conv2d(1, 8, (2, 3), stride=(1, 2), padding=(1, 0), dilation=(2, 1))
        self.alone = nn.Conv1d(8, 10, 1)
        self.head = nn.Linear(10, 3)

    def forward(self, x):
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        x = torch.tanh(self.third(x.unsqueeze(1))).mean(2)
        x = torch.stack([self.alone(example) for example in x])
        return self.head(torch.tanh(x.mean(2)))


def case(kind):
    if kind == "signal":
        torch.manual_seed(0)
        return Signal(), torch.randn(7, 4, 16), None
    model, x, y = models.make(kind)
    return model, x, y


def observed(kind, rank, scale=1.0, dtype=torch.float32):
    model, x, y = case(kind)
    model, x = model.to(dtype), x.to(dtype) * scale if x.is_floating_point() else x
    memory = so.LayerMemory(rank, curvature="positions")
    memory.bind(ProtectedParameters(model), None)
    for part in (slice(0, 4), slice(4, None)):
        memory.observe(x[part], None if y is None else y[part])
    return memory


def total(sketch):
    """What a sketch has added up, to scale, in float64."""
    sketch.spectrum()
    sketch._open()
    Y = sketch.matrix if isinstance(sketch, SecondMoment) else sketch.rows
    return Y.double() * 4.0 ** (sketch.exponent or 0)


def by_rows(monkeypatch, *args, **settings):
    with monkeypatch.context() as patch:
        patch.setattr(Product, "possible", staticmethod(lambda sketch: False))
        return observed(*args, **settings)


def assert_same(found, expected, tolerance=1e-5):
    pairs = list(zip(found.sketches(), expected.sketches(), strict=True))
    assert len(pairs) >= 2
    for (name, a), (_, b) in pairs:
        assert a.count == b.count, name
        assert a.energy == pytest.approx(b.energy, rel=tolerance), name
        assert (total(a) - total(b)).norm() <= tolerance * total(b).norm(), name
    for name, pair in expected.factors.items():
        assert pair.counts is None or torch.equal(pair.counts, found.factors[name].counts)


@pytest.mark.filterwarnings("ignore:torch.func cannot")
@pytest.mark.parametrize("rank", [3, 70, 500])
@pytest.mark.parametrize("kind", [*models.MODELS, "signal"])
def test_products_are_those_of_the_rows(kind, rank, monkeypatch):
    """Rank 3: every Ω is dense; 70: sparse or none; 500: only moments."""
    expected = by_rows(monkeypatch, kind, rank)
    monkeypatch.setattr(LayerFactors, "observe", None)  # would fail if it were asked
    assert_same(observed(kind, rank), expected)


def test_sensitivities_of_logits_may_be_taken_together_or_one_by_one(monkeypatch):
    together = observed("cnn", 5)
    monkeypatch.setattr(positions, "_GROUP_BYTES", {})
    assert_same(observed("cnn", 5), together)


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e15, 1e30])
def test_numbers_whose_squares_float32_cannot_hold_go_by_rows(scale):
    """A sum of squares outside `SMALLEST`, `LARGEST` is not believed; the rows are scaled as ever."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 6, 3, bias=False), nn.Flatten(), nn.Linear(96, 3, bias=False))
    x = torch.randn(9, 2, 6, 6)
    found, expected = (so.LayerMemory(5, curvature="positions") for _ in range(2))
    for memory, inputs in [(found, x * scale), (expected, x)]:
        memory.bind(ProtectedParameters(model), None)
        memory.observe(inputs, None)
    for name in ("0", "2"):
        a, b = found.factors[name].inputs, expected.factors[name].inputs
        assert a.energy == pytest.approx(b.energy * scale**2, rel=1e-5)
        assert torch.allclose(a.spectrum()[0], b.spectrum()[0] * scale**2, rtol=1e-4, atol=0)


def test_under_autocast_and_without_gradients_the_same_is_remembered():
    expected = observed("mlp", 5)
    with torch.no_grad():
        assert_same(observed("mlp", 5), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = observed("mlp", 5)
    # What the first layer gets is not rounded, and its sums are not either.
    first = rounded.factors["0"].inputs
    assert torch.allclose(total(first), total(expected.factors["0"].inputs), rtol=1e-5)
    assert_same(rounded, expected, tolerance=0.05)


@pytest.mark.parametrize("choice", [SparseSign(), SparseSign(3), Gaussian(), Gaussian(stored=True)])
def test_a_dense_test_matrix_is_the_one_that_is_applied(choice):
    omega = choice.bind(5000, 7, 3, torch.float32, torch.device("cpu"))
    rows = torch.randn(4, 5000, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(rows @ omega.dense(torch.float32, torch.device("cpu")), omega.apply(rows), atol=1e-3)
    identity = Identity().bind(6, 6, 3, torch.float32, torch.device("cpu"))
    assert torch.equal(identity.dense(torch.float64, torch.device("cpu")), torch.eye(6, dtype=torch.float64))
