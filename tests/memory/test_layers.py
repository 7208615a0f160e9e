"""Layer memory: against the full eigendecomposition, against GPM's guarantee, and over every kind of model."""

import pytest
import torch
from torch import nn

import sketchogd as so
from sketchogd.model.parameters import ProtectedParameters
from sketchogd.projector import LayerSpectra, ShrinkingLayer
from sketchogd.projector.kronecker import energy_threshold
from tests import models, reference
from tests.reference import projected


def bound(memory, model, inputs, targets=None):
    memory.bind(ProtectedParameters(model), None)
    memory.observe(inputs, targets)
    return memory


def project(memory, seed=0):
    """A random displacement before and after the projection, one tensor a parameter."""
    v = torch.randn(memory.parameters.p, generator=torch.Generator().manual_seed(seed))
    before = [t.clone() for t in memory.parameters.unflatten(v)]
    after = memory.parameters.unflatten(projected(memory.projector(), v))
    return before, after


def test_soft_projection_is_the_formula():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    x = torch.randn(40, 6)
    memory = bound(so.LayerMemory(50, ridge=0.3, curvature="positions"), model, x)
    before, after = project(memory)
    signals = so.layer_signals(model, x)
    for name, (w, b) in {"0": (0, 1), "2": (2, 3)}.items():
        D = torch.cat([before[w], before[b][:, None]], 1).double()
        expected = reference.soft_layer_update(D, *signals[name], ridge=0.3)
        found = torch.cat([after[w], after[b][:, None]], 1).double()
        assert (found - expected).norm() / expected.norm() < 1e-5
    assert memory.projector().layers["0"].alpha.shape == (5, 7)


def test_convolution_and_embedding_project_their_own_rows():
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 4, 3, bias=False)
    x = torch.randn(10, 2, 6, 6)
    memory = bound(so.LayerSketch(rank=50, ridge=0.2, outputs=False), conv, x)
    (before,), (after,) = project(memory)
    a = so.layer_signals(conv, x)[""][0].double()
    values, V = torch.linalg.eigh(a.T @ a)
    shrink = V @ torch.diag(1 - values / (values + 0.2 * values.mean())) @ V.T
    assert torch.allclose(after.flatten(1).double(), before.flatten(1).double() @ shrink, atol=1e-5)

    embedding = nn.Embedding(6, 3)
    memory = bound(so.LayerSketch(rank=50, ridge=0.0, outputs=False), embedding, torch.tensor([[0, 1], [1, 1], [4, 4]]))
    (before,), (after,) = project(memory)
    assert not after[[0, 1, 4]].any()  # tokens that were seen stay
    assert torch.equal(after[[2, 3, 5]], before[[2, 3, 5]])


def test_embedding_with_sensitivities_is_the_kronecker_formula():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(8, 3))
    tokens = torch.tensor([[0, 1], [1, 1], [4, 4], [0, 4]])
    memory = bound(so.LayerMemory(50, ridge=0.5, curvature="positions"), model, tokens)
    before, after = project(memory)
    _, delta = so.layer_signals(model, tokens)["0"]
    ld, Vd = torch.linalg.eigh(delta.double().T @ delta.double())
    counts = torch.tensor([2.0, 3.0, 0, 0, 3.0, 0], dtype=torch.float64)
    products = counts[:, None] * ld[None, :]
    alpha = products / (products + 0.5 * products.mean())
    expected = before[0].double() - (alpha * (before[0].double() @ Vd)) @ Vd.T
    assert torch.allclose(after[0].double(), expected, atol=1e-5)


def moved(model, before, inputs):
    """How far the pre-activations of the remembered inputs are from what they were, layer by layer."""
    changes = []
    for name, (a, _) in before.items():
        layer = model.get_submodule(name)
        W = torch.cat([layer.weight.flatten(1), layer.bias[:, None]], 1).detach()
        changes.append((a @ (W - inputs[name]).T).norm())
    return torch.stack(changes)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_hard_full_rank_inputs_only_keeps_pre_activations(optimizer):
    """The pre-activations of remembered inputs move by less than 1e-4 of what they move unprotected."""
    changes = []
    for protected in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(50, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 4))
        old, new = torch.randn(30, 50), torch.randn(64, 50)
        step = optimizer(model.parameters(), lr=1e-2)
        memory = so.LayerSketch(rank=100, ridge=0.0, outputs=False)
        protection = so.protect(model, step, memory=memory)
        protection.remember([old])
        if not protected:
            protection.detach()
        signals = dict(so.layer_signals(model, old).items())
        weights = {
            n: torch.cat([model.get_submodule(n).weight, model.get_submodule(n).bias[:, None]], 1).detach()
            for n in signals
        }
        for _i in range(40):
            step.zero_grad()
            nn.functional.cross_entropy(model(new), torch.arange(64) % 4).backward()
            step.step()
        changes.append(moved(model, signals, weights))
        if protected:
            assert protection.leak < 1e-6
        protection.detach()
    assert bool((changes[1] > 0.1).all())
    assert bool((changes[0] < 1e-4 * changes[1]).all()), changes


@pytest.mark.filterwarnings("ignore:torch.func cannot")
@pytest.mark.parametrize("kind", models.MODELS)
@pytest.mark.parametrize("outputs", [True, False])
def test_every_parameter_belongs_to_exactly_one_projector(kind, outputs):
    model, x, y = models.make(kind)
    memory = bound(so.LayerSketch(rank=8, outputs=outputs), model, x, y)
    projector = memory.projector()
    indices = [i for place in projector.places.values() for i in (place.weight, place.bias) if i is not None]
    indices += projector.other_indices
    assert sorted(indices) == list(range(len(memory.parameters)))
    assert set(projector.layers) == set(memory.factors)
    assert memory.nbytes <= memory.cost(memory.parameters)
    # A soft projector shrinks: between nothing and everything of a random vector is taken away.
    v = torch.randn(memory.parameters.p)
    part = projector.protected_part_(v.clone())
    assert 0 < float(part @ v) < float(v @ v)
    assert len(memory.diagnostics()["sketches"]) >= 2


def test_layers_that_were_not_used_are_not_held():
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    model.forward = lambda x: model["a"](x)
    memory = bound(so.LayerSketch(rank=8), model, torch.randn(5, 3))
    before, after = project(memory)
    assert not torch.equal(before[0], after[0])
    assert torch.equal(before[2], after[2])
    assert torch.equal(before[3], after[3])


def test_ranks_by_layer_name_and_glob():
    model = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 3))
    memory = so.LayerSketch(rank={"0": 5, "*": 7})
    memory.bind(ProtectedParameters(model), None)
    assert memory.factors["0"].inputs.rank == 5
    assert memory.factors["2"].inputs.rank == 7
    with pytest.raises(ValueError, match="no entry for layer '2'"):
        so.LayerSketch(rank={"0": 5}).bind(ProtectedParameters(model), None)


@pytest.mark.parametrize("sketch", [so.ProductSketch, so.GradientSketch, so.FrequentDirections, so.IncrementalPCA])
def test_any_ranked_sketch_can_hold_the_factors(sketch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 3))
    x = torch.randn(100, 4) @ torch.randn(4, 40)
    memory = bound(so.LayerSketch(rank=12, ridge=0.0, outputs=False, sketch=sketch), model, x)
    before, after = project(memory)
    assert (x @ after[0].T + after[1]).norm() < 1e-2 * (x @ before[0].T + before[1]).norm()


def test_energy_threshold_keeps_the_largest_products():
    values = torch.tensor([6.0, 3.0, 1.0], dtype=torch.float64)
    projector = ShrinkingLayer(LayerSpectra(torch.eye(3), values, None, None, 10 / 3), 0.0, energy=0.9)
    assert projector.alpha.tolist() == [[1.0, 1.0, 0.0]]
    assert energy_threshold(values, 1.0) == 1.0
    assert energy_threshold(values, 0.5) == 6.0


@pytest.mark.parametrize("energy", [1.0, 0.9])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("outputs", [True, False])
@pytest.mark.parametrize("inputs", [True, False])
def test_the_part_that_may_not_change_is_that_of_alpha(inputs, outputs, ridge, energy):
    """A ΔW = V_δᵀ (α ∘ (V_δ ΔW V_aᵀ)) V_a in float64, with the bias as the last column."""
    g = torch.Generator().manual_seed(0)
    V, U = (torch.linalg.qr(torch.randn(n, n, generator=g))[0][:r].float() for n, r in [(9, 6), (7, 4)])
    a, d = (10.0 ** -torch.arange(n, dtype=torch.float64) for n in (6 if inputs else 9, 4))
    a[-1] = 0.0  # a direction that was never seen
    mean = float(a.mean()) * (float(d.mean()) if outputs else 1.0)
    spectra = LayerSpectra(V if inputs else None, a, U if outputs else None, d if outputs else None, mean)
    projector = ShrinkingLayer(spectra, ridge, energy)
    D = torch.randn(7, 9, generator=g)
    V64 = V.double() if inputs else torch.eye(9, dtype=torch.float64)
    U64 = U.double() if outputs else torch.eye(7, dtype=torch.float64)
    expected = U64.T @ (projector.alpha * (U64 @ D.double() @ V64.T)) @ V64
    assert float(projector.alpha.min()) == 0.0
    bias = D[:, -1].clone() if inputs else None
    W = D[:, :-1].clone() if inputs else D.clone()
    projector.protected_part_(W, bias)
    found = W if bias is None else torch.cat([W, bias[:, None]], 1)
    assert torch.allclose(found.double(), expected, atol=1e-6)


def test_merging_layer_memories_is_observing_both():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(9, 40), nn.Flatten(), nn.Linear(80, 30), nn.LayerNorm(30), nn.ReLU(), nn.Linear(30, 3)
    )
    x = torch.randint(0, 9, (60, 2))
    a, b, both = (so.LayerSketch(rank=16, ridge=0.1) for _ in range(3))
    bound(a, model, x[:30]), bound(b, model, x[30:])
    bound(both, model, x[:30]).observe(x[30:], None)
    a.merge(b)
    assert a.examples == 60
    for found, expected in zip(project(a)[1][:3], project(both)[1][:3], strict=True):
        assert torch.allclose(found, expected, atol=2e-3)
    with pytest.raises(ValueError, match="settings"):
        a.merge(bound(so.LayerSketch(rank=17), model, x))


def test_bad_inputs_name_the_layer_and_examples_and_change_nothing():
    model, x, _ = models.make("mlp", n=6)
    memory = bound(so.LayerSketch(rank=8), model, x)
    before = project(memory)[1]
    x[3, 0] = float("nan")
    with pytest.raises(so.NonFiniteError, match=r"input of layer '0' of examples \[3\]") as caught:
        memory.observe(x, None)
    assert caught.value.examples == [3]
    assert memory.examples == 6
    assert all(torch.equal(a, b) for a, b in zip(before, project(memory)[1], strict=True))
    for settings in [{"rank": 0}, {"rank": 3, "ridge": -1}, {"rank": 3, "energy": 0}, {"rank": {}}]:
        with pytest.raises(ValueError, match=r"rank|ridge|energy"):
            so.LayerSketch(**settings)
