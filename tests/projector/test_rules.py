"""Rules as objects: what they mean for both memories, their short forms, and what they refuse."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sketchogd as so
from sketchogd.memory.curvature import RELATIVE_STRENGTH
from sketchogd.projector.rules import rule_from
from tests.reference import projected

GIVEN = [
    ({}, so.Pull(damping=0.05)),
    ({"strength": 3.0}, so.Pull(3.0)),
    ({"damping": 0.2, "anchor_dtype": "int8"}, so.Pull(damping=0.2, anchor_dtype="int8")),
    ({"ridge": 0.1}, so.Shrink(0.1)),
    ({"ridge": 0.0, "energy": 0.95}, so.Shrink(0.0, energy=0.95)),
    ({"ridge": 0.0}, so.Project()),
    ({"ridge": 0.0, "energy": 1.0}, so.Project()),
]


@pytest.mark.parametrize(("keywords", "rule"), GIVEN)
def test_short_forms_of_a_layer_memory_are_rules(keywords, rule):
    short, long = so.LayerMemory(4, **keywords), so.LayerMemory(4, rule=rule)
    rule = rule.with_usual(RELATIVE_STRENGTH)
    assert short.rule == long.rule == rule
    assert short.settings() == long.settings()
    counted = {"memory": "layers", "examples": 0, "tasks": 0, "logits": 0, "sketches": {}}
    assert so.LayerMemory.from_meta({"settings": long.settings(), **counted}).rule == rule


@pytest.mark.parametrize("rule", [so.Project(), so.Shrink(0.3), so.Pull(3.0), so.Pull(1.0, anchor_dtype="int8")])
def test_a_gradient_memory_has_every_rule_and_says_so_in_files(rule):
    memory = so.GradientMemory(so.ProductSketch(5), rule=rule)
    memory.bind(so.ProtectedParameters(nn.Linear(3, 2)), None)
    assert so.GradientMemory.from_meta(memory.state_dict()["meta"]).rule == rule
    assert repr(rule).split("(")[0] in repr(so.LayerMemory(4, rule=rule))


def test_a_pull_says_how_its_anchor_is_kept_and_others_have_none():
    assert so.Pull(anchor_dtype="int8").anchor.dtype == "int8"
    assert so.Pull().anchor.dtype is None
    assert so.Project().anchor is so.Shrink(0.1).anchor is None


def test_layer_sketch_is_the_old_name():
    assert so.LayerSketch is so.LayerMemory


@pytest.mark.parametrize(
    ("keywords", "word"),
    [
        ({"ridge": 0.1, "strength": 1.0}, "one of them"),
        ({"ridge": 0.1, "anchor_dtype": "int8"}, "anchor"),
        ({"ridge": -1.0}, "ridge"),
        ({"strength": 0.0}, "strength"),
        ({"strength": float("nan")}, "strength"),
        ({"damping": -0.1}, "damping"),
        ({"ridge": 0.1, "energy": 0.0}, "energy"),
        ({"energy": 2.0}, "energy"),
        ({"anchor_dtype": "float8"}, "int8"),
        ({"rule": so.Project(), "ridge": 0.1}, "not both"),
    ],
)
def test_what_contradicts_itself_is_refused(keywords, word):
    with pytest.raises(ValueError, match=word):
        so.LayerMemory(4, **keywords)


def test_a_rule_that_is_none_is_refused():
    with pytest.raises(TypeError, match="Project"):
        rule_from("project", so.Project())


def forgetting(rule, memory):
    """Mean square change of old logits after 60 steps on other labels."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3))
    x, z, y = torch.randn(12, 6), torch.randn(12, 6), torch.randint(0, 3, (12,))
    x[:, 3:], z[:, :3] = 0, 0  # the tasks have inputs of their own, so that one can be learned and the other kept
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    before = model(x).detach()
    if rule is not None:
        protection = so.protect(model, optimizer, memory=memory(rule), output=None)
        protection.remember([(x, y)])
    for _ in range(60):
        optimizer.zero_grad()
        cross_entropy(model(z), y).backward()
        optimizer.step()
    return float((model(x).detach() - before).square().mean())


@pytest.mark.parametrize("rule", [so.Project(), so.Shrink(0.01), so.Pull(10.0), so.Pull(10.0, anchor_dtype="int8")])
@pytest.mark.parametrize(
    "memory",
    [
        lambda rule: so.LayerMemory(25, rule=rule),
        lambda rule: so.GradientMemory(so.ProductSketch(40), rule=rule),
        lambda rule: so.GradientMemory(so.ProductSketch(20), rule=rule, blocks=2),
    ],
)
def test_every_rule_protects_in_every_memory(rule, memory):
    assert forgetting(rule, memory) < 0.5 * forgetting(None, memory)


def test_shrinking_on_a_basis_is_the_closed_form():
    """α = λ / (λ + ridge · Tr M / p) in the eigenvectors of M = Σ g gᵀ, in float64."""
    torch.manual_seed(0)
    model = nn.Linear(5, 2).double()
    x, y = torch.randn(30, 5, dtype=torch.float64), torch.randint(0, 2, (30,))
    G = so.per_example_gradients(model, x, y)
    memory = so.GradientMemory(so.ProductSketch(12), rule=so.Shrink(0.3))
    protection = so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=memory)
    protection.remember([(x, y)])
    M = G.T @ G
    mu = 0.3 * float(M.diagonal().mean())
    v = torch.randn(12, dtype=torch.float64)
    expected = v - M @ torch.linalg.solve(M + mu * torch.eye(12, dtype=torch.float64), v)
    torch.testing.assert_close(projected(protection.projector, v.clone()), expected, atol=1e-8, rtol=1e-6)
