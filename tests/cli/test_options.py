"""What commands are given: help at any width, completion, and mistakes that are told before anything is done."""

import importlib.util
import itertools
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import sketchogd as so
from sketchogd.cli import app
from sketchogd.cli.options import devices
from sketchogd.lab.methods import KINDS, Setup, build, method
from sketchogd.lab.models import mlp
from sketchogd.lab.runs import grid
from sketchogd.lab.runs.config import default_method
from sketchogd.lab.streams import BENCHMARKS
from sketchogd.paper import presets
from tests.cli.test_cli import call

COMMANDS = [(), *[(command.name or command.callback.__name__,) for command in app.registered_commands]]


@pytest.mark.parametrize("width", [44, 80, 120])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words) or "app")
def test_the_help_fits_and_flags_have_no_types(command: tuple[str, ...], width: int, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = call(*command, "--help").stdout
    assert max(map(len, text.splitlines())) <= width
    assert not re.search(r"<\w+>|…|[│╭]", text)
    assert "{" not in text.splitlines()[0]


def test_every_option_says_what_it_is_for(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "44")
    for command in COMMANDS[1:]:
        lines = call(*command, "-h").stdout.splitlines()
        for line, after in itertools.pairwise(lines):
            if re.match(r"  -", line):
                assert after.startswith("      "), line


def completed(words: str, last: str = "") -> list[str]:
    """What a shell offers for the word `last` after these words."""
    line = f"sketchogd {words} {last}".rstrip() + ("" if last else " ")
    environment = {"_SKETCHOGD_COMPLETE": "complete_bash", "COMP_WORDS": line}
    environment["COMP_CWORD"] = str(len(words.split()) + 1)
    found = CliRunner().invoke(app, [], env=environment, prog_name="sketchogd")
    return found.output.split()


def test_shells_complete_benchmarks_methods_presets_and_options() -> None:
    assert completed("run") == list(BENCHMARKS)
    assert completed("run", "spl") == ["split-mnist", "split-cifar100"]
    assert set(completed("run split-mnist")) == set(KINDS)
    assert completed("run split-mnist", "layer") == ["layer-memory", "layer-sketch"]
    assert completed("run split-mnist ewc --option", "s") == ["strength=", "samples="]
    assert completed("reproduce") == list(presets.PRESETS)
    assert completed("reproduce table1 --methods", "sgd,og") == ["sgd,ogd"]
    assert completed("reproduce table1 --benchmarks", "split-mnist,split") == ["split-mnist,split-cifar100"]
    assert completed("run split-mnist sgd --optimizer", "ad") == ["adam", "adamw"]
    assert completed("data --download", "c") == ["cifar100", "clinc150"]
    assert "cpu" in completed("run split-mnist sgd --device")
    assert "protect-check" in completed("", "pro")


def test_the_command_line_and_python_have_one_strength() -> None:
    """`run` takes the settings of `method`; and `layer-memory` is the memory of `so.LayerMemory` and of budgets."""
    for name in KINDS:
        assert default_method(name, "split-mnist", tuned=False) == method(name)
    model = mlp(16, (8,), 3)
    given = Setup(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda x, y, head: x.sum(), 2, 80)
    memory = build(method("layer-memory"), given).protection.memory
    assert memory.rule == so.LayerMemory(200).rule
    assert memory.settings() == so.LayerMemory(200, seed=memory.seed).settings()
    model = mlp()
    chosen = so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), budget="400%").memory
    assert chosen.rule == memory.rule, "budgets have that strength too"


def test_run_takes_tuned_settings_only_where_asked(tmp_path: Path, monkeypatch) -> None:
    seen = []

    def stop(configs, *_, **__):
        seen.extend(configs)
        raise ValueError("enough")

    monkeypatch.setattr(grid, "run_grid", stop)
    for words in ((), ("--tuned",)):
        call("run", "split-mnist", "layer-sketch", *words, "--n-train", 40, "--n-test", 40, "--out", tmp_path, code=2)
    assert [config.method.options["strength"] for config in seen] == [None, 4.0]


def refused(*words: object) -> str:
    """The line that a command ends with that cannot be carried out; nothing is on standard output."""
    result = call(*words, code=2)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


SPLIT = ("run", "split-mnist")
FEW = ("--tasks", 2, "--n-train", 60, "--n-test", 40)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ((*SPLIT, "sgd", "--optimizer", "adamm"), "did you mean adam"),
        ((*SPLIT, "sketchogd", *FEW, "--budget", "1kB"), "raise it"),
        ((*SPLIT, "layer-memory", *FEW, "--budget", "100"), "the smallest memory takes"),
        ((*SPLIT, "sketchogd-1", *FEW, "-o", "rank=abc"), "sketchogd-1,rank=abc: "),
        ((*SPLIT, "sketchogd-1", *FEW, "-o", "rank=-3"), "rank must be a positive integer"),
        ((*SPLIT, "sgd", "--tasks", 9), "at most 5 tasks"),
        ((*SPLIT, "sgd", "--n-train", 10**6), "are asked for"),
        ((*SPLIT, "sgd", "--lr", -1), "learning rate"),
        ((*SPLIT, "sgd", "--validation", 2), "held out"),
        ((*SPLIT, "sgd", "--json", "--format", "csv"), "one of them"),
        ((*SPLIT, "sgd", "--plugin", "nowhere.py"), "no such Python file"),
        ((*SPLIT, "sgd", "--plugin", "no_such_module"), "no_such_module"),
        (("run", "split-cifar100", "sgd"), "sketchogd data --download cifar100 --folder FOLDER"),
        (("reproduce", "table1"), "--benchmarks rotated-mnist,permuted-mnist,split-mnist"),
        (("reproduce", "equal-bytes", "--budget", "1kB", "--benchmarks", "split-mnist"), "bytes"),
    ],
)
def test_what_cannot_be_carried_out_is_told_before_any_table(words, hint, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("SKETCHOGD_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert hint in refused(*words)
    assert list(tmp_path.iterdir()) == [], "nothing was started"


def test_cuda_without_cuda_says_to_use_the_cpu(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys.modules["sketchogd.cli.options.devices"], "_usable", lambda name: name == "cpu")
    for command in ((*SPLIT, "sgd"), ("reproduce", "table1"), ("demo",), ("bench",)):
        assert "use --device cpu" in refused(*command, "--device", "cuda")
    with pytest.raises(ValueError, match=r"cuda:1: torch .* use --device cpu"):
        devices("cpu,cuda:1")


def test_figures_without_matplotlib_are_refused_first(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    line = refused("report", tmp_path, "--figures", tmp_path / "figures")
    assert "pip install 'sketchogd[lab]'" in line


def test_what_is_finished_needs_no_data(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("SKETCHOGD_DATA", raising=False)
    words = (*SPLIT, "sgd", *FEW, "--epochs", 1, "--out", tmp_path)
    call(*words)
    monkeypatch.setattr("sketchogd.lab.runs.possible.datasets.missing", lambda *_: "gone")
    again = call(*words, "--json")
    assert len(json.loads(again.stdout)) == 1
    assert "1 of 1 runs are finished" in again.stderr
    assert "--download" in refused(*words[:-1], tmp_path / "other")


def test_json_is_a_flag_of_every_command_that_prints_a_table() -> None:
    for command in COMMANDS[1:]:
        text = " ".join(call(*command, "--help").stdout.split())
        assert "--json Print JSON on standard output" in text, command
