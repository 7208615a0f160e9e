"""The benchmark's own parts: verdicts, clocks, the literal algorithm, fits. No times are asserted."""

import json
import subprocess
import sys

import pytest
import torch

import sketchogd as so
from sketchogd.lab import speed
from sketchogd.lab.models import mlp
from sketchogd.lab.speed import clock, literal, scale
from sketchogd.lab.speed.ratios import Ratio

CPU = torch.device("cpu")


def test_a_failed_measurement_is_not_met_and_is_valid_json():
    failed = Ratio("x", float("nan"), 1.0, at_least=False)
    assert not failed.met
    assert json.loads(json.dumps(failed.as_dict(), allow_nan=False))["value"] is None


def test_the_fastest_turn_counts(monkeypatch):
    times = iter([0.0, 0.0, 3.0, 10.0, 15.0, 20.0, 20.5, 30.0, 34.0])  # the end, then start and stop of each turn
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(times))
    calls = []
    found = clock.fastest({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, CPU, seconds=9.0, most=2)
    assert found == {"a": 0.5, "b": 4.0}
    assert calls == ["a", "b"] * 3  # one turn each is not counted


def test_memory_at_the_worst_moment():
    found = clock.peak_bytes(lambda: torch.ones(10_000_000).sum(), CPU)
    assert found != found or 30e6 < found < 90e6


def test_the_literal_algorithm_does_what_the_library_does():
    """The same gradients, the same span from the same draws, the same projected step."""
    model = mlp(20, (6,), 3).double()
    x, y = torch.randn(5, 20).double(), [0, 1, 2, 1, 0]
    G = torch.stack([literal.gradient(model, row, label) for row, label in zip(x, y, strict=True)])
    assert torch.allclose(G, so.per_example_gradients(model, x, torch.tensor(y)))

    Y = torch.zeros(G.shape[1], 5, dtype=torch.float64)
    for g in G:
        literal.update_sketch(Y, g)
    B = literal.basis(Y)
    sketch = so.GradientSketch(5).bind(G.shape[1], torch.float64)
    sketch.observe(G)
    ours = sketch.basis()
    assert torch.allclose(B @ B.T, ours.T @ ours, atol=1e-9)

    before = torch.cat([w.detach().flatten().clone() for w in model.parameters()])
    literal.step(model, model(x).square().sum(), 0.1, B)
    moved = torch.cat([w.detach().flatten() for w in model.parameters()]) - before
    assert moved.norm() > 0
    assert (ours @ moved).norm() < 1e-9 * moved.norm()


def test_exponents_are_those_of_the_points():
    points = [
        scale.Point(varied, 4 * n, 100 * n, 10 * n, remember=0.1 * n, basis=0.01 * n**2, nbytes=50.0 * n)
        for varied in ("rank", "p", "gradients")
        for n in (1, 2, 4)
    ]
    found = {ratio.name: ratio for ratio in scale.exponents(points)}
    assert found["time of remembering over p"].value == pytest.approx(1.0)
    assert found["time of the basis over rank"].met
    assert not found["time of the basis over p"].met  # 2 is too much there
    assert "time of the basis over gradients" not in found


def test_scaled_networks_have_about_the_parameters_asked_for():
    assert sum(w.numel() for w in scale.network(50_000, CPU).parameters()) == pytest.approx(50_000, rel=0.02)


def test_one_group_that_fails_leaves_the_others(monkeypatch):
    def broken(setting):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(speed, "GROUPS", {"bad": broken, "good": lambda setting: [Ratio("fine", 2.0, 1.0)]})
    monkeypatch.setattr(speed, "MODULES", ())
    found = speed.measure("cpu", quick=True)
    assert [ratio.met for ratio in found] == [False, True]
    assert "no such luck" in found[0].unit_note
    with pytest.raises(ValueError, match="no group 'ugly'; there are bad, good"):
        speed.measure("cpu", only="ugly")


def test_the_module_runs_without_the_command_line_libraries(tmp_path):
    code = (
        "import sys, runpy\n"
        "sys.modules.update(dict.fromkeys(('typer', 'rich', 'matplotlib')))\n"
        f"sys.argv = ['speed', '--quick', '--only', 'project', '--json', {str(tmp_path / 'out.json')!r}]\n"
        "runpy.run_module('sketchogd.lab.speed', run_name='__main__')"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    written = json.loads((tmp_path / "out.json").read_text())
    assert [ratio["name"] for ratio in written["ratios"]] == [
        "projection, p = 113,610",
        "projection with a bfloat16 basis, p = 113,610",
    ]
    assert written["machine"]["torch"] == torch.__version__
    assert "projection" in found.stdout
