import pytest
import torch
from torch import nn

import sketchogd as so
from sketchogd import ProtectedParameters, excluding


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.body = nn.Linear(3, 3)
        self.decoder = nn.Linear(3, 7, bias=False)
        self.decoder.weight = self.embedding.weight


def test_all_that_require_gradients_in_order():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    model[2].bias.requires_grad_(False)
    parameters = ProtectedParameters(model)
    assert parameters.names == ("0.weight", "0.bias", "1.weight", "1.bias", "2.weight")
    assert parameters.p == 6 + 3 + 3 + 3 + 3
    assert parameters.offsets == (0, 6, 9, 12, 15, 18)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("0.*", ["0.weight", "0.bias"]),
        ("0", ["0.weight", "0.bias"]),
        (["*.weight", "!2"], ["0.weight", "1.weight"]),
        ("!2", ["0.weight", "0.bias", "1.weight", "1.bias"]),
        (lambda name, p: p.ndim == 2, ["0.weight", "2.weight"]),
        (excluding("1", "*.bias"), ["0.weight", "2.weight"]),
    ],
)
def test_selections(selection, expected):
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    assert list(ProtectedParameters(model, selection).names) == expected


def test_selection_by_module():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    assert ProtectedParameters(model, model[1]).names == ("1.weight", "1.bias")
    assert ProtectedParameters(model, excluding(model[0], model[1])).names == ("2.weight", "2.bias")


def test_tied_parameters_count_once_under_any_of_their_names():
    model = Tied()
    assert ProtectedParameters(model).p == 21 + 12
    assert ProtectedParameters(model, "decoder.weight").names == ("embedding.weight",)


def test_flatten_and_unflatten_with_mixed_dtypes():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2).bfloat16(), nn.Linear(2, 1).half())
    parameters = ProtectedParameters(model)
    v = parameters.flatten()
    assert v.dtype == torch.float32
    assert torch.equal(v, torch.cat([p.detach().flatten().float() for p in model.parameters()]))
    pieces = parameters.unflatten(v)
    assert [x.shape for x in pieces] == [p.shape for p in model.parameters()]
    assert pieces[0].data_ptr() == v.data_ptr()  # views, not copies
    before = [p.detach().clone() for p in model.parameters()]
    parameters.add_(torch.full((parameters.p,), 0.5))
    for p, b in zip(model.parameters(), before, strict=True):
        assert torch.equal(p.detach(), b + 0.5)
        assert p.dtype == b.dtype
    with pytest.raises(ValueError, match="length"):
        parameters.unflatten(v[1:])
    assert ProtectedParameters(nn.Linear(2, 2).double()).dtype == torch.float64


def test_errors_say_what_to_do():
    model = nn.Sequential(nn.Linear(2, 3))
    with pytest.raises(ValueError, match=r"matches 'head'; it has 0\.weight"):
        ProtectedParameters(model, "head")
    with pytest.raises(ValueError, match="no parameter to protect"):
        ProtectedParameters(model, lambda name, p: False)
    model.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"'phase' is complex.*excluding"):
        ProtectedParameters(model)
    assert ProtectedParameters(model, excluding("phase")).p == 9


def test_a_changed_model_is_noticed():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    parameters = ProtectedParameters(model)
    parameters.require_unchanged()
    old = model[1]
    model[1] = nn.Linear(3, 1)
    with pytest.raises(so.ProtectionError, match=r"'1.weight' was replaced"):
        parameters.require_unchanged()
    model[1] = old
    old.bias.requires_grad_(False)
    with pytest.raises(so.ProtectionError, match="no longer requires"):
        parameters.require_unchanged()
    del model[1]
    with pytest.raises(so.ProtectionError, match="is gone"):
        parameters.require_unchanged()
