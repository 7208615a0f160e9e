"""The benchmark's own parts: verdicts, clocks, the literal algorithm, fits, commands. No times are asserted."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import sketchogd as so
from sketchogd.cli import app
from sketchogd.lab import speed
from sketchogd.lab.models import mlp
from sketchogd.lab.speed import literal, scale, training, turns
from sketchogd.lab.speed.peak import peak_bytes
from sketchogd.lab.speed.ratios import Ratio

CPU = torch.device("cpu")
SCALE = Path(__file__).parents[3] / "benchmarks" / "scale.py"


def test_a_failed_measurement_is_not_met_and_is_valid_json():
    failed = Ratio("x", float("nan"), 1.0, at_least=False)
    assert not failed.met
    assert json.loads(json.dumps(failed.as_dict(), allow_nan=False))["value"] is None


def test_without_a_target_there_is_no_verdict():
    found = json.loads(json.dumps(Ratio("x", 2.0, None).as_dict(), allow_nan=False))
    assert (found["value"], found["target"], found["met"]) == (2.0, None, None)


def test_on_a_gpu_the_targets_of_the_cpu_do_not_count(monkeypatch):
    groups = {name: lambda setting: [Ratio("x", 2.0, 1.0, at_least=False)] for name in ("basis", "project")}
    monkeypatch.setattr(speed, "GROUPS", groups)
    monkeypatch.setattr(speed, "MODULES", ())
    assert [ratio.met for ratio in speed.measure("cpu")] == [False, False]
    assert [ratio.met for ratio in speed.measure("cuda")] == [None, False]
    assert [ratio.target for ratio in speed.measure("cuda")] == [None, 1.0]


def test_groups_without_targets_on_a_gpu_exist():
    assert set(speed.TARGETS) <= set(speed.groups())


def test_side_by_side_has_a_target_on_a_cpu_and_the_graph_has_one_on_a_gpu(monkeypatch):
    monkeypatch.setattr(training, "step", lambda *args: 1.0)
    monkeypatch.setattr(training, "single_step", lambda *args: 1.0)
    assert [ratio.target for ratio in training.measure("cpu", True)] == [3.0]
    assert [ratio.target for ratio in training.measure("cuda", True)] == [None, 0.15]


def test_the_command_prints_a_dash_for_no_verdict(monkeypatch, tmp_path):
    found = [Ratio("good", 2.0, 1.0), Ratio("bad", 2.0, 1.0, at_least=False), Ratio("neither", 2.0, None)]
    monkeypatch.setattr(speed, "measure", lambda *args, **kwargs: found)
    printed = CliRunner().invoke(app, ["bench", "--save", str(tmp_path / "out.json")]).stdout
    rows = {words[0]: words[1:] for line in printed.splitlines() if (words := line.split())}
    assert rows["good"] == ["2", "≥", "1", "yes"]
    assert rows["bad"] == ["2", "≤", "1", "no"]
    assert rows["neither"] == ["2", "–", "–"]
    saved = json.loads((tmp_path / "out.json").read_text())
    assert [ratio["met"] for ratio in saved["ratios"]] == [True, False, None]
    assert json.loads(CliRunner().invoke(app, ["bench", "--json"]).stdout) == saved


def test_the_fastest_turn_counts(monkeypatch):
    times = iter([0.0, 0.0, 3.0, 10.0, 15.0, 20.0, 20.5, 30.0, 34.0])  # the end, then start and stop of each turn
    monkeypatch.setattr(turns.time, "perf_counter", lambda: next(times))
    calls = []
    found = turns.fastest({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, CPU, seconds=9.0, most=2)
    assert found == {"a": 0.5, "b": 4.0}
    assert calls == ["a", "b"] * 3  # one turn each is not counted


def test_memory_at_the_worst_moment():
    kept = [bytearray(50_000) for _ in range(2_000)]  # freed memory that stays in the heap must not hide the work
    del kept[:-1]
    found = peak_bytes(lambda: torch.ones(10_000_000).sum(), CPU)
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


POINTS = [
    scale.Point(varied, 4 * n, 100 * n, 10 * n, remember=0.1 * n, basis=0.01 * n**2, nbytes=50.0 * n)
    for varied in ("rank", "p", "gradients")
    for n in (1, 2, 4)
]


def test_exponents_are_those_of_the_points():
    found = {ratio.name: ratio for ratio in scale.exponents(POINTS)}
    assert found["time of remembering over p"].value == pytest.approx(1.0)
    assert found["time of the basis over rank"].met
    assert not found["time of the basis over p"].met  # 2 is too much there
    assert "time of the basis over gradients" not in found


def run_scale(*options, missing=()):
    """benchmarks/scale.py in a process where some libraries are missing."""
    code = "import runpy, sys\n"
    code += f"sys.modules.update(dict.fromkeys({missing!r}))\n"
    code += f"sys.argv = ['scale.py', *{[str(option) for option in options]!r}]\n"
    code += f"runpy.run_path({str(SCALE)!r}, run_name='__main__')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def test_a_figure_is_drawn_from_points_of_another_machine(tmp_path):
    (tmp_path / "points.json").write_text(json.dumps({"points": [asdict(point) for point in POINTS]}))
    found = run_scale("--from-json", tmp_path / "points.json", "--figure", tmp_path / "figure.png")
    assert (found.returncode, found.stdout) == (0, "")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_figure_without_matplotlib_is_refused_before_measuring(tmp_path):
    found = run_scale("--quick", "--figure", tmp_path / "figure.png", missing=("matplotlib",))
    assert found.returncode == 2
    assert found.stdout == ""
    assert "--figure needs matplotlib" in found.stderr
    assert "--from-json needs --figure" in run_scale("--from-json", "points.json").stderr


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
        f"sys.argv = ['speed', '--quick', '--only', 'project', '--save', {str(tmp_path / 'out.json')!r}]\n"
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
