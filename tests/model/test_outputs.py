"""What is remembered of each kind of output, in what memory, and errors for targets and batches that mean nothing."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import sketchogd as so
from sketchogd.model import signs
from sketchogd.model.batches import split_batch
from sketchogd.model.signs import position_signs, sign_rows


class Net(nn.Module):
    """A linear layer whose outputs get any shape, times a parameter that belongs to no layer."""

    def __init__(self, *shape):
        super().__init__()
        self.linear, self.shape = nn.Linear(4, int(torch.Size(shape).numel())), shape
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * self.linear(x).view(len(x), *self.shape)


x = torch.linspace(-1, 1, 24).view(6, 4).sin()
g = torch.Generator().manual_seed(0)


def classes(*shape):
    return torch.randint(0, 3, (6, *shape), generator=g)


CASES = {
    "classes": ((3,), classes(), lambda o, y: o[y]),
    "tokens": ((5, 3), classes(5), lambda o, y: sum(o[t, y[t]] for t in range(5))),
    "tokens, as many as classes": ((3, 3), classes(3), lambda o, y: sum(o[t, y[t]] for t in range(3))),
    "pixels": ((3, 4, 5), classes(4, 5), lambda o, y: sum(o[y[i, j], i, j] for i in range(4) for j in range(5))),
    "square": ((3, 3, 3), classes(3, 3), lambda o, y: sum(o[y[i, j], i, j] for i in range(3) for j in range(3))),
    "classes first": ((3, 5), classes(5), lambda o, y: sum(o[y[t], t] for t in range(5))),
    "regression": ((), torch.randn(6, generator=g), lambda o, y: o),
    "regression, (b, 1)": ((1,), torch.randn(6, 1, generator=g), lambda o, y: o[0]),
    "one logit for two classes": ((1,), classes() % 2, lambda o, y: o[0]),
    "labels": ((3,), (classes(3) % 2).float(), lambda o, y: (o * y).sum()),
    "one-hot": ((3,), nn.functional.one_hot(classes(), 3), lambda o, y: o[y.argmax()]),
    "probabilities": ((3,), torch.rand(6, 3, generator=g).softmax(1), lambda o, y: (o * y).sum()),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("memory", [so.LayerMemory, so.ProductSketch])
def test_the_true_logit_of_every_kind_of_output(name, memory):
    shape, y, expected = CASES[name]
    torch.manual_seed(0)
    model = Net(*shape)
    found = so.per_example_gradients(model, x, y)
    rows = [
        torch.cat(
            [t.flatten() for t in torch.autograd.grad(expected(model(x[i : i + 1])[0], y[i]), model.parameters())]
        )
        for i in range(6)
    ]
    assert torch.allclose(found, torch.stack(rows), atol=1e-6)
    protection = so.protect(model, torch.optim.SGD(model.parameters(), 0.1), memory=memory(4), output=so.true_logit)
    protection.remember([(x, y)])
    assert protection.memory.examples == 6


def test_every_logit_of_outputs_without_an_axis_of_classes():
    model = Net()
    _, delta = so.layer_signals(model, x)["linear"]
    assert torch.equal(delta, torch.ones(6, 1))
    protection = so.protect(model, torch.optim.SGD(model.parameters(), 0.1), memory=so.LayerMemory(4))
    protection.remember([x])
    assert protection.memory.logits == 1


def test_pixels_below_zero_do_not_count():
    y = classes(4, 5)
    y[:, 2:] = -100
    model = Net(3, 4, 5)
    found = so.per_example_gradients(model, x, y)
    expected = so.per_example_gradients(model, x, y, output=lambda o, t: so.true_logit(o[:, :2], t[:2]))
    assert torch.allclose(found, expected, atol=1e-6)
    memory = so.LayerMemory(4)
    memory.bind(so.ProtectedParameters(model), None)
    memory.observe(x, y)
    assert memory.logits == 3 * 2 * 5


# ---------------------------------------------------------------- random combinations


def moment(rows):
    return rows.T @ rows


@pytest.mark.parametrize("size", [4, 8])
def test_as_many_combinations_as_logits_are_all_of_them(size):
    rows = torch.stack(list(sign_rows(torch.zeros(5, size), size, 0)), 1)
    torch.testing.assert_close(rows.mT @ rows, torch.eye(size).expand(5, -1, -1))
    assert not torch.equal(rows[0].abs() * rows[0], rows[1].abs() * rows[1])  # every example has signs of its own


@pytest.mark.parametrize("size", [1, 15, 200])
def test_combinations_of_a_row_of_logits_are_unbiased_and_independent_between_examples(size):
    rows = torch.stack(list(sign_rows(torch.zeros(2000, size), 8, 1)), 1)  # (examples, combinations, logits)
    assert torch.equal(rows.abs(), torch.full_like(rows, 8**-0.5))
    second = (rows.mT @ rows).mean(0) - torch.eye(size)
    assert float(second.abs().max()) < 5 / 2000**0.5
    between = torch.einsum("eic,ejd->ijcd", rows[:1000], rows[1000:]) / 1000 * 8
    assert float(between.abs().max()) < 6 / 1000**0.5
    assert len({tuple(row) for row in rows[0].sign().tolist()}) > 1  # nor are they all one


@pytest.mark.parametrize("places", [signs.PLACES, 1])
def test_signs_of_sequences_are_unbiased(places, monkeypatch):
    """E[δ δᵀ] over 1,000 seeds is the identity, also where all positions take their signs from the same place.

    Entries have mean 0 and a standard error of 1/√1,000 = .032.
    """
    monkeypatch.setattr(signs, "PLACES", places)
    logits = torch.zeros(1, 3, 7)
    rows = torch.cat([next(sign_rows(logits, 1, seed)).view(1, -1) for seed in range(1000)])
    assert torch.equal(rows.abs(), torch.ones_like(rows))
    error = moment(rows) / len(rows) - torch.eye(21)
    assert float(error.abs().max()) < 5 / 1000**0.5
    assert float(rows.mean(0).abs().max()) < 5 / 1000**0.5


def test_a_memory_of_gradients_of_every_logit_has_their_moment():
    """Σ g gᵀ of random combinations of the logits that count is that of all of these logits, up to 1/√n."""
    torch.manual_seed(0)
    n, y = 4000, torch.tensor([[0, 1, -100]])
    model, one = Net(3, 5), x[:1]
    (J,) = (so.per_example_gradients(model, one.expand(10, 4), torch.arange(10), output=lambda o, t: _nth(o, t)),)
    protection = so.protect(
        model, torch.optim.SGD(model.parameters(), 0.1), memory=so.SecondMoment(), output=so.every_logit
    )
    protection.remember([(one.expand(n // 4, 4), y.expand(n // 4, 3))] * 4)
    sketch = protection.memory.sketch
    found = sketch.summand().double()
    found *= sketch.energy / float(found.trace()) / n  # it is kept up to a power of two
    expected = moment(J.double())
    assert (found - expected).norm() / expected.norm() < 0.1


def _nth(output, i):
    return (output.flatten() * (torch.arange(output.numel()) == i)).sum()


class Allocations(TorchDispatchMode):
    """The numbers of elements of the tensors that are made."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        storages = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)}
        if isinstance(out, torch.Tensor) and out.untyped_storage().data_ptr() not in storages:
            self.sizes.append(out.untyped_storage().nbytes())
        return out


def test_signs_of_a_large_vocabulary_take_one_tensor_of_the_size_of_the_logits():
    logits = torch.zeros(2, 16, 50_000)
    counted = torch.ones(2, 16, 1, dtype=torch.bool)
    with Allocations() as seen:
        seen.sizes = []
        for row in sign_rows(logits, 1, 0, counted):
            assert row.shape == logits.shape
    large = [size for size in seen.sizes if size > logits.nbytes // 4]
    assert large == [logits.nbytes]
    assert position_signs(torch.arange(4), logits[0, :, :9], 0).shape == (4, 16, 9)


# ---------------------------------------------------------------- errors at the border

BAD_TARGETS = {
    "class 3, but the model has outputs for 3 classes": classes() + 1,
    "pass targets.long": classes().float(),
    "do not fit outputs": classes(2),
    "For regression pass output=so.every_logit": torch.randn(6, 3, generator=g),
}


@pytest.mark.parametrize("message", BAD_TARGETS)
@pytest.mark.parametrize("memory", [so.LayerMemory, so.ProductSketch])
def test_targets_that_mean_nothing_are_refused_and_nothing_is_remembered(message, memory):
    model = Net(3)
    protection = so.protect(model, torch.optim.SGD(model.parameters(), 0.1), memory=memory(4), output=so.true_logit)
    protection.remember([(x, torch.arange(6) % 3)])
    before = [sketch.summand().clone() for _, sketch in protection.memory.sketches()]
    y = BAD_TARGETS[message].clone()
    if message.startswith("class 3"):
        y[:5] = 0
        y[5] = 3
    for chunk in (6, 1):  # in several chunks only the last is wrong
        if memory is so.ProductSketch:
            assert protection.memory.signals.path == "vmap"
            protection.memory.signals.chunk = chunk
        with pytest.raises(ValueError, match=message):
            protection.observe(x, y)
    assert protection.memory.examples == 6
    after = [sketch.summand() for _, sketch in protection.memory.sketches()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_log_likelihood_is_for_classes():
    for shape, y in (((1,), torch.randn(6, 1)), ((3,), torch.ones(6, 3))):
        with pytest.raises(ValueError, match="log_likelihood is for classes"):
            so.per_example_gradients(Net(*shape), x, y, output=so.log_likelihood)


y = torch.arange(6) % 3
ONE_BATCH = {"a pair": (x, y), "a list": [x, y], "inputs": x, "a mapping": {"x": x, "labels": y}, "and": ({"x": x}, y)}


@pytest.mark.parametrize("batch", ONE_BATCH)
def test_one_batch_is_no_loader(batch):
    model = Net(3)
    protection = so.protect(model, torch.optim.SGD(model.parameters(), 0.1), memory=so.ProductSketch(4))
    with pytest.raises(TypeError, match=r"remember\(\[\(inputs, targets\)\]\)"):
        protection.remember(ONE_BATCH[batch])
    with pytest.raises(TypeError, match="how many examples"):
        protection.remember(x, y)
    with pytest.raises(TypeError, match=r"observe\(inputs, targets\)"):
        protection.observe((x, y))
    with pytest.raises(TypeError, match="'image', and Net takes 'x'"):
        protection.remember([{"image": x, "labels": y}])
    assert protection.memory.examples == 0


def test_batches_of_three_and_more():
    """The rest is left out where it cannot be an input or the targets."""
    assert split_batch((x, y, y), 1) == (x, y)
    assert split_batch([x, y, 3, None], 1) == (x, y)
    for batch, most in (((x, y, y), 2), ((x, y, y), None), ((x, x, y, x), 1), ((x, y, y.float()), 1)):
        with pytest.raises(TypeError, match="which are inputs and which targets"):
            split_batch(batch, most)


def test_modules_without_values_are_refused():
    lazy = nn.LazyLinear(3)
    with pytest.raises(ValueError, match="run one batch through the model"):
        so.ProtectedParameters(lazy)
    model = nn.Linear(2, 2, device="meta")
    with pytest.raises(ValueError, match="to_empty"):
        so.protect(model, torch.optim.SGD(model.parameters(), 0.1), memory=so.ProductSketch(2))
