"""What one unit changes in what is released: never more than is stated, and for some units as much as that."""

import math

import pytest
import torch
from torch import nn

import sketchogd as so
from sketchogd.privacy.account import Account
from sketchogd.privacy.mechanism.sums import SENSITIVITY
from tests.models import make

pytest.importorskip("dp_accounting")

pytestmark = pytest.mark.filterwarnings("ignore:torch.func cannot vectorise")

KINDS = ["mlp", "cnn", "resnet", "transformer", "gru", "lora"]
MEMORIES = {
    "layers": lambda: so.LayerMemory(8, rest=4),
    "every logit's gradient": lambda: so.ProductSketch(6),
    "gradients": lambda: so.GradientSketch(6),
    "blocks": lambda: so.GradientMemory(so.ProductSketch(5), blocks=3),
}
ROUNDING = 1e-6


class ManyLogits(nn.Sequential):
    """More logits than have a backward pass each."""

    def __init__(self):
        super().__init__(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 30))


def releasing(model, memory, unit=None, output=None):
    privacy = so.Privacy(3.0, 1e-5, unit=unit or so.privacy.Example())
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    protection = so.protect(model, optimizer, memory=memory, privacy=privacy, output=output)
    protection.detach()
    return lambda: Account(privacy).begin(protection.memory)


def sums_of(begin, inputs, targets, weights=None, batches=(slice(None),)):
    """The sums without noise. Random signs are the same for the same number of examples drawn before."""
    release = begin()
    for here in batches:
        if len(targets[here]):
            weighed = None if weights is None else weights[here]
            release.observe(inputs[here], targets[here], weighed, len(targets[here]))
    return {each.name: each.value.clone() for each in release.sums.sums}, release.sums.shares()


def distance(a, b, shares):
    """(the largest change of a sum in norm, the change of all of them together in units of the noise multiplier)."""
    changes = {name: float(torch.linalg.vector_norm(a[name] - b[name])) for name in a}
    return max(changes.values()), math.sqrt(sum(shares[name] * change**2 for name, change in changes.items()))


def extreme(inputs, i, kind):
    """The same inputs with example i far from all others."""
    changed = inputs.clone()
    if inputs.is_floating_point():
        changed[i] = {"huge": 1e6, "tiny": 1e-8, "odd": -37.0}[kind] * torch.randn(inputs[i].shape).sign()
    else:
        changed[i] = int(inputs.max()) if kind == "huge" else 0
    return changed


@pytest.fixture
def same_signs(monkeypatch):
    """Random signs of an example that follow from its inputs, so that data sets can be compared sum by sum."""
    from sketchogd.privacy import gradients, layers, rows

    def uniform(n):
        generator = torch.Generator().manual_seed(3)
        return torch.rand(n, generator=generator, dtype=torch.float64)

    for module in (gradients, layers, rows):
        monkeypatch.setattr(module, "uniform", uniform)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_example_more_or_another_changes_no_sum_by_more_than_the_sensitivity(kind, memory, same_signs):
    model, inputs, targets = make(kind, n=9)
    begin = releasing(model, MEMORIES[memory]())
    everything, shares = sums_of(begin, inputs, targets)
    assert sum(shares.values()) == pytest.approx(1.0)
    # The last example is the one that comes or goes: signs of the others stay what they are.
    fewer, _ = sums_of(begin, inputs[:-1], targets[:-1])
    each, together = distance(everything, fewer, shares)
    assert each <= SENSITIVITY * (1 + ROUNDING)
    assert together <= 1 + ROUNDING
    assert together > 0.5  # and no less than that: noise for a change that cannot happen would be wasted
    for how in ("huge", "tiny", "odd"):
        replaced, _ = sums_of(begin, extreme(inputs, -1, how), targets)
        each, together = distance(replaced, fewer, shares)
        assert each <= SENSITIVITY * (1 + ROUNDING), how
        assert together <= 1 + ROUNDING, how
        assert distance(replaced, everything, shares)[1] <= 2 * (1 + ROUNDING), how


def test_more_logits_than_passes_and_a_scalar_of_ones_own(same_signs):
    torch.manual_seed(0)
    inputs, targets = torch.randn(12, 5), torch.randint(0, 30, (12,))
    for output in (None, lambda output, target: output.square().sum()):
        begin = releasing(ManyLogits(), so.LayerMemory(6, rest=3), output=output)
        a, shares = sums_of(begin, inputs, targets)
        b, _ = sums_of(begin, inputs[:-1], targets[:-1])
        each, together = distance(a, b, shares)
        assert 0.5 < together <= 1 + ROUNDING
        assert each <= 1 + ROUNDING


@pytest.mark.parametrize("kind", KINDS)
def test_sums_do_not_depend_on_how_examples_are_batched(kind):
    model, inputs, targets = make(kind, n=9)
    begin = releasing(model, so.LayerMemory(8, rest=1))
    whole, _ = sums_of(begin, inputs, targets)
    parts, _ = sums_of(begin, inputs, targets, batches=(slice(0, 4), slice(4, 5), slice(5, 9)))
    for name in whole:
        if not name.startswith("rest"):  # a random combination of logits, drawn anew
            torch.testing.assert_close(whole[name], parts[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["mlp", "cnn", "transformer"])
def test_the_sums_are_those_of_autograd_for_one_example_at_a_time(kind):
    """In float64, from one backward pass per logit: Σ GᵀG / t and Σ GGᵀ / t with t = Σ ‖G‖²."""
    model, inputs, targets = make(kind, n=4)
    model = model.double().eval()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    begin = releasing(model, so.LayerMemory(8, rest=1))
    found, _ = sums_of(begin, inputs, targets)
    release = begin()
    for name, factors in release.memory.factors.items():
        layer, expected = factors.layer, {"inputs": 0.0, "outputs": 0.0}
        for x in inputs:
            G = []
            for logit in model(x[None])[0]:
                parts = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
                grads = list(torch.autograd.grad(logit, parts, retain_graph=True))
                matrix = grads[0].flatten(1) if grads[0].ndim > 1 else grads[0]
                matrix = matrix.T if layer.tokens else matrix
                G.append(matrix if layer.bias is None else torch.cat([matrix, grads[1][:, None]], 1))
            G = torch.stack(G)
            t = G.square().sum()
            expected["inputs"] += (G.mT @ G).sum(0) / t
            expected["outputs"] += (G @ G.mT).sum(0) / t
        for part, _ in factors.sketches():
            torch.testing.assert_close(found[f"{name}.{part}"], expected[part], rtol=1e-6, atol=1e-9)


def test_a_user_changes_no_sum_by_more_than_the_sensitivity(same_signs):
    model, inputs, targets = make("mlp", n=12)
    unit = so.privacy.User(examples=3)
    begin = releasing(model, so.LayerMemory(8), unit)

    def sums(keep, ids):
        rows = [i for i in range(12) if keep(ids[i])]
        batches = [
            (inputs[rows][i : i + 4], targets[rows][i : i + 4], [ids[r] for r in rows[i : i + 4]]) for i in (0, 4, 8)
        ]
        release = begin()
        for (x, y), weights in unit.weighed(batches):
            if len(x):
                release.observe(x, y, weights, len(x))
        return {each.name: each.value.clone() for each in release.sums.sums}, release.sums.shares()

    ids = ["a", "b", "c", "a", "d", "a", "a", "b", "a", "c", "a", "a"]  # "a" has seven examples
    everything, shares = sums(lambda user: True, ids)
    for user, least in (("a", 0.5), ("b", 0.3), ("d", 0.15)):
        without, _ = sums(lambda other, user=user: other != user, ids)
        each, together = distance(everything, without, shares)
        assert each <= SENSITIVITY * (1 + ROUNDING)
        assert least < together <= 1 + ROUNDING


def test_models_whose_examples_see_each_other_are_refused():
    class Centred(nn.Linear):
        def forward(self, x):
            return super().forward(x - x.mean(0))

    begin = releasing(Centred(4, 3), so.LayerMemory(8))
    with pytest.raises(ValueError, match="depend on the other examples"):
        sums_of(begin, torch.randn(8, 4), torch.zeros(8).long())
    norm = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False))
    with pytest.raises(ValueError, match="without running statistics"):
        releasing(norm, so.LayerMemory(8))


def test_positions_that_do_not_see_the_batch_are_read_one_example_at_a_time():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places, self.head = nn.Embedding(9, 6), nn.Embedding(5, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(torch.tanh(self.tokens(x) + self.places(torch.arange(5))[None]).mean(1))

    torch.manual_seed(0)
    inputs, targets = torch.randint(0, 9, (7, 5)), torch.zeros(7).long()
    begin = releasing(Positions(), so.LayerMemory(8))
    a, shares = sums_of(begin, inputs, targets)
    b, _ = sums_of(begin, inputs[1:], targets[1:])
    each, together = distance(a, b, shares)
    assert each <= 1 + ROUNDING
    assert 0.5 < together <= 1 + ROUNDING
    assert float(a["places.inputs"].trace()) == pytest.approx(7.0, rel=1e-5)
