"""Memories that were trained apart, merged without any cluster: in Python, and with `sketchogd merge`."""

import copy

import pytest
import torch
from typer.testing import CliRunner

import sketchogd as so
from sketchogd.cli import app

from .. import models
from . import cases

MERGEABLE = {
    "product": lambda part: so.ProductSketch(12),
    "symmetric": lambda part: so.SymmetricSketch(6, 8),
    "gradient": lambda part: so.GradientSketch(12, seed=part),
    "all": lambda part: so.AllRows(),
    "frequent-directions": lambda part: so.FrequentDirections(40, 3),
    "pulled": lambda part: so.GradientMemory(so.ProductSketch(12), strength=3.0),
    "layer": lambda part: so.LayerSketch(rank=5, ridge=0.05),
    "layer-anchored": lambda part: so.LayerSketch(rank=5),
}


def remembering(memory, *tasks, net=None):
    net = net or cases.model()
    protection = so.protect(net, torch.optim.SGD(net.parameters(), lr=0.1), memory=memory)
    for task in tasks:
        protection.remember([cases.examples(task)])
    return protection


def parts(protection):
    return torch.stack([protection.projector.protected_part_(v) for v in cases.probes(protection.parameters.p)])


def files(tmp_path, *protections):
    paths = [tmp_path / f"{i}.safetensors" for i in range(len(protections))]
    for path, protection in zip(paths, protections, strict=True):
        protection.save(path)
    return [str(path) for path in paths]


def merge(tmp_path, paths):
    target = tmp_path / "merged.safetensors"
    result = CliRunner().invoke(app, ["merge", *paths, "-o", str(target)])
    return target, result


@pytest.mark.parametrize("name", MERGEABLE)
def test_merged_memories_protect_what_each_remembers(name, tmp_path):
    make = MERGEABLE[name]
    a, b = (remembering(make(part), part) for part in (1, 2))
    path, result = merge(tmp_path, files(tmp_path, a, b))
    assert result.exit_code == 0, result.output
    loaded = remembering(make(1))
    loaded.load(path)
    assert loaded.memory.examples == 48
    if name == "gradient":
        expected = a.memory.sketch._opened_rows() + b.memory.sketch._opened_rows()
        torch.testing.assert_close(loaded.memory.sketch._opened_rows(), expected)
        whole = parts(loaded)
    else:
        whole = parts(remembering(make(1), 1, 2))
        torch.testing.assert_close(parts(loaded), whole, rtol=1e-6, atol=1e-8)
    before = parts(a)
    a.merge(b)  # the projector in use changes with it
    torch.testing.assert_close(parts(a), whole, rtol=1e-6, atol=1e-8)
    assert not torch.allclose(before, whole, atol=1e-3)
    c = remembering(make(1), 1)
    c.merge(tmp_path / "1.safetensors")
    torch.testing.assert_close(parts(c), whole, rtol=1e-6, atol=1e-8)


def test_three_files_and_token_counts(tmp_path, monkeypatch):
    monkeypatch.setattr("sketchogd.model.layers.FEW", 0)  # an embedding of few rows has no counts

    def transformer(*seeds):
        net = models.make("transformer")[0]
        protection = so.protect(net, torch.optim.SGD(net.parameters(), lr=0.1), memory=so.LayerSketch(rank=8))
        protection.remember([models.make("transformer", seed)[1:] for seed in seeds])
        return protection

    path, result = merge(tmp_path, files(tmp_path, *(transformer(seed) for seed in (1, 2, 3))))
    assert result.exit_code == 0, result.output
    loaded, whole = transformer(1), transformer(1, 2, 3)
    loaded.load(path)
    assert torch.equal(loaded.memory.factors["embedding"].counts, whole.memory.factors["embedding"].counts)
    for (name, mine), (_, theirs) in zip(loaded.memory.sketches(), whole.memory.sketches(), strict=True):
        assert (mine.count, name) == (theirs.count, name)
        if name.startswith(
            "rest"
        ):  # its random combinations of logits follow the number of the example in its own stream
            continue
        assert mine.energy == pytest.approx(theirs.energy, rel=1e-5), name


REFUSED = {
    "draws of one seed": (so.GradientSketch(12, seed=1), so.GradientSketch(12, seed=1), "independent"),
    "other test matrix": (so.ProductSketch(12, seed=1), so.ProductSketch(12, seed=2), "same test matrix"),
    "other rank": (so.SymmetricSketch(6, 8), so.SymmetricSketch(6, 9), "same test matrix"),
    "other kind of sketch": (so.ProductSketch(12), so.AllRows(), "cannot merge"),
    "other kind of memory": (so.ProductSketch(12), so.LayerSketch(rank=5), "kind"),
    "other power": (so.ProductSketch(12), so.GradientMemory(so.ProductSketch(12), power=1.0), "power"),
    "other layer settings": (so.LayerSketch(rank=5), so.LayerSketch(rank=5, ridge=0.1), "settings"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_together_is_refused_with_the_reason(case, tmp_path):
    one, other, reason = REFUSED[case]
    a, b = (remembering(copy.deepcopy(memory), task) for task, memory in ((1, one), (2, other)))
    path, result = merge(tmp_path, files(tmp_path, a, b))
    assert result.exit_code == 2
    assert reason in " ".join(result.output.split()), result.output
    assert not path.exists()
    before = parts(a)
    with pytest.raises(ValueError, match=reason):
        a.merge(b)
    assert torch.equal(parts(a), before)


def test_memories_of_other_models_are_refused(tmp_path):
    net = torch.nn.Linear(6, 3).to(cases.DTYPE)
    a, b = remembering(so.ProductSketch(12), 1), remembering(so.ProductSketch(12), 2, net=net)
    with pytest.raises(ValueError, match="different models"):
        a.merge(b)
    _, result = merge(tmp_path, files(tmp_path, a, b))
    assert result.exit_code == 2
    assert "different models" in " ".join(result.output.split())
