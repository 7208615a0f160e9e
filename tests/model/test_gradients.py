import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d

import sketchogd as so
from sketchogd.model import batches, gradients, sensitivities
from sketchogd.model.layers import find_layers, patches
from sketchogd.model.parameters import ProtectedParameters
from tests import models, reference

SLOW = {"gru": "loop", "transformer": "vmap", "cnn": "vmap", "resnet": "vmap", "mlp": "fast", "lora": "fast"}


@pytest.mark.filterwarnings("ignore:torch.func cannot")
@pytest.mark.parametrize("kind", models.MODELS)
@pytest.mark.parametrize(
    "output", [so.true_logit, so.log_likelihood, lambda o, t: (o * o).sum()], ids=["true", "log", "own"]
)
def test_gradients_are_those_of_a_loop(kind, output):
    model, x, y = models.make(kind, n=9)
    chosen = ProtectedParameters(model)
    chunked = gradients.GradientSignals(chosen, output, chunk_bytes=4 * chosen.p * 4)
    parts = list(chunked.chunks(x, y))
    assert [len(part) for part in parts] == [3, 3, 3]
    model.eval()
    expected = reference.gradients_by_loop(model, x, y, output, chosen.tensors)
    assert (torch.cat(parts) - expected).norm() / expected.norm() < 1e-5
    assert chunked.path == SLOW[kind]


@pytest.mark.parametrize("groups", [1, 2])
def test_the_fast_path_for_convolutions_and_sequences(groups):
    torch.manual_seed(0)
    shared = nn.Linear(6, 6)
    model = nn.Sequential(
        nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=groups),
        nn.ReLU(inplace=True),
        nn.Flatten(2),
        nn.Unflatten(2, (-1, 1)),
        nn.Flatten(2),
    )

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.shared, self.head = model, shared, nn.Linear(6, 3)

        def forward(self, x):
            h = self.conv(x).transpose(1, 2)
            return self.head(self.shared(torch.tanh(self.shared(h))).mean(1))

    net = Net()
    x, y = torch.randn(5, 4, 8, 7), torch.randint(0, 3, (5,))
    chosen = ProtectedParameters(net)
    found = gradients.GradientSignals(chosen, so.true_logit)
    rows = torch.cat(list(found.chunks(x, y)))
    assert found.path == "fast"
    expected = reference.gradients_by_loop(net, x, y, so.true_logit, chosen.tensors)
    assert (rows - expected).norm() / expected.norm() < 1e-5


def test_a_fast_path_that_would_be_wrong_is_not_taken():
    """The weight is also used outside of any layer call; recorded uses alone would miss that part."""

    class Sneaky(nn.Linear):
        def forward(self, x):
            return super().forward(x) + (x @ self.weight.T).square()

    model = nn.Sequential(Sneaky(4, 5), nn.Linear(5, 2))
    found = gradients.GradientSignals(ProtectedParameters(model), so.true_logit)
    rows = next(found.chunks(torch.randn(3, 4), torch.tensor([0, 1, 1])))
    assert found.path == "vmap"
    assert rows.shape == (3, 37)


def test_layers_that_are_never_called_leave_the_general_path():
    class Direct(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2, bias=False)

        def forward(self, x):
            return x @ self.linear.weight.T

    rows = so.per_example_gradients(Direct(), torch.ones(2, 3), torch.tensor([0, 1]))
    assert rows.tolist() == [[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]]


def test_a_loop_is_announced_once():
    model, x, y = models.make("gru", n=4)
    found = gradients.GradientSignals(ProtectedParameters(model), so.true_logit)
    with pytest.warns(so.ProtectionWarning, match="one example at a time"):
        list(found.chunks(x, y))
    list(found.chunks(x, y))  # warnings are errors here


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_give_float32_rows(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    exact = so.per_example_gradients(model, x, y)
    rows = so.per_example_gradients(model.to(dtype), x.to(dtype), y)
    assert rows.dtype == torch.float32
    assert (rows - exact).norm() / exact.norm() < 0.02


def test_inputs_as_tuples_and_mappings_and_outputs_as_objects():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, a, b):
            return {"logits": self.linear(a * b)}

    model, a, b, y = Pair(), torch.randn(4, 3), torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    first = so.per_example_gradients(model, (a, b), y)
    second = so.per_example_gradients(model, {"a": a, "b": b}, y)
    plain = so.per_example_gradients(model.linear, a * b, y)
    assert torch.allclose(first, plain)
    assert torch.allclose(second, plain)
    with pytest.raises(TypeError, match="no logits tensor"):
        batches.logits_of(3)
    with pytest.raises(ValueError, match="common first dimension"):
        batches.batch_size((torch.zeros(2), torch.zeros(3)))


def test_sequence_targets_sum_over_positions_and_skip_negative_ones():
    output, target = torch.arange(12.0).view(3, 4), torch.tensor([1, -100, 2])
    assert so.true_logit(output, target) == 1.0 + 10.0
    expected = output.log_softmax(-1)[[0, 2], [1, 2]].sum()
    assert torch.isclose(so.log_likelihood(output, target), expected)


def test_targets_may_be_left_out_where_no_output_needs_them():
    model, x, _ = models.make("mlp")
    found = so.per_example_gradients(model, x, None, output=lambda output, target: output.sum())
    expected = so.per_example_gradients(model, x, torch.zeros(len(x)), output=lambda output, target: output.sum())
    assert torch.equal(found, expected)
    protection = so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=so.ProductSketch(4))
    with pytest.raises(ValueError, match="the batch has no targets"):
        protection.observe(x)


def test_modes_are_restored_also_after_an_exception():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))
    model[1].eval()  # the user froze the statistics
    flags = [m.training for m in model.modules()]
    statistics = model[1].running_mean.clone()
    so.per_example_gradients(model, torch.randn(4, 2), torch.zeros(4, dtype=torch.long))
    so.layer_signals(model, torch.randn(4, 2))
    assert [m.training for m in model.modules()] == flags
    assert torch.equal(model[1].running_mean, statistics)
    with pytest.raises(RuntimeError):
        so.layer_signals(model, torch.randn(4, 3))
    assert [m.training for m in model.modules()] == flags


# ---------------------------------------------------------------- layer signals


@pytest.mark.parametrize("kind", ["mlp", "cnn", "resnet", "transformer"])
def test_gradients_are_the_outer_products_of_the_signals(kind):
    """Σ over rows of δ aᵀ is the batch gradient of a layer's weight and bias, for a sum of outputs."""
    model, x, _ = models.make(kind, n=5)
    chosen = ProtectedParameters(model)
    read = so.layer_signals(model, x, torch.zeros(5), output=lambda o, t: o.square().sum())
    model.eval()
    gradients = torch.autograd.grad(model(x).square().sum(), chosen.tensors)
    by_id = {id(t): g for t, g in zip(chosen.tensors, gradients, strict=True)}
    layers = find_layers(chosen)
    assert len(layers) >= 2
    for layer in layers:
        a, d = read[layer.name]
        expected = by_id[id(layer.weight)].flatten(1)
        if layer.kind == "embedding":
            counts = torch.zeros(20)
            for token in x.flatten():
                counts[token] += 1
            assert torch.equal(a.sum(0), counts)
            assert torch.allclose(d.sum(0), expected.sum(0), atol=1e-5)
            continue
        groups = len(a) // len(d)
        d = d.view(len(d), groups, -1)
        a = a.view(len(d), groups, -1)
        found = torch.einsum("ngo,ngi->goi", d, a).flatten(0, 1)
        assert torch.allclose(found[:, : layer.fan_in], expected, atol=1e-4), layer.name
        if layer.bias is not None:
            assert torch.allclose(found[:, -1], by_id[id(layer.bias)], atol=1e-4)


def test_patches_are_those_of_a_loop_and_of_the_convolution():
    image = torch.randn(2, 4, 9, 8)
    options = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 2), "dilation": (2, 1)}
    found = patches(image, groups=1, **options)
    for i in range(2):
        assert torch.equal(found[i, :, 0], reference.patches_by_loop(image[i], **options))
    for settings in [
        {"stride": 1, "padding": "same", "dilation": 2, "groups": 2},
        {"stride": 2, "padding": "valid", "dilation": 1, "groups": 4},
        {"stride": (1, 2), "padding": 1, "dilation": (1, 1), "groups": 1},
    ]:
        weight = torch.randn(8, 4 // settings["groups"], 3, 2)
        rows = patches(image, kernel=weight.shape[2:], **settings)
        grouped = weight.view(settings["groups"], -1, weight[0].numel())
        product = torch.einsum("bpgi,goi->bgop", rows, grouped)
        expected = conv2d(image, weight, **settings)
        assert torch.allclose(product.reshape(expected.shape), expected, atol=1e-5)


def test_one_dimensional_convolutions():
    conv = nn.Conv1d(3, 4, 3, padding=1, stride=2)
    x = torch.randn(5, 3, 9)
    a, d = so.layer_signals(conv, x)[""]
    rows = a.view(5, 5, -1)
    assert torch.allclose(
        (rows @ torch.cat([conv.weight.flatten(1), conv.bias[:, None]], 1).T).transpose(1, 2), conv(x), atol=1e-6
    )
    assert d.shape[1] == 4


def test_cross_attention_uses_slices_of_one_weight():
    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x, y):
            return self.attention(x, y, y, need_weights=False)[0].mean(1)

    torch.manual_seed(0)
    model = Cross()
    chosen = ProtectedParameters(model)
    x, y = torch.randn(4, 3, 8), torch.randn(4, 5, 8)
    a, d = so.layer_signals(model, (x, y), torch.zeros(4), output=lambda o, t: o.square().sum())["attention.in_proj"]
    gradient = torch.autograd.grad(model(x, y).square().sum(), chosen.tensors)[0]
    assert torch.allclose(d.T @ a[:, :-1], gradient, atol=1e-4)


def test_many_logits_are_combined_without_bias():
    """E[Σ combinations δ δᵀ] = Σ over logits δ δᵀ: over 200 seeds the mean moment is within 5 %."""
    torch.manual_seed(0)
    x = torch.randn(3, 5)
    body = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 20))
    exact = torch.zeros(6, 6)
    for c in range(20):
        d = so.layer_signals(body, x, torch.zeros(3), output=lambda o, t, c=c: o[c])["0"][1]
        exact += d.T @ d
    total = torch.zeros(6, 6)
    for seed in range(200):
        d = so.layer_signals(body, x, seed=seed)["0"][1]
        assert len(d) == 3 * sensitivities.COMBINATIONS
        total += d.T @ d / 200
    assert (total - exact).norm() / exact.norm() < 0.05


def test_a_tied_embedding_is_no_layer_and_a_shared_layer_is_one():
    from .test_parameters import Tied

    assert [layer.name for layer in find_layers(ProtectedParameters(Tied()))] == ["body"]
    shared = nn.Linear(3, 3)
    model = nn.Sequential(shared, nn.Tanh(), shared)
    (layer,) = find_layers(ProtectedParameters(model))
    a, d = so.layer_signals(model, torch.randn(2, 3))[layer.name]
    assert a.shape == (4, 4)
    assert d.shape == (2 * 2 * 3, 3)
