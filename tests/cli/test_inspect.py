"""`sketchogd inspect`: what a file alone says is what the protection that wrote it said."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import sketchogd as so
from sketchogd import storage
from sketchogd.cli.inspect import in_words
from tests.cli.test_cli import call


def saved(memory: so.Memory | so.Sketch, path: Path, examples: int = 40) -> so.Protection:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    protection = so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=memory)
    if examples:
        protection.remember([(torch.randn(examples, 6), torch.randint(0, 3, (examples,)))])
    protection.save(path)
    return protection


def words(text: str) -> str:
    """Output without the line breaks of a narrow terminal."""
    return " ".join(text.split())


@pytest.mark.parametrize(
    "sketch", [so.ProductSketch(5), so.GradientSketch(5), so.AllRows(), so.SecondMoment(), so.SymmetricSketch(3, 4)]
)
def test_a_gradient_memory_is_diagnosed_from_its_file(sketch: so.Sketch, tmp_path: Path) -> None:
    path = tmp_path / "memory"
    own = saved(sketch, path).diagnostics()["sketch"]
    found = json.loads(call("inspect", path, "--json").stdout)["diagnostics"]["sketch"]
    assert found.pop("values") == pytest.approx(own.pop("values"))
    assert found == pytest.approx(own)
    assert in_words(own) in words(call("inspect", path).output)


def test_the_advice_is_for_the_same_bytes_and_the_stored_values(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    protection = saved(so.ProductSketch(5), path)
    found = json.loads(call("inspect", path, "--json").stdout)["advice"]
    assert (found["kind"], found["rank"]) == ("product", 5)
    assert protection.diagnostics()["sketch"]["left_out"] > 0
    assert 0 < found["expected_error"] <= found["bound"] < 1
    assert protection.memory.sketch.fresh(rank=found["rank"]).cost(83) <= protection.memory.sketch.nbytes
    assert words(found["reason"]) in words(call("inspect", path).output)


def test_no_advice_from_values_that_do_not_show_what_they_lack(tmp_path: Path) -> None:
    saved(so.GradientSketch(5), tmp_path / "memory")
    assert json.loads(call("inspect", tmp_path / "memory", "--json").stdout)["advice"] is None
    assert "at the same bytes" not in words(call("inspect", tmp_path / "memory").output)


def test_a_layer_memory_has_a_line_for_each_sketch_and_no_advice(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    own = saved(so.LayerSketch(rank=4), path).diagnostics()["sketches"]
    found = json.loads(call("inspect", path, "--json").stdout)
    assert set(found["diagnostics"]) == set(own) == {f"{i}.{part}" for i in (0, 2) for part in ("inputs", "outputs")}
    assert found["advice"] is None
    shown = words(call("inspect", path).output)
    assert all(f"{name}: {in_words(each)}" in shown for name, each in own.items())


def test_an_empty_memory_is_inspected_too(tmp_path: Path) -> None:
    saved(so.ProductSketch(5), tmp_path / "memory", examples=0)
    assert "holds 0 % of the energy" in words(call("inspect", tmp_path / "memory").output)
    assert json.loads(call("inspect", tmp_path / "memory", "--json").stdout)["advice"] is None


def test_an_unknown_sketch_is_named(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    saved(so.ProductSketch(5), path)
    meta, tensors = storage.read(path)
    meta["sketch"]["sketch"] = "crystal"
    storage.write(path, meta, tensors)
    assert "crystal" in call("inspect", path, code=2).stderr
