"""Every parameter accounted for: the table of coverage, and the warning where a weight is not used as it is."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sketchogd as so
from sketchogd.model.layers import find_layers
from sketchogd.model.parameters import ProtectedParameters


class Masked(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight * 0.5, self.bias)


def protected(model, memory=None, **options):
    memory = memory or so.LayerMemory(8)
    return so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=memory, **options)


def batch(n=12):
    torch.manual_seed(0)
    return torch.randn(n, 4), torch.randint(0, 3, (n,))


def test_each_parameter_says_how_it_is_protected():
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    model[2].bias.requires_grad_(False)
    protection = protected(model, parameters=so.excluding("2"))
    rows = {row.name: row.how for row in protection.coverage()}
    assert list(rows) == [name for name, _ in model.named_parameters()]
    assert rows["0.weight"] == rows["0.bias"] == "layer '0', traces"
    assert "gradients" in rows["1.weight"]
    assert rows["2.weight"] == "not protected: not chosen"
    assert rows["2.bias"] == "not protected: requires no gradient"
    text = str(protection.coverage())
    assert len(text.splitlines()) == len(rows) + 2
    assert "how it is protected" in text


def test_a_weight_that_is_transformed_before_use_is_named_in_a_warning():
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), Masked(5, 3))
    protection = protected(model)
    with pytest.warns(so.ProtectionWarning, match=r"'2'.*NOT PROTECTED"):
        protection.remember([batch()])
    rows = {row.name: row.how for row in protection.coverage()}
    assert "nothing observed depends on it" in rows["2.weight"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        protection.remember([batch()])


def test_parametrized_weights_are_protected_by_their_gradients():
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.utils.parametrizations.weight_norm(nn.Linear(5, 3)))
    protection = protected(model)
    protection.remember([batch()])
    rows = {row.name: row.how for row in protection.coverage()}
    assert all("gradients" in how and "free" not in how for name, how in rows.items() if name.startswith("2.param"))


def test_a_head_that_is_not_in_use_needs_no_warning():
    body, heads = nn.Linear(4, 5), nn.ModuleList([nn.Linear(5, 3), nn.Linear(5, 3)])
    norms = nn.ModuleList([nn.LayerNorm(5), nn.LayerNorm(5)])
    model = nn.ModuleDict({"body": body, "heads": heads, "norms": norms})
    model.forward = lambda x: heads[0](torch.tanh(norms[1](body(x))))
    protection = protected(model)
    protection.remember([batch()])
    rows = {row.name: row.how for row in protection.coverage()}
    assert rows["heads.1.weight"].startswith("free so far")
    assert rows["heads.0.weight"] == "layer 'heads.0', traces"
    assert rows["norms.0.weight"].startswith("free so far")
    assert rows["norms.1.weight"].startswith("gradients")


def test_gradient_memories_cover_everything():
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    protection = protected(model, so.ProductSketch(8))
    assert all(row.how.startswith("gradients") for row in protection.coverage())


UNUSED = {
    "product": lambda: so.ProductSketch(6),
    "blocks": lambda: so.GradientMemory(so.ProductSketch(4), blocks=3),
    "bfloat16": lambda: so.GradientMemory(so.ProductSketch(6), basis_dtype="bfloat16"),
    "moment": lambda: so.SecondMoment(),
    "all rows": lambda: so.AllRows(),
    "frequent": lambda: so.FrequentDirections(4, 4),
}


@pytest.mark.parametrize("kind", UNUSED)
def test_gradient_memories_name_what_nothing_observed_depends_on(kind):
    heads = nn.ModuleList([nn.Linear(5, 3), nn.Linear(5, 3)])
    model = nn.ModuleDict({"body": nn.Linear(4, 5), "heads": heads})
    model.forward = lambda x: heads[0](torch.tanh(model["body"](x)))
    protection = protected(model, UNUSED[kind]())
    assert all(row.how.startswith("gradients") for row in protection.coverage())
    protection.remember([batch()])
    free = {row.name for row in protection.coverage() if row.how.startswith("free so far")}
    assert free == {"heads.1.weight", "heads.1.bias"}


def test_modules_with_like_names_are_layers_of_their_own():
    model = nn.ModuleDict({"fc": nn.Linear(4, 5), "fc_": nn.Linear(5, 3)})
    model.forward = lambda x: model["fc_"](torch.tanh(model["fc"](x)))
    assert [layer.name for layer in find_layers(ProtectedParameters(model))] == ["fc", "fc_"]
    protection = protected(model)
    protection.remember([batch()])
    assert set(protection.projector.layers) == {"fc", "fc_"}


def conv1d():
    """The linear layer of GPT-2 as transformers has it: weight (in, out), torch.addmm."""

    class Conv1D(nn.Module):
        def __init__(self, nf, nx):
            super().__init__()
            self.nf = nf
            self.weight = nn.Parameter(torch.randn(nx, nf) * 0.3)
            self.bias = nn.Parameter(torch.zeros(nf))

        def forward(self, x):
            shape = (*x.size()[:-1], self.nf)
            return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(shape)

    Conv1D.__module__ = "transformers.pytorch_utils"
    return Conv1D


def test_conv1d_of_transformers_is_a_linear_layer():
    """The same memory and projector as a Linear with the transposed weight, on sequences."""
    torch.manual_seed(0)
    Conv1D = conv1d()

    class Mean(nn.Module):
        def forward(self, x):
            return x.mean(1)

    theirs = nn.Sequential(Conv1D(6, 4), nn.Tanh(), Conv1D(3, 6), Mean())
    ours = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3), Mean())
    with torch.no_grad():
        for mine, other in zip((ours[0], ours[2]), (theirs[0], theirs[2]), strict=True):
            mine.weight.copy_(other.weight.T)
            mine.bias.copy_(other.bias)
    x = torch.randn(8, 5, 4)
    parts = []
    for model in (ours, theirs):
        protection = protected(model, so.LayerMemory(20))
        protection.remember([(x, None)])
        v = torch.linspace(-1, 1, protection.parameters.p)
        pieces = protection.parameters.unflatten(
            protection.projector.protected_part_(_arranged(protection, v, model is theirs), 0.5)
        )
        parts.append([piece.T if model is theirs and piece.ndim == 2 else piece for piece in pieces])
    for mine, other in zip(*parts, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-4)


def _arranged(protection, v, transposed):
    """The vector v of a model of Linear layers, arranged as the protection's own parameters."""
    out, start = [], 0
    for t in protection.parameters.tensors:
        piece = v[start : start + t.numel()]
        out.append(piece.view(t.shape[::-1]).T.reshape(-1) if transposed and t.ndim == 2 else piece)
        start += t.numel()
    return torch.cat(out)
