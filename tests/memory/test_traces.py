"""Partial traces against per-example gradients from autograd, in float64, however a weight is shared."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sketchogd as so
from sketchogd.memory.curvature import PartialTraces
from sketchogd.model.layers import EXAMPLES_FIRST, EXAMPLES_LAST, MIXED, find_layers, orders_of_positions, record
from sketchogd.model.parameters import ProtectedParameters


class Tokens(nn.Module):
    """Embeddings of tokens and positions, attention, a layer used twice, and a view that folds positions."""

    def __init__(self, batch_first=True):
        super().__init__()
        self.token, self.position = nn.Embedding(11, 6, padding_idx=0), nn.Embedding(5, 6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=batch_first)
        self.twice, self.folded, self.out = nn.Linear(6, 6), nn.Linear(6, 4), nn.Linear(4, 3)
        self.batch_first = batch_first

    def forward(self, tokens):
        h = self.token(tokens) + self.position(torch.arange(5))
        x = h if self.batch_first else h.transpose(0, 1)
        x = self.attention(x, x, x, need_weights=False)[0]
        h = h + (x if self.batch_first else x.transpose(0, 1))
        h = torch.tanh(self.twice(torch.tanh(self.twice(h))))
        h = torch.tanh(self.folded(h.reshape(-1, 6))).view(-1, 5, 4)
        return self.out(h.mean(1))


class Branches(nn.Module):
    """Of every logit one of two layers has no part."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.bottom = nn.Linear(3, 2), nn.Linear(4, 3), nn.Linear(2, 4)

    def forward(self, x):
        return torch.cat([self.left(x[:, :3]), self.right(torch.tanh(self.bottom(x[:, 3:])))], 1)


def cases():
    def images(n):
        return torch.randn(n, 4, 6, 6)

    cnn = nn.Sequential(
        nn.Conv2d(4, 6, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(6, 6, 3, stride=2, groups=3),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )
    conv1d = nn.Sequential(nn.Conv1d(3, 5, 3, padding=1), nn.Tanh(), nn.Conv1d(5, 4, 3), nn.Flatten(), nn.Linear(20, 3))
    return {
        "branches": (Branches(), lambda n: torch.randn(n, 5)),
        "mlp": (nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), lambda n: torch.randn(n, 5)),
        "cnn": (cnn, images),
        "conv1d": (conv1d, lambda n: torch.randn(n, 3, 7)),
        "tokens": (Tokens(), lambda n: torch.randint(0, 11, (n, 5))),
        "tokens, positions first": (Tokens(batch_first=False), lambda n: torch.randint(0, 11, (n, 5))),
    }


def made(name, n=5):
    torch.manual_seed(0)
    model, inputs = cases()[name]
    x = inputs(n)
    return model.double(), x.double() if x.is_floating_point() else x


def weight_gradients(model, layer, x):
    """G (examples · logits, o, w) of a layer with its bias as last column, one backward pass per example and logit."""
    found = []
    for e in range(len(x)):
        for logit in model(x[e : e + 1])[0]:
            tensors = [layer.weight, *([] if layer.bias is None else [layer.bias])]
            W, *bias = torch.autograd.grad(logit, tensors, retain_graph=True, materialize_grads=True)
            W = W.flatten(1).T if layer.tokens else W.flatten(1)
            found.append(torch.cat([W, *(b[:, None] for b in bias)], 1))
    return torch.stack(found)


def bound(model, memory):
    memory.bind(ProtectedParameters(model), None)
    return memory


def total(sketch):
    return sketch._dense() * 4.0 ** (sketch.exponent or 0)


@pytest.mark.parametrize("name", cases())
@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("few", [0, 1024])  # embeddings by counts, and as tables
def test_factors_are_the_partial_traces(name, slow, few, monkeypatch):
    """At full rank, M_a = Σ GᵀG and M_δ = Σ GGᵀ, also by the slow twin that writes gradients down."""
    monkeypatch.setattr("sketchogd.model.layers.FEW", few)
    model, x = made(name)
    memory = bound(model, so.LayerMemory(200, seed=1))
    if slow:
        monkeypatch.setattr("sketchogd.memory.curvature.kinds.Product.possible", staticmethod(lambda sketch: False))
    memory.observe(x[:2], None)
    memory.observe(x[2:], None)
    for layer_name, factors in memory.factors.items():
        G = weight_gradients(model, factors.layer, x)
        if layer_name == "position":
            continue  # one embedding of positions serves all examples; see the next test
        M_d = torch.einsum("eij,ekj->ik", G, G)
        torch.testing.assert_close(total(factors.outputs), M_d, msg=f"{layer_name}: outputs")
        if factors.inputs is not None:
            torch.testing.assert_close(total(factors.inputs), torch.einsum("eij,eik->jk", G, G), msg=layer_name)
        else:
            torch.testing.assert_close(factors.counts, G.square().sum((0, 1)))
        assert factors.trace == pytest.approx(float(G.square().sum()))
        assert factors.outputs.energy == pytest.approx(float(G.square().sum()))
        if not slow:
            assert factors.outputs.count == len(G)


def test_what_all_examples_share_is_right_on_average():
    """An embedding of positions that does not see the batch: random signs of examples, here over many seeds."""
    model, x = made("tokens", 3)
    layer = next(each for each in find_layers(ProtectedParameters(model)) if each.name == "position")
    G = weight_gradients(model, layer, x)
    expected = torch.einsum("eij,ekj->ik", G, G)
    found = torch.zeros_like(expected)
    for seed in range(400):
        memory = bound(model, so.LayerMemory(200, seed=seed))
        memory.observe(x, None)
        found += total(memory.factors["position"].outputs) / 400
    assert (found - expected).norm() / expected.norm() < 0.1


def test_sketched_factors_are_products_with_the_test_matrix():
    """Rank below the width: Y = Ωᵀ M for the M above, for every way of computing it."""
    for name, layers in {"cnn": ("0", "2"), "tokens": ("attention.in_proj", "twice"), "mlp": ("0",)}.items():
        model, x = made(name)
        memory = bound(model, so.LayerMemory(3, seed=1))
        memory.observe(x, None)
        for layer in layers:
            factors = memory.factors[layer]
            G = weight_gradients(model, factors.layer, x)
            for sketch, M in (
                (factors.inputs, torch.einsum("eij,eik->jk", G, G)),
                (factors.outputs, torch.einsum("eij,ekj->ik", G, G)),
            ):
                omega = sketch.omega.dense(torch.float64, torch.device("cpu"))
                torch.testing.assert_close(sketch.summand() * 4.0 ** (sketch.exponent or 0), omega.T @ M)


@pytest.mark.parametrize("batch_first", [True, False])
def test_the_order_of_positions_is_found_by_what_an_example_touches(batch_first):
    torch.manual_seed(0)
    model = Tokens(batch_first).eval()
    x = torch.randint(1, 11, (5, 5))  # as many examples as positions, so that shapes say nothing
    layers = find_layers(ProtectedParameters(model))
    result, uses, _ = record(layers, lambda: model(x))
    orders = dict(zip([use.layer.name for use in uses], orders_of_positions(uses, result), strict=True))
    assert orders["token"] == orders["twice"] == orders["folded"] == orders["out"] == EXAMPLES_FIRST
    assert orders["position"] == MIXED
    assert orders["attention.in_proj"] == EXAMPLES_LAST


def test_a_batch_that_is_not_finite_changes_nothing():
    model, x = made("tokens")
    memory = bound(model, so.LayerMemory(4))
    memory.observe(x, None)
    before = {name: t.clone() for name, t in memory.state_dict()["tensors"].items()}
    with torch.no_grad():
        model.twice.bias[0] = float("nan")
    with pytest.raises(so.NonFiniteError, match="layer"):
        memory.observe(x, None)
    after = memory.state_dict()["tensors"]
    assert all(torch.equal(after[name], t) for name, t in before.items())


def predicted(memory, name, D):
    """The mean square change of logits that a pull counts for a displacement of a layer."""
    spectra = memory.curvature.spectra(memory.factors[name])
    X = (spectra.outputs @ D @ spectra.inputs.T).square()
    products = torch.outer(spectra.output_values, spectra.input_values) * spectra.scale
    return float((X * products).sum()) / (memory.examples * memory.logits)


@pytest.mark.parametrize(("curvature", "right"), [("traces", True), ("positions", False)])
def test_predicted_changes_of_shared_weights_are_those_measured(curvature, right):
    """Random displacements at full rank: within a factor of two; single positions predict far too little."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    ).double()  # fmt: skip
    x = torch.rand(12, 1, 8, 8, dtype=torch.float64)
    memory = bound(model, so.LayerMemory(200, curvature=curvature))
    memory.observe(x, None)
    for name in ("0", "2"):
        layer = memory.factors[name].layer
        G, true, counted = weight_gradients(model, layer, x), 0.0, 0.0
        for _ in range(30):
            D = torch.randn(layer.fan_out, layer.width, dtype=torch.float64)
            true += float((G * D).sum((1, 2)).square().mean())
            counted += predicted(memory, name, D)
        assert 0.5 < true / counted < 2 if right else true / counted > 3, (name, true / counted)


def test_cross_entropy_of_shared_weights_is_forgotten_less():
    """Two tasks on a convolutional network under AdamW: old logits move less than with single positions."""

    def forgetting(memory):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
        )  # fmt: skip
        x, z, y = torch.rand(40, 1, 8, 8), torch.rand(40, 1, 8, 8).round(), torch.randint(0, 3, (40,))
        before = model(x).detach()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        protection = so.protect(model, optimizer, memory=memory)
        protection.remember([(x, y)])
        for _ in range(60):
            optimizer.zero_grad()
            F.cross_entropy(model(z), y).backward()
            optimizer.step()
        return float((model(x).detach() - before).square().mean())

    traces, positions = (forgetting(so.LayerMemory(100, curvature=c)) for c in ("traces", "positions"))
    assert traces < 0.75 * positions


def test_the_curvature_is_in_files_and_old_files_have_none():
    new, old = so.LayerMemory(4), so.LayerMemory(4, curvature="positions")
    assert isinstance(new.curvature, PartialTraces)
    assert new.settings()["curvature"] == "traces"
    assert "curvature" not in old.settings()
    counts = {"examples": 0, "tasks": 0, "logits": 0, "sketches": {}}
    assert so.LayerMemory.from_meta({"settings": new.settings(), **counts}).curvature.name == "traces"
    assert so.LayerMemory.from_meta({"settings": old.settings(), **counts}).curvature.name == "positions"
    with pytest.raises(ValueError, match="curvature"):
        so.LayerMemory(4, curvature="kfac")


class Routed(nn.Module):
    """Every token goes to one of two experts, so that how many rows each sees differs from batch to batch."""

    def __init__(self):
        super().__init__()
        self.embed, self.experts = nn.Embedding(12, 6), nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.head = nn.Linear(6, 3)

    def forward(self, tokens):
        h = self.embed(tokens).view(-1, 6)
        out = torch.zeros_like(h)
        for i, expert in enumerate(self.experts):
            rows = (tokens.flatten() % 2 == i).nonzero().flatten()
            out = out.index_add(0, rows, torch.tanh(expert(h[rows])))
        return self.head(out.view(*tokens.shape, 6).mean(1))


def test_experts_that_see_other_positions_in_every_batch_are_remembered():
    torch.manual_seed(0)
    model = Routed().double()
    memory = bound(model, so.LayerMemory(20))
    one_each = torch.tensor([[0, 1], [2, 3], [4, 5], [6, 7]])  # one row per example: told apart
    memory.observe(one_each, None)
    memory.observe(torch.tensor([[0, 2], [1, 3], [5, 7], [6, 9]]), None)  # three and five rows: mixed
    G = weight_gradients(model, memory.factors["experts.0"].layer, one_each)
    assert memory.factors["experts.0"].trace > float(G.square().sum())
    assert memory.examples == 8


class Tied(nn.Module):
    """A language model whose output layer is its embedding, in each of the ways people write it."""

    def __init__(self, head, width=6):
        super().__init__()
        self.embed, self.body = nn.Embedding(12, width, padding_idx=0), nn.Linear(width, width)
        self.out = nn.Linear(width, 12, bias=head == "module")
        self.out.weight, self.head = self.embed.weight, head

    def forward(self, tokens):
        h, W = torch.tanh(self.body(self.embed(tokens))), self.embed.weight
        if self.head == "matmul":
            return h @ W.T
        return self.out(h) if self.head == "module" else F.linear(h, W)


@pytest.mark.parametrize("width", [3, 40])  # with G written down, and by Gram matrices
@pytest.mark.parametrize("head", ["module", "linear", "matmul"])
@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("few", [0, 1024])
def test_an_embedding_that_is_the_output_layer_too_is_one_layer(head, width, slow, few, monkeypatch):
    monkeypatch.setattr("sketchogd.model.layers.FEW", few)
    torch.manual_seed(0)
    model, x = Tied(head, width=width).double(), torch.randint(0, 12, (4, 2))
    if slow:
        monkeypatch.setattr("sketchogd.memory.curvature.kinds.Product.possible", staticmethod(lambda sketch: False))
    combined = lambda output, target: (output * SIGNS[: output.shape[-2]]).sum()  # noqa: E731
    memory = so.LayerMemory(200)
    memory.bind(ProtectedParameters(model), combined)
    memory.observe(x, None)
    factors = memory.factors["embed"]
    G = torch.stack([torch.autograd.grad(combined(model(row[None])[0], None), model.embed.weight)[0] for row in x])
    if few:
        torch.testing.assert_close(total(factors.inputs), torch.einsum("evi,ewi->vw", G, G))
    else:
        torch.testing.assert_close(factors.counts, G.square().sum((0, 2)))
    torch.testing.assert_close(total(factors.outputs), torch.einsum("evi,evj->ij", G, G))
    assert factors.outputs.energy == pytest.approx(float(G.square().sum()))
    assert memory.cost(memory.parameters) >= memory.nbytes


SIGNS = torch.linspace(-1, 2, 24, dtype=torch.float64).sin().view(2, 12)


def test_old_files_have_tied_weights_among_the_parameters_of_no_layer():
    model = Tied("module")
    new, old = bound(model, so.LayerMemory(4)), bound(model, so.LayerMemory(4, curvature="positions"))
    assert "embed" in new.factors
    assert "embed" not in old.factors
    assert any(t is model.embed.weight for t in old.others.parameters.tensors)
