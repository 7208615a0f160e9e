"""The command line: tables and JSON, exit codes, and errors that say what to do without a traceback."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import sketchogd as so
from sketchogd.cli import app, show
from sketchogd.cli.show import bytes_cell
from sketchogd.lab.methods import method
from sketchogd.lab.records import RunFolder
from sketchogd.lab.runs import grid
from sketchogd.lab.runs.config import RunConfig, Training
from sketchogd.paper import presets

SMALL = ["--tasks", "2", "--n-train", "60", "--n-test", "40", "--epochs", "1", "--lr", "0.01"]


def call(*arguments: object, code: int = 0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


@pytest.mark.parametrize("command", [[], ["demo"], ["run"], ["reproduce"], ["report"], ["inspect"], ["data"]])
def test_help_says_what_a_command_does(command: list[str]) -> None:
    assert "Usage" in call(*command, "--help").output
    assert call("--version").output.strip() == so.__version__


def test_run_prints_a_table_or_json(tmp_path: Path) -> None:
    first = call("run", "split-mnist", "layer-sketch", "--budget", "2MB", *SMALL, "--seeds", 2, "--out", tmp_path)
    assert "layer-sketch" in first.output
    again = call(
        "run", "split-mnist", "layer-sketch", "--budget", "2MB", *SMALL, "--seeds", 2, "--out", tmp_path, "--json"
    )
    (row,) = json.loads(again.stdout)
    assert row["seeds"] == 2
    assert 0 < row["bytes"] <= 2_000_000
    assert 0 <= row["accuracy"] <= 1
    assert row["published"] is None
    table = call("report", tmp_path, "--json")
    assert json.loads(table.stdout)[0]["method"] == "layer-sketch"
    assert (tmp_path / "report.html").exists()


def test_options_reach_the_method(tmp_path: Path) -> None:
    call("run", "split-mnist", "sketchogd-1", "-o", "rank=8", "--every", 3, *SMALL, "--out", tmp_path)
    (path,) = tmp_path.rglob("run.json")
    config = json.loads(path.read_text())["config"]
    assert (config["options"], config["every"], config["epochs"]) == ({"rank": 8}, 3, 1)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["run", "split-mnist", "sgd", "--device", "cud"], "unknown device 'cud'; did you mean cpu"),
        (["run", "split-mnist", "sgd", "--device", "cpu,cuda:99"], "cuda:99"),
        (["run", "split-mnist", "sgd", "--device", "meta"], "unknown device 'meta'"),
        (["run", "split-mnist", "sgd", "--device", ","], "names no device"),
        (["bench", "--device", "gpu"], "unknown device 'gpu'"),
        (["run", "split-mnits", "sgd"], "split-mnist"),
        (["run", "split-mnist", "sketchodg"], "sketchogd"),
        (["run", "split-mnist", "layer-sketch", "-o", "rigde=1"], "ridge"),
        (["run", "split-mnist", "layer-sketch", "-o", "ridge"], "name=value"),
        (["run", "split-mnist", "layer-sketch", "--budget", "2 pints"], "2MB"),
        (["reproduce", "table3"], "table1"),
        (["reproduce", "table1", "--budget", "2MB"], "equal-bytes"),
        (["reproduce", "table1", "--groups", "rank"], "ablations"),
        (["reproduce", "ablations", "--groups", "rnak"], "rank"),
        (["reproduce", "goals", "--methods", "sgd"], "no goal"),
        (["inspect", "nowhere.safetensors"], "nowhere"),
        (["report", "nowhere"], "nowhere"),
        (["data", "--download", "minst", "--folder", "x"], "mnist"),
    ],
)
def test_mistakes_are_explained_in_one_line(arguments: list[str], hint: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*arguments, code=2)
    assert "error: " in result.stderr
    assert hint in result.stderr.replace("\n", " ")


def test_a_failed_run_gives_exit_code_1_and_keeps_the_rest(tmp_path: Path) -> None:
    few = ["--benchmarks", "split-mnist", "--epochs", "1", "--out", tmp_path]
    monkey = pytest.MonkeyPatch()
    done = []

    def quick(configs, root, **options):
        done.extend(configs)
        return [grid.Outcome(config.name, "failed", "ValueError: too small") for config in configs]

    monkey.setattr(grid, "run_grid", quick)
    try:
        result = call(
            "reproduce", "equal-bytes", "--budget", "2MB", "--methods", "gpm,si", "--seeds", "1", *few, "--json", code=1
        )
    finally:
        monkey.undo()
    assert [config.method.budget for config in done] == [2_000_000, 2_000_000]
    assert "too small" in result.stderr
    assert json.loads(result.stdout) == []


def test_data_that_is_missing_is_named_before_anything_runs(tmp_path: Path, monkeypatch) -> None:
    def stopped(*arguments: object, **options: object) -> None:
        raise ValueError("enough")

    monkeypatch.setattr(grid, "run_grid", stopped)
    words = [
        "reproduce",
        "table1",
        "--benchmarks",
        "split-cifar100",
        "--methods",
        "sgd",
        "--seeds",
        1,
        "--out",
        tmp_path,
    ]
    result = CliRunner().invoke(app, [*map(str, words), "--data", str(tmp_path)])
    assert "sketchogd data --download cifar100" in " ".join(result.stderr.split())
    (tmp_path / "cifar100").mkdir()
    (tmp_path / "cifar100" / "cifar-100-python.tar.gz").touch()
    result = CliRunner().invoke(app, [*map(str, words), "--data", str(tmp_path)])
    assert "--download" not in result.stderr


def test_ctrl_c_says_that_nothing_is_lost(tmp_path: Path, monkeypatch) -> None:
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(grid, "run_grid", interrupted)
    assert "kept" in call("run", "split-mnist", "sgd", "--out", tmp_path, code=130).stderr


def test_inspect_shows_what_a_memory_file_holds(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    protection = so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=so.ProductSketch(3))
    protection.remember([(torch.randn(9, 4), torch.randint(0, 2, (9,)))])
    path = tmp_path / "memory.safetensors"
    protection.save(path)
    assert "9 examples, 10 protected parameters" in call("inspect", path).output
    found = json.loads(call("inspect", path, "--json").stdout)
    assert found["examples"] == 9
    assert found["nbytes"] == sum(entry["nbytes"] for entry in found["tensors"].values())
    assert len(found["leading_values"]["sketch.values"]) == 3


def test_data_lists_the_embedded_set(tmp_path: Path) -> None:
    rows = json.loads(call("data", "--folder", tmp_path, "--json").stdout)
    assert [row["name"] for row in rows if row["ready"]] == ["mnist-subset"]
    assert "mnist-subset" in call("data", "--folder", tmp_path).output


def test_bytes_are_written_for_people() -> None:
    assert [bytes_cell(n) for n in (999, 1_500, 545_000_000, 7.7e9)] == ["999 B", "1.5 kB", "545.0 MB", "7.70 GB"]


def test_bytes_on_the_host_have_a_column_of_their_own(tmp_path: Path) -> None:
    half = ["-o", "rank=8", "-o", "basis_dtype=bfloat16", "-o", "offload=cpu"]
    out = call("run", "split-mnist", "sketchogd", *half, "--validation", 0.2, *SMALL, "--out", tmp_path / "runs")
    assert " host " in out.stdout.replace("\n", " ")
    (row,) = json.loads(call("report", tmp_path / "runs", "--json").stdout)
    assert row["nbytes"] > row["host_nbytes"] > row["nbytes"] / 2
    assert row["shortened"].endswith("validation 0.2 instead of test data")
    assert "host" in call("report", tmp_path / "runs").stdout


def write_run(path: Path, config: RunConfig, accuracy: float) -> None:
    """A finished run that ends every task at `accuracy`."""
    folder = RunFolder(path / config.name)
    folder.start(config.record())
    folder.save_accuracy(np.full((5, 5), accuracy))
    folder.finish(timings={"total": 1.0}, ledger={"nbytes": 0, "entries": []})


def test_runs_are_shown_beside_the_values_of_the_paper(tmp_path: Path) -> None:
    (config,) = presets.table1(["split-mnist"], ["sgd"], seeds=1).runs
    write_run(tmp_path, config, 0.65)
    asked = ["--benchmarks", "split-mnist", "--methods", "sgd", "--seeds", 1, "--out", tmp_path]
    (row,) = json.loads(call("reproduce", "table1", *asked, "--json").stdout)
    assert (row["published"], row["difference"]) == (0.604, pytest.approx(0.046))
    (row,) = json.loads(call("report", tmp_path, "--json").stdout)
    assert (row["published"], row["difference"], row["outside"]) == (0.604, pytest.approx(0.046), True)
    shown = " ".join(call("report", tmp_path).stdout.split())
    assert "0.604 +0.046" in shown
    assert "the values published in the SketchOGD paper" in (tmp_path / "report.html").read_text()


def test_runs_of_another_protocol_are_not_compared(tmp_path: Path) -> None:
    (config,) = presets.table1(["split-mnist"], ["sgd"], seeds=1).runs
    write_run(tmp_path, replace(config, training=replace(config.training, epochs=1)), 0.65)
    asked = ["--benchmarks", "split-mnist", "--methods", "sgd", "--seeds", 1, "--epochs", 1, "--out", tmp_path]
    (row,) = json.loads(call("reproduce", "table1", *asked, "--json").stdout)
    assert (row["published"], row["difference"]) == (None, None)


def test_a_bar_counts_the_epochs_of_all_tasks() -> None:
    configs = [RunConfig("split-mnist", method("sgd"), Training(epochs=3)), RunConfig("own", method("sgd"), tasks=2)]
    with show.grid_bar(configs, quiet=True) as listener:
        listener(grid.Update(configs[0].name, 0.5, "half"))
    assert [show.epochs_of(config) for config in configs] == [15, 60]


def test_the_help_lists_the_commands_in_order() -> None:
    listed = ["demo", "run", "reproduce", "report", "protect_check", "inspect", "merge", "data", "bench"]
    assert [command.callback.__name__ for command in app.registered_commands] == listed
