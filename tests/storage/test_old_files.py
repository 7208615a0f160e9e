"""Memory files written by version 0.1.0 before memories had rules load, protect and go on as they did.

`tests/fixtures/memories/expected.json` holds for each file the weights beside which it was saved, the protected part of
a given vector, and the weights after four more steps.
"""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import sketchogd as so
from sketchogd import storage

FOLDER = Path(__file__).parents[1] / "fixtures" / "memories"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())

RULES = {
    "layers-pull": so.LayerMemory(4, rule=so.Pull(), curvature="positions"),
    "layers-int8": so.LayerMemory(
        3, rule=so.Pull(strength=4.0, damping=0.1, anchor_dtype="int8"), curvature="positions"
    ),
    "layers-ridge": so.LayerMemory(4, rule=so.Shrink(0.1), curvature="positions"),
    "layers-gpm": so.LayerMemory(5, rule=so.Shrink(0.0, energy=0.95), outputs=False, curvature="positions"),
    "gradients-product": so.GradientMemory(so.ProductSketch(6), rule=so.Project()),
    "gradients-pull": so.GradientMemory(so.ProductSketch(5), blocks=2, rule=so.Pull(3.0)),
}
"""The same memories in today's words; the others have no rule of their own."""


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.out = nn.Embedding(7, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, tokens):
        return self.out(self.norm(self.embed(tokens)).mean(1))


def batch(kind, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(24, 6, generator=g) if kind == "mlp" else torch.randint(0, 7, (24, 4), generator=g)
    return x, torch.randint(0, 3, (24,), generator=g)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_old_file_loads_and_goes_on(name):
    known = EXPECTED[name]
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)) if known["model"] == "mlp" else Tokens()
    weights = torch.tensor(known["weights"])
    vector_to_parameters(weights.clone(), model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    protection = so.protect(model, optimizer, memory=so.ProductSketch(2), every=2)
    protection.load(FOLDER / f"{name}.safetensors")
    memory = protection.memory
    assert (memory.settings(), memory.examples, memory.nbytes) == (
        known["settings"],
        known["examples"],
        known["nbytes"],
    )
    if name in RULES:
        assert memory.rule == RULES[name].rule
        assert memory.settings() == RULES[name].settings()
    if memory.rule.anchor is None:  # of a pull the part depends on how far steps went
        part = protection.projector.protected_part_(torch.linspace(-1, 1, len(weights)))
        torch.testing.assert_close(part, torch.tensor(known["protected"]), rtol=1e-4, atol=1e-5)
    for i in range(4):
        x, y = batch(known["model"], 500 + i)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    protection.settle()
    after = parameters_to_vector(model.parameters()).detach()
    torch.testing.assert_close(after, torch.tensor(known["continued"]), rtol=1e-4, atol=1e-5)
    assert (after - weights).abs().max() > 1e-4


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_saved_today_has_the_same_form(name, tmp_path):
    """A file that is loaded and saved again has the same settings and tensors, so that version 0.1.0 reads it."""
    known = EXPECTED[name]
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)) if known["model"] == "mlp" else Tokens()
    protection = so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=so.ProductSketch(2), every=2)
    protection.load(FOLDER / f"{name}.safetensors")
    protection.save(tmp_path / "again.safetensors")
    (meta, tensors), (old_meta, old_tensors) = (
        storage.read(path) for path in (tmp_path / "again.safetensors", FOLDER / f"{name}.safetensors")
    )
    assert all(isinstance(number, float) for number in meta.pop("weights"))  # which files of today have
    assert meta == old_meta
    assert tensors.keys() == old_tensors.keys()
    for key, t in old_tensors.items():
        torch.testing.assert_close(tensors[key], t, rtol=1e-5, atol=1e-6)
