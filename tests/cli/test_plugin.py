"""`--plugin FILE`: methods and streams of one's own, in this process and in others, and in reports."""

import json
import re
import sys
from pathlib import Path

import pytest

from sketchogd.cli import app
from sketchogd.lab.methods import KINDS
from sketchogd.lab.runs.plugins import load, load_file
from sketchogd.lab.streams import BENCHMARKS
from tests.cli.test_cli import call
from tests.cli.test_options import completed, refused

PLUGIN = """
import torch

from beside import CLASSES
from sketchogd.lab import Task, from_datasets, register, register_stream
from sketchogd.lab.methods.protected import Nothing


@register_stream("own-stream", title="My stream")
def own_stream(seed):
    def task(i):
        x = torch.randn(60, 5, generator=torch.Generator().manual_seed(i))
        y = (x[:, i] > 0).long() + (CLASSES - 2)
        return Task(x[:40], y[:40], x[40:], y[40:], name=f"axis {i}", classes=CLASSES)

    return from_datasets([task(i) for i in range(3)], name="axes")


@register("own-method", "plain training under another name", title="Mine", flavour="plain")
def own_method(settings, setup):
    return Nothing()
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file that registers a method and a stream, and that imports another file beside it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside.py").write_text("CLASSES = 2\n")
    (tmp_path / "mine.py").write_text(PLUGIN)
    before = set(sys.modules)
    yield tmp_path / "mine.py"
    KINDS.pop("own-method", None)
    BENCHMARKS.pop("own-stream", None)
    for name in set(sys.modules) - before:
        if name.startswith(("mine_", "beside")):
            del sys.modules[name]


@pytest.mark.parametrize("jobs", [1, 2])
def test_own_methods_and_streams_run_in_every_process(plugin: Path, jobs: int, monkeypatch) -> None:
    monkeypatch.chdir(plugin.parent)  # a relative path is meant from here, in other processes too
    words = ["run", "own-stream", "own-method", "-o", "flavour=sweet", "--plugin", plugin.name, "--epochs", 2]
    words += ["--seeds", 2, "--jobs", jobs, "--tasks", 2, "--n-train", 30, "--out", "runs", "--json"]
    (row,) = json.loads(call(*words).stdout)
    assert (row["benchmark"], row["method"], row["seeds"]) == ("own-stream", "own-method,flavour=sweet", 2)
    found = json.loads(next(Path("runs").rglob("run.json")).read_text())
    assert found["config"]["n_train"] == 30
    assert found["parameters"]["protected"] == BENCHMARKS["own-stream"].parameters
    page = call("report", "runs", "--plugin", plugin.name)
    assert "own-method" in page.stdout
    assert "My stream" in Path("runs/report.html").read_text()


def test_a_plugin_is_completed_and_checked(plugin: Path) -> None:
    assert completed(f"run --plugin {plugin}", "own") == ["own-stream"]
    assert completed(f"run --plugin {plugin} own-stream own-method --option") == ["flavour="]
    known = BENCHMARKS["own-stream"]
    assert (known.tasks, known.examples, known.example_nbytes) == (3, 40, 5 * 4 + 8 + 8)
    own = ("run", "own-stream", "sgd", "--plugin", plugin, "--out", plugin.parent / "runs")
    assert "has 3 tasks; 4 are asked for" in refused(*own, "--tasks", 4)
    assert "30 examples are asked for; there are 20" in refused(*own, "--n-test", 30)


def test_the_default_network_fits_the_stream(plugin: Path) -> None:
    load([str(plugin)])
    known = BENCHMARKS["own-stream"]
    stream = known.stream(seed=0, tasks=None, n_train=None, n_test=None)
    assert known.network(stream, 0)(stream.test(0)[0]).shape == (20, 2)


def test_a_plugin_that_fails_names_its_line(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for text, hint in (("x = 1\ny = x / 0\n", "line 2: ZeroDivisionError"), ("x = (\n", "line 1: SyntaxError")):
        path = tmp_path / "bad.py"
        path.write_text(text)
        assert hint in refused("run", "split-mnist", "sgd", "--plugin", path)
    path.write_text("x = 3\n")
    assert load_file(path).x == 3, "what failed is tried again"
    path.write_text("x = 4\n")
    assert load_file(path).x == 3, "what was imported is not"


def test_names_that_are_taken_are_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, hint in (("split-mnist", "there is a benchmark 'split-mnist' already"), ("a/b", "letters, digits")):
        path = tmp_path / f"{abs(hash(name))}.py"
        path.write_text(f"from sketchogd.lab import register_stream\n@register_stream({name!r})\ndef f(seed): ...\n")
        assert hint in refused("run", "split-mnist", "sgd", "--plugin", path)


def test_the_files_of_the_documentation_work_as_they_stand(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(code)
    try:
        call("run", "axes", "plain", "--plugin", "mine.py", "--epochs", 1)
        call("protect-check", "model.py:build", "--batch", "model.py:batch")
    finally:
        KINDS.pop("plain", None)
        BENCHMARKS.pop("axes", None)


def test_the_documentation_lists_all_commands() -> None:
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `sketchogd ([\w-]+)", page, re.M)
    assert listed == [command.name or command.callback.__name__ for command in app.registered_commands]
