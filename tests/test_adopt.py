"""A model that grows: what is remembered stays, what is new begins empty, and where that cannot be, nothing changes."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sketchogd as so


class Net(nn.Module):
    """Tokens, a convolution, a norm and a head; the head and the embedding can grow, and a layer can be added."""

    def __init__(self, classes=2, tokens=10):
        super().__init__()
        self.tokens = nn.Embedding(tokens, 6)
        self.conv = nn.Conv1d(6, 8, 3, padding=1)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, classes)
        self.more = nn.Sequential()

    def forward(self, x):
        h = torch.relu(self.conv(self.tokens(x).transpose(1, 2))).mean(2)
        return self.head(self.more(self.norm(h)))


@pytest.fixture(autouse=True)
def embeddings_by_counts(monkeypatch):
    """As those of a large vocabulary; tables are layers like any other."""
    monkeypatch.setattr("sketchogd.model.layers.FEW", 0)


def grow(model, classes=5, tokens=13, layer=True):
    torch.manual_seed(9)
    head, embedding = nn.Linear(8, classes).double(), nn.Embedding(tokens, 6).double()
    with torch.no_grad():
        head.weight[: len(model.head.weight)], head.bias[: len(model.head.bias)] = model.head.weight, model.head.bias
        embedding.weight[: len(model.tokens.weight)] = model.tokens.weight
    model.head, model.tokens = head, embedding
    if layer:
        model.more.append(nn.Linear(8, 8).double())
        with torch.no_grad():
            model.more[0].weight.copy_(torch.eye(8))
            model.more[0].bias.zero_()
    return model


MEMORIES = {
    "exact": lambda: so.LayerMemory(64, strength=10.0),
    "sketched": lambda: so.LayerMemory(4, strength=10.0, rest=3),
    "int8": lambda: so.LayerMemory(64, strength=10.0, anchor_dtype="int8"),
    "hard": lambda: so.LayerMemory(4, rule=so.Project()),
    "gradients": lambda: so.ProductSketch(12),
}


def remembered(memory, every=1):
    torch.manual_seed(0)
    model = Net().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    protection = so.protect(model, optimizer, memory=memory, every=every)
    x, y = torch.randint(0, 10, (40, 5)), torch.randint(0, 2, (40,))
    protection.remember([(x, y)])
    return model, optimizer, protection, x


def grown_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def embedded(old, new, pieces):
    """Tensors shaped like the old parameters in the corners of zeros shaped like the new ones, as a vector."""
    out = []
    found = dict(zip(old.names, pieces, strict=True))
    for name, tensor in zip(new.names, new.tensors, strict=True):
        whole = torch.zeros_like(tensor)
        if name in found:
            whole[tuple(slice(0, n) for n in found[name].shape)] = found[name]
        out.append(whole)
    return new.flatten([t.detach() for t in out])


@pytest.mark.parametrize("kind", MEMORIES)
def test_old_displacements_are_projected_as_before_and_new_rows_are_free(kind):
    """Twin: the projector before growing. A displacement of old entries only must give the same protected part."""
    model, _, protection, _ = remembered(MEMORIES[kind]())
    old = protection.parameters
    v = torch.randn(old.width, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected = protection.projector.protected_part_(v.clone(), 0.1)
    seen = {name: (sketch.count, sketch.energy) for name, sketch in protection.memory.sketches()}
    grow(model)
    protection.adopt(model, grown_optimizer(model))
    new = protection.parameters
    found = protection.projector.protected_part_(embedded(old, new, old.unflatten(v)), 0.1)
    # Pulls also damp what nothing is known of, which new rows are: only the corner is compared.
    places = embedded(old, new, [torch.ones_like(t) for t in old.tensors]).bool()
    inside = found[places]
    torch.testing.assert_close(inside, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    if kind in ("hard", "gradients"):
        assert float(found[~places].abs().max()) < 1e-10
    assert protection.memory.examples == 40
    now = {name: (sketch.count, sketch.energy) for name, sketch in protection.memory.sketches()}
    assert {name: now[name] for name in seen} == seen
    assert all(count == 0 for name, (count, _) in now.items() if name not in seen)
    assert {row.name for row in protection.coverage() if "nothing observed" in row.how} >= (
        {"more.0.weight", "more.0.bias"} if kind != "gradients" else set()
    )


@pytest.mark.parametrize("kind", MEMORIES)
def test_a_grown_model_is_protected_saved_and_loaded(kind, tmp_path):
    drifts = []
    for adopt in (True, False):
        model, _, protection, x = remembered(MEMORIES[kind]())
        before = model(x).detach()
        grow(model, layer=False)  # a new layer between old ones is free, and moves old outputs
        torch.testing.assert_close(model(x).detach()[:, :2], before)
        optimizer = grown_optimizer(model)
        if adopt:
            protection.adopt(model, optimizer)
        else:
            protection.detach()
        g = torch.Generator().manual_seed(5)
        new, target = torch.randint(0, 13, (40, 5), generator=g), torch.randint(2, 5, (40,), generator=g)
        for _ in range(60):
            optimizer.zero_grad()
            cross_entropy(model(new), target).backward()
            optimizer.step()
        drifts.append(float((model(x).detach()[:, :2] - before).norm()))
        if adopt:
            protection.remember([(new, target)])
            assert protection.memory.examples == 80
            protection.save(tmp_path / "memory")
            other = so.protect(
                model,
                grown_optimizer_of(protection, model),
                memory=protection.memory.from_meta(protection.state_dict()["meta"]),
            )
            other.load(tmp_path / "memory")
            v = torch.randn(other.parameters.width, dtype=torch.float64)
            one, two = (p.projector.protected_part_(v.clone(), 0.1) for p in (protection, other))
            torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-9)
    assert drifts[0] < 0.7 * drifts[1], drifts


def grown_optimizer_of(protection, model):
    protection.detach()
    return grown_optimizer(model)


def test_the_pull_goes_on_to_the_old_weights():
    model, optimizer, protection, _ = remembered(so.LayerMemory(64, strength=50.0))
    anchor = [t.detach().clone() for t in protection.parameters.tensors]
    names = protection.parameters.names
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randint(0, 10, (8, 5))).square().sum().backward()
        optimizer.step()
    grow(model)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    protection.adopt(model, grown_optimizer(model))
    kept = dict(zip(protection.parameters.names, protection._projection.reference, strict=True))
    for name, before in zip(names, anchor, strict=True):
        assert torch.equal(kept[name].numbers[tuple(slice(0, n) for n in before.shape)], before)
    assert torch.equal(kept["head.weight"].numbers[2:], weights["head.weight"][2:])
    assert torch.equal(kept["more.0.weight"].numbers, weights["more.0.weight"])


def test_what_cannot_be_adopted_changes_nothing():
    model, optimizer, protection, _ = remembered(so.LayerMemory(64))
    state = protection.state_dict()["tensors"]

    def unchanged():
        now = protection.state_dict()["tensors"]
        assert state.keys() == now.keys()
        assert all(torch.equal(state[name], now[name]) for name in state)
        assert protection._projection.optimizer is optimizer

    other = Net().double()
    with pytest.raises(so.ProtectionError, match=r"'tokens\.weight' of the new model.*does not begin with the old"):
        protection.adopt(other, grown_optimizer(other))
    unchanged()
    with pytest.raises(so.ProtectionError, match="no parameter 'tokens"):
        protection.adopt(nn.Linear(2, 2), optimizer)
    unchanged()
    grow(model)
    with pytest.raises(so.ProtectionError, match="the optimizer does not hold"):
        protection.adopt(model)
    unchanged()
    protection.adopt(model, grown_optimizer(model))
    model, optimizer, protection, _ = remembered(so.GradientMemory(so.ProductSketch(6), blocks=2))
    grow(model)
    with pytest.raises(so.ProtectionError, match="blocks"):
        protection.adopt(model, grown_optimizer(model))
    model, optimizer, protection, _ = remembered(so.LayerMemory(64, rule=so.Project()), every=5)
    model(torch.randint(0, 10, (8, 5))).square().sum().backward()
    optimizer.step()
    assert protection.pending == 1
    grow(model)
    with pytest.raises(so.ProtectionError, match="1 steps wait"):
        protection.adopt(model, grown_optimizer(model))


def test_metrics_are_flat_numbers_and_change_nothing():
    model, optimizer, protection, x = remembered(so.LayerMemory(64))
    assert all(isinstance(value, (int, float)) for value in protection.metrics().values())
    model(x).square().sum().backward()
    optimizer.step()
    found, whole = protection.metrics(), protection.diagnostics()
    assert found["displacement"] == pytest.approx(whole["displacement"])
    assert found["displacement"] > 0
    assert {key: found[key] for key in ("examples", "steps", "nbytes")} == {
        key: whole[key] for key in ("examples", "steps", "nbytes")
    }
    assert found["forgetting_estimate"] == pytest.approx(protection.forgetting())
    assert found["forgetting_estimate"] > 0
    protection.observe(x[:4], torch.zeros(4, dtype=torch.long))
    assert "forgetting_estimate" not in protection.metrics()
    assert protection._projector is None, "no projector is made for numbers"
    _, _, hard, _ = remembered(so.ProductSketch(5))
    assert hard.metrics()["forgetting_estimate"] == hard.diagnostics()["forgetting_estimate"] == 0.0


def test_a_parameter_may_grow_in_place():
    """As transformers' resize_token_embeddings does it: the same Parameter with more data."""
    model, optimizer, protection, _ = remembered(so.LayerMemory(64, strength=50.0))
    counts = protection.memory.factors["tokens"].counts.clone()
    more = torch.cat([model.tokens.weight.detach(), torch.randn(3, 6, dtype=torch.float64)])
    model.tokens.weight.data = more
    protection.adopt(model)
    assert torch.equal(protection.memory.factors["tokens"].counts, torch.cat([counts, counts.new_zeros(3)]))
    model(torch.tensor([[11, 12]])).square().sum().backward()
    optimizer.step()
    assert protection.metrics()["displacement"] > 0
    reference = protection._projection.reference
    protection.adopt(model)
    assert protection._projection.reference is reference, "nothing has changed, and nothing is made anew"


@pytest.mark.parametrize("rank", [64, 4])
def test_a_hidden_layer_grows_and_biases_stay_the_last_input(rank):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    protection = so.protect(model, grown_optimizer(model), memory=so.LayerMemory(rank, strength=50.0, damping=0.0))
    protection.remember([(torch.randn(30, 5, dtype=torch.float64), torch.zeros(30, dtype=torch.long))])
    old = protection.parameters
    v = torch.randn(old.width, dtype=torch.float64)
    expected = protection.projector.protected_part_(v.clone(), 0.1)
    wide = nn.Sequential(nn.Linear(5, 11), nn.Tanh(), nn.Linear(11, 3)).double()
    with torch.no_grad():
        for new, before in zip(wide.parameters(), model.parameters(), strict=True):
            new[tuple(slice(0, n) for n in before.shape)] = before
    protection.adopt(wide, grown_optimizer(wide))
    new = protection.parameters
    found = protection.projector.protected_part_(embedded(old, new, old.unflatten(v)), 0.1)
    places = embedded(old, new, [torch.ones_like(t) for t in old.tensors]).bool()
    # What lies beyond the rank is spread over more unseen directions than before: only the large part is alike.
    rtol = 1e-6 if rank == 64 else 0.3
    assert float((found[places] - expected).norm()) < rtol * float(expected.norm())


class Normed(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.up, self.norm, self.mid = nn.Linear(6, 12), nn.LayerNorm(12), nn.Linear(12, 12)
        self.last, self.head = nn.LayerNorm(12), nn.Linear(12, classes)

    def forward(self, x):
        return self.head(self.last(torch.tanh(self.mid(self.norm(torch.tanh(self.up(x)))))))


def test_norms_and_what_is_lost_go_with_a_model_whose_head_grows():
    torch.manual_seed(0)
    model, x = Normed(3), torch.randn(60, 6)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    protection = so.protect(model, optimizer, memory=so.LayerMemory(20))
    for shift in range(3):
        for _ in range(20):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x + shift), (x[:, :3].argmax(1) + shift) % 3).backward()
            optimizer.step()
        if shift < 2:
            protection.remember([(x + shift, x[:, :3].argmax(1))])
    before = protection.forgetting()
    spectra = {part.name: part.sketch.spectrum()[0] for part in protection.memory.others.parts}
    grown = Normed(4)
    with torch.no_grad():
        for name, t in grown.named_parameters():
            old = model.get_parameter(name)
            t[tuple(slice(n) for n in old.shape)] = old
    assert protection._projection.lost > 0
    protection.adopt(grown, torch.optim.Adam(grown.parameters(), lr=0.01))
    assert protection.forgetting() == pytest.approx(before, rel=1e-3)
    assert list(spectra) == ["rest:norm", "rest:last"]
    for part in protection.memory.others.parts:
        torch.testing.assert_close(part.sketch.spectrum()[0], spectra[part.name])
