"""Every kind of layer and parameter: protected as predicted, or said not to be."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

import sketchogd as so
from sketchogd.optimizer.anchor import tension
from tests.memory.test_traces import Routed, Tied

STRENGTH = 2.0


class Apply(nn.Module):
    """Modules, and a function of them and the input."""

    def __init__(self, function, *modules):
        super().__init__()
        self.parts, self.function = nn.ModuleList(modules), function

    def forward(self, x):
        return self.function(x, *self.parts)


class Raw(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(*shape))


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def parametrized(module):
    parametrize.register_parametrization(module, "weight", Doubled())
    return module


def flat(*layers):
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.LazyLinear(3))


def features(n):
    return torch.randn(n, 5)


def sequences(n):
    return torch.randn(n, 4, 5)


def images(n):
    return torch.randn(n, 4, 6, 6)


def channels_last(n):
    return images(n).to(memory_format=torch.channels_last)


def tokens(n):
    return torch.randint(0, 12, (n, 3))


def embedded(**options):
    return flat(nn.Embedding(12, 5, **options))


def pruned(module):
    prune.random_unstructured(module, "weight", 0.4)
    return nn.Sequential(module)


def sharing_a_weight():
    """Two layers with one weight, and a bias each."""
    first, second = nn.Linear(5, 5), nn.Linear(5, 5)
    second.weight = first.weight
    return Apply(lambda x, a, b, c: c(torch.tanh(b(torch.tanh(a(x))))), first, second, nn.Linear(5, 3))


def sharing_a_bias():
    first, second = nn.Linear(5, 5), nn.Linear(5, 5)
    second.bias = first.bias
    return Apply(lambda x, a, b, c: c(torch.tanh(b(torch.tanh(a(x))))), first, second, nn.Linear(5, 3))


class StackedExperts(nn.Module):
    """The weights of all experts in one tensor, of which each example takes one."""

    def __init__(self):
        super().__init__()
        self.gate, self.out = nn.Linear(5, 3), nn.Linear(6, 3)
        self.weight = nn.Parameter(torch.randn(3, 5, 6) / 2)

    def forward(self, x):
        share, chosen = self.gate(x).softmax(-1).max(-1)
        return self.out(torch.tanh(torch.bmm(x[:, None], self.weight[chosen])[:, 0] * share[:, None]))


def checkpointed(reentrant):
    def forward(x, a, b):
        x = x.detach().requires_grad_(reentrant)
        return b(checkpoint(lambda t: torch.tanh(a(t)), x, use_reentrant=reentrant))

    return Apply(forward, nn.Linear(5, 6), nn.Linear(6, 3))


def standardised(x, conv):
    w = conv.weight - conv.weight.mean((1, 2, 3), keepdim=True)
    return F.conv2d(x, w, conv.bias)


PROTECTED = {
    "tied head": (lambda: Tied("module"), tokens),
    "tied head, F.linear": (lambda: Tied("linear"), tokens),
    "tied head, h @ W.T": (lambda: Tied("matmul"), tokens),
    "ConvTranspose1d": (lambda: flat(nn.ConvTranspose1d(4, 3, 2, stride=2)), sequences),
    "ConvTranspose2d": (lambda: flat(nn.ConvTranspose2d(4, 2, 3, stride=2, groups=2)), images),
    "Conv3d": (lambda: Apply(lambda x, net: net(x[:, None]), flat(nn.Conv3d(1, 2, 3))), images),
    "grouped": (lambda: flat(nn.Conv2d(4, 6, 3, groups=2)), images),
    "depthwise": (lambda: flat(nn.Conv2d(4, 4, 3, groups=4, padding="same")), images),
    "channels last": (lambda: flat(nn.Conv2d(4, 3, 3)), channels_last),
    "EmbeddingBag": (lambda: flat(nn.EmbeddingBag(12, 5)), tokens),
    "EmbeddingBag, sparse": (lambda: flat(nn.EmbeddingBag(12, 5, mode="sum", sparse=True)), tokens),
    "EmbeddingBag, max": (lambda: flat(nn.EmbeddingBag(12, 5, mode="max")), tokens),
    "sparse embedding": (lambda: embedded(sparse=True), tokens),
    "embedding with max_norm": (lambda: embedded(max_norm=1.0), tokens),
    "embedding with scale_grad_by_freq": (lambda: embedded(scale_grad_by_freq=True), tokens),
    "x @ W": (
        lambda: Apply(lambda x, raw, out: out(torch.tanh(x @ raw.weight)), Raw(5, 6), nn.Linear(6, 3)),
        features,
    ),
    "x @ W.T": (
        lambda: Apply(lambda x, a, b: b(torch.tanh(x @ a.weight.T)), nn.Linear(5, 6, False), nn.Linear(6, 3)),
        features,
    ),
    "matmul, then the bias": (
        lambda: Apply(lambda x, a: torch.matmul(x, a.weight.t()) + a.bias, nn.Linear(5, 3)),
        features,
    ),
    "einsum": (lambda: Apply(lambda x, raw: torch.einsum("bi,io->bo", x, raw.weight), Raw(5, 3)), features),
    "Bilinear": (lambda: Apply(lambda x, layer: layer(x, torch.sin(x)), nn.Bilinear(5, 5, 3)), features),
    "rows of a weight": (lambda: Apply(lambda x, a: F.linear(x, a.weight[:3], a.bias[:3]), nn.Linear(5, 7)), features),
    "a view": (lambda: Apply(lambda x, a: F.linear(x, a.weight.view(3, 5)), Raw(15)), features),
    "GRU": (
        lambda: Apply(lambda x, cell, out: out(cell(x)[1][-1]), nn.GRU(5, 4, batch_first=True), nn.Linear(4, 3)),
        sequences,
    ),
    "LSTM, positions first": (
        lambda: Apply(lambda x, cell, out: out(cell(x.transpose(0, 1))[0].mean(0)), nn.LSTM(5, 4, 2), nn.Linear(4, 3)),
        sequences,
    ),
    "GRUCell": (
        lambda: Apply(lambda x, cell, out: out(cell(x[:, 1], cell(x[:, 0]))), nn.GRUCell(5, 4), nn.Linear(4, 3)),
        sequences,
    ),
    "weight norm": (lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(5, 3))), features),
    "spectral norm": (lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(5, 3))), features),
    "a parametrization": (lambda: parametrized(nn.Linear(5, 3)), features),
    "pruned": (lambda: pruned(nn.Linear(5, 3)), features),
    "one weight, two biases": (sharing_a_weight, features),
    "two weights, one bias": (sharing_a_bias, features),
    "mixture of experts": (Routed, tokens),
    "stacked experts": (StackedExperts, features),
    "checkpointed": (lambda: checkpointed(False), features),
    "used twice": (
        lambda: Apply(lambda x, a, b: b(torch.tanh(a(torch.tanh(a(x))))), nn.Linear(5, 5), nn.Linear(5, 3)),
        features,
    ),
    "outputs (b,)": (
        lambda: Apply(lambda x, a, b: b(torch.tanh(a(x)))[:, 0], nn.Linear(5, 6), nn.Linear(6, 1)),
        features,
    ),
    "outputs (b, T, V)": (lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 9)), sequences),
    "outputs (b, C, H, W)": (
        lambda: nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 3, 1)),
        images,
    ),
    "running statistics": (
        lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)),
        features,
    ),
    "batch statistics": (
        lambda: nn.Sequential(
            nn.Linear(5, 6, False), nn.BatchNorm1d(6, track_running_stats=False), nn.Tanh(),
            nn.BatchNorm1d(6, track_running_stats=False), nn.Tanh(), nn.Linear(6, 3),
        ),
        features,
    ),
}  # fmt: skip
"""Models and their inputs, of which every parameter is protected."""

UNPROTECTED = {
    "columns of a weight": (
        lambda: Apply(lambda x, a: F.linear(x[:, :2], a.weight[:, :2]), nn.Linear(5, 3, False)),
        features,
        {"parts.0.weight": "free so far"},
    ),
    "masked": (
        lambda: Apply(lambda x, a: F.linear(x, a.weight * torch.eye(3, 5), a.bias), nn.Linear(5, 3)),
        features,
        {"parts.0.weight": "free so far", "parts.0.bias": "free so far"},
    ),
    "standardised": (
        lambda: nn.Sequential(Apply(standardised, nn.Conv2d(4, 3, 3)), nn.Flatten(), nn.Linear(48, 3)),
        images,
        {"0.parts.0.weight": "free so far", "0.parts.0.bias": "free so far"},
    ),
    "tied head by einsum": (
        lambda: Apply(lambda x, e: torch.einsum("btd,vd->bv", torch.tanh(e(x)), e.weight), nn.Embedding(12, 5)),
        tokens,
        {"parts.0.weight": "in part"},
    ),
    "used as it is, and scaled": (
        lambda: Apply(lambda x, a: a(x) + F.linear(x, 2 * a.weight), nn.Linear(5, 3)),
        features,
        {"parts.0.weight": "in part", "parts.0.bias": "in part"},
    ),
    "a bias used otherwise": (
        lambda: Apply(lambda x, a: a(x) * a.bias, nn.Linear(5, 3)),
        features,
        {"parts.0.weight": "in part", "parts.0.bias": "in part"},
    ),
}
"""Models, their inputs, and what coverage says of parameters that are not protected in every way they are used."""


TRANSFORMED = {
    "embedding by index": (
        lambda: Apply(lambda x, e: torch.tanh(e.weight[x]).mean(1), nn.Embedding(12, 3)),
        tokens,
    ),
    "W @ x": (lambda: Apply(lambda x, a: (a.weight @ x.T).T, nn.Linear(5, 3, False)), features),
    "a copy of the transpose": (
        lambda: Apply(lambda x, a: x @ a.weight.T.contiguous(), nn.Linear(5, 3, False)),
        features,
    ),
    "a convolution as a linear layer": (
        lambda: Apply(lambda x, c: F.linear(x.mean((2, 3)), c.weight.flatten(1)), nn.Conv2d(4, 3, 1, bias=False)),
        images,
    ),
    "under torch.func.vmap": (
        lambda: Apply(lambda x, a: torch.func.vmap(lambda row: F.linear(row, a.weight))(x), nn.Linear(5, 3, False)),
        features,
    ),
}
"""Models whose one weight is used in a way that nothing protects."""

UNPROTECTED |= {kind: (*each, {"parts.0.weight": "free so far"}) for kind, each in TRANSFORMED.items()}


def made(make, inputs):
    torch.manual_seed(0)
    model, x = make(), inputs(24)
    with torch.no_grad():
        model(x[:4])  # lazy modules
    return model.eval(), x


def remembered(model, x, rank=400):
    memory = so.LayerMemory(rank, rule=so.Pull(STRENGTH, damping=0.0), rest=rank)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    protection = so.protect(model, sgd, memory=memory)
    protection.remember([(part, None) for part in x.split(12)])
    return protection


def change(model, x, parameters, D, step=1e-3):
    """The mean square change of outputs per square of the step, by central differences in float64."""
    found = []
    before = [t.detach().clone() for t in parameters.tensors]
    model.double()
    for sign in (1, -1):
        with torch.no_grad():
            for t, own, piece in zip(parameters.tensors, before, parameters.unflatten(D), strict=True):
                t.copy_(own.double() + sign * step * piece)
            found.append(
                torch.cat([model(part.double() if part.is_floating_point() else part) for part in x.split(12)])
            )
    model.float()
    with torch.no_grad():
        for t, own in zip(parameters.tensors, before, strict=True):
            t.copy_(own)
    return float(((found[0] - found[1]) / (2 * step)).square().mean())


@pytest.mark.parametrize("kind", PROTECTED)
def test_changes_of_outputs_are_those_predicted(kind):
    """Random displacements of one parameter after the other: mean predicted and measured square change."""
    model, x = made(*PROTECTED[kind])
    protection = remembered(model, x)
    parameters, projector, memory = protection.parameters, protection.projector, protection.memory
    unit = STRENGTH * memory.weight * memory.logits * memory.examples  # of a mean square change of 1
    protection.detach()
    rows = {row.name: row.how for row in protection.coverage()}
    torch.manual_seed(1)
    for name, (_, place) in zip(parameters.names, parameters.slices(), strict=True):
        assert rows[name].startswith(("layer ", "gradients, ")), rows
        true = counted = 0.0
        for _ in range(10):
            D = torch.zeros(parameters.width)
            D[place] = torch.randn(D[place].shape)
            true += change(model, x, parameters, D)
            counted += float(D @ tension(projector, D.clone())) / unit
        assert 0.5 < true / counted < 2, (name, true / counted, rows[name])


@pytest.mark.parametrize("kind", UNPROTECTED)
def test_what_nothing_protects_is_named(kind):
    make, inputs, said = UNPROTECTED[kind]
    model, x = made(make, inputs)
    with pytest.warns(so.ProtectionWarning, match="NOT PROTECTED"):
        protection = remembered(model, x)
    rows = {row.name: row.how for row in protection.coverage()}
    assert all(rows[name].startswith(how) for name, how in said.items()), rows
    assert not any(how.startswith(("free", "in part")) for name, how in rows.items() if name not in said), rows
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        protection.remember([(x, None)])


@pytest.mark.parametrize("memory", [so.LayerMemory, so.ProductSketch])
@pytest.mark.filterwarnings("ignore:torch.func cannot")
def test_what_is_used_where_gradients_are_disabled_is_named(memory):
    """A reentrant checkpoint hides its weights from autograd.grad; nothing would tell that they are free."""
    model, x = made(lambda: checkpointed(True), features)
    protection = so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=memory(8))
    with pytest.warns(so.ProtectionWarning, match=r"'parts\.0' where gradients are disabled.*NOT PROTECTED"):
        protection.remember([(x, torch.zeros(len(x), dtype=torch.int64))])
    assert {row.name: row.how for row in protection.coverage()}["parts.0.weight"].startswith("free so far")


@pytest.mark.parametrize("targets", [torch.randn(24, 3), (torch.rand(24, 3) > 0.5).float()])
def test_values_and_labels_as_targets_are_remembered_by_every_output(targets):
    """Regression and several labels: with the default output a layer memory asks for no class."""
    model, x = made(lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), features)
    found = []
    for batch in ((x, None), (x, targets)):
        protection = so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=so.LayerMemory(400))
        protection.remember([batch])
        found.append(tension(protection.projector, torch.linspace(-1, 1, protection.parameters.p)))
        protection.detach()
    torch.testing.assert_close(*found)


def test_sparse_gradients_are_protected():
    """Old outputs move by far less than unprotected, with the optimizers that take sparse gradients."""

    def moved(make, strength):
        torch.manual_seed(0)
        model, old, new = embedded_sparsely(), torch.randint(0, 8, (24, 3)), torch.randint(0, 12, (24, 3))
        before = model(old).detach()
        optimizer = make(model[0].parameters())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", so.ProtectionWarning)  # the head is not trained here
            protection = so.protect(model, optimizer, memory=so.LayerMemory(40, strength=strength), parameters="0.*")
            protection.remember([(old, None)])
        for _ in range(40):
            optimizer.zero_grad()
            F.cross_entropy(model(new), new[:, 0] % 3).backward()
            optimizer.step()
        return float((model(old).detach() - before).square().mean())

    for make in (lambda p: torch.optim.SparseAdam(p, lr=0.05), lambda p: torch.optim.SGD(p, lr=0.5)):
        assert moved(make, 50.0) < 0.2 * moved(make, 1e-9)


def embedded_sparsely():
    return nn.Sequential(nn.Embedding(12, 5, sparse=True), nn.Flatten(), nn.Linear(15, 3))
