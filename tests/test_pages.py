"""Quickstart, recipes and others: blocks of pages run as they stand, given only the models and data that they name."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sketchogd.lab.records import load

from . import pages

TESTED = {"quickstart.md", "own.md", "recipes/gpus.md"} | {
    f"recipes/{name}.md" for name in ("loop", "amp", "heads", "streams", "resume", "merging")
}
ELSEWHERE = {f"recipes/{name}.md" for name in ("transformers", "peft", "lightning", "avalanche", "accelerate")}
"""Run by tests/integrations/test_recipes.py."""


def net(outputs=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


def batches(seed, n=128):
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(n, 16, generator=g), torch.randint(0, 4, (n,), generator=g)
    return list(zip(x.split(32), y.split(32), strict=True))


def test_every_recipe_is_run():
    there = {f"recipes/{path.name}" for path in (pages.ROOT / "docs" / "recipes").glob("*.md")} - {"recipes/README.md"}
    assert there == {page for page in TESTED | ELSEWHERE if page.startswith("recipes/")}
    assert all(pages.blocks(page) for page in there)


def quickstart():
    (program,) = pages.blocks("quickstart.md")
    return program


def test_the_quickstart_ends_with_a_protected_model_and_a_page(tmp_path, monkeypatch):
    """A tenth of the steps, which is enough to forget, and to see that the protected network forgets less."""
    monkeypatch.chdir(tmp_path)
    program = quickstart().replace("EPOCHS = 5", "EPOCHS = 1").replace(".split(32)", ".split(64)")
    assert program != quickstart()
    names = {}
    exec(compile(program, "quickstart.py", "exec"), names)
    end = {name: load(tmp_path / "quickstart-runs" / name).accuracy[-1] for name in ("plain", "protected")}
    assert np.isfinite(end["plain"]).all()
    assert end["protected"][:4].mean() > end["plain"][:4].mean() + 0.05
    assert names["protection"].ledger().nbytes <= sum(4 * p.numel() for p in names["model"].parameters())
    page = (tmp_path / "quickstart.html").read_text()
    assert "My first protected model" in page
    assert "quickstart" in page
    assert (tmp_path / "weights.pt").exists()
    assert (tmp_path / "memory.safetensors").exists()


@pytest.mark.slow
def test_the_quickstart_prints_what_its_page_says(tmp_path):
    page = (pages.ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
    out = subprocess.run(
        [sys.executable, "-c", quickstart()], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=900
    ).stdout
    scores = [float(word) for word in out.split() if word.startswith(("0.", "1."))]
    shown = page[page.index("plain      after task 1") : page.index("written: quickstart.html")]
    assert scores == pytest.approx([float(word) for word in shown.split() if word.startswith(("0.", "1."))], abs=0.1)


def test_loop():
    names = pages.run("recipes/loop.md", {"model": net(), "tasks": [batches(0), batches(1)]})
    assert names["protection"].memory.examples == 128
    assert names["protection"].pending == 0


def test_mixed_precision():
    names = pages.run("recipes/amp.md", {"model": net(), "tasks": [batches(0), batches(1)]})
    assert names["protection"].memory.examples == 256
    assert names["protection"].diagnostics()["steps"] == 12


def test_heads():
    names = pages.run("recipes/heads.md", {"tasks": [batches(0), batches(1)]})
    assert names["protection"].memory.examples == 128
    assert names["protection"].parameters.shapes[-1] == (6,)


def test_streams(capsys):
    stream = [batch for seed in range(12) for batch in batches(seed)]
    names = pages.run("recipes/streams.md", {"model": net(), "stream": stream})
    assert names["protection"].memory.examples == 2 * 32
    assert "forgetting_estimate" in capsys.readouterr().out


def test_resume(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def train(model, optimizer, task):
        for inputs, targets in task:
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()

    model = net()
    data = {"first_task": batches(0), "second_task": batches(1), "train": train, "build": net}
    names = pages.run("recipes/resume.md", {**data, "model": model})
    assert names["model"] is not model
    assert names["protection"].memory.examples == 256
    assert names["protection"].memory.tasks == 2


@pytest.mark.filterwarnings("ignore:an optimizer that is not protected")
def test_merging(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = pages.run("recipes/merging.md", {"model": net(), "first_task": batches(0), "second_task": batches(1)})
    assert names["second"].memory.examples == 256
    command = [sys.executable, "-m", "sketchogd.cli", "merge", "first.safetensors", "second.safetensors"]
    environment = {**os.environ, "PYTHONPATH": str(pages.ROOT / "src")}
    subprocess.run([*command, "-o", "both.safetensors"], check=True, capture_output=True, timeout=120, env=environment)
    names["second"].load("both.safetensors")
    assert names["second"].memory.examples == 256


def test_several_gpus(tmp_path):
    (script,) = pages.blocks("recipes/gpus.md")
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"]
    environment = {**os.environ, "PYTHONPATH": str(pages.ROOT / "src"), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=environment)
    assert found.returncode == 0, found.stderr
    # Two processes write to one pipe, and lines may begin inside of each other.
    assert found.stdout.count("128") == found.stdout.count(" examples are remembered in every process") == 2
    assert (tmp_path / "memory.safetensors").exists()


def test_own_experiments(tmp_path):
    """In a process of its own, since its method stays registered; three epochs of ten."""
    script = "\n".join(pages.blocks("own.md"))
    short = script.replace("epochs=10", "epochs=3")
    assert short != script
    environment = {**os.environ, "PYTHONPATH": str(pages.ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", short]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=environment)
    assert found.returncode == 0, found.stderr
    kept = {line.split()[0]: line.split()[2] for line in found.stdout.splitlines() if line.endswith("bytes")}
    assert kept == {"sgd": "0", "pull-back": "24,328", "layer-sketch": "48,192", "replay": "49,344"}
    assert (tmp_path / "own.html").exists()
    assert (tmp_path / "own-figures" / "patterns-pareto.pdf").exists()


def test_the_tables_of_budget_and_strength_are_those_of_the_runs(capsys):
    from benchmarks import tradeoff

    record = json.loads((pages.ROOT / "benchmarks/results/tradeoff-cpu.json").read_text())
    tradeoff.tables(record["runs"])
    page = (pages.ROOT / "docs/budget.md").read_text(encoding="utf-8")
    tables = capsys.readouterr().out.strip().split("\n\n")
    assert len(tables) == 2
    assert all(table in page for table in tables)
