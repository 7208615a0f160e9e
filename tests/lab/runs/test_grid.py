"""A grid: skips, resumes, records failures and goes on, in one process or in several."""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sketchogd.lab import records
from sketchogd.lab.methods import KINDS, method
from sketchogd.lab.runs import grid, measure, train
from sketchogd.lab.runs.config import RunConfig, Training

SMALL = {"tasks": 2, "n_train": 60, "n_test": 40}


def configs(*settings) -> list[RunConfig]:
    return [RunConfig("split-mnist", each, Training(epochs=1, lr=0.01), **SMALL) for each in settings]


def outcomes(found: list[grid.Outcome]) -> list[str]:
    return [outcome.status for outcome in found]


def test_a_grid_skips_what_is_finished_and_records_failures(tmp_path: Path) -> None:
    runs = configs(method("sgd"), method("sketchogd", budget=1000), method("layer-sketch", rank=20))
    news: list[grid.Update] = []
    first = grid.run_grid(runs, tmp_path, listener=news.append)
    assert outcomes(first) == ["finished", "failed", "finished"]
    assert "copy of the weights" in first[1].message
    assert records.load(tmp_path / runs[1].name).status == "failed"
    assert {update.run for update in news} == {run.name for run in runs}
    assert all(0 <= update.share <= 1 for update in news)
    before = (tmp_path / runs[0].name / "run.json").read_bytes()
    assert outcomes(grid.run_grid(runs, tmp_path)) == ["skipped", "failed", "skipped"]
    assert (tmp_path / runs[0].name / "run.json").read_bytes() == before


def test_a_failure_before_the_start_is_recorded_too(tmp_path: Path) -> None:
    run = RunConfig("split-cifar100", method("sgd"), Training(epochs=1), tasks=1)
    (found,) = grid.run_grid([run], tmp_path, data_folder=tmp_path / "nothing")
    assert found.status == "failed"
    assert "cifar100" in records.load(tmp_path / run.name).record["error"]["message"]


def test_a_run_with_other_settings_is_not_overwritten(tmp_path: Path) -> None:
    (run,) = configs(method("sgd"))
    grid.run_grid([run], tmp_path)
    with pytest.raises(records.RecordError, match="other settings"):
        grid.run_grid([replace(run, training=Training(epochs=2))], tmp_path)
    with pytest.raises(ValueError, match="different names"):
        grid.run_grid([run, run], tmp_path)


def test_ctrl_c_stops_the_grid_and_the_same_call_goes_on(tmp_path: Path) -> None:
    runs = configs(method("sgd"), method("layer-sketch", rank=20))
    whole = grid.run_grid(runs, tmp_path / "whole")

    def stop(update: grid.Update) -> None:
        if update.run == runs[1].name and update.share >= 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grid.run_grid(runs, tmp_path / "cut", listener=stop)
    plan = records.plan(tmp_path / "cut", {run.name: run.record() for run in runs})
    assert plan[records.State.FINISHED] == [runs[0].name]
    assert plan[records.State.INTERRUPTED] == [runs[1].name]
    assert outcomes(grid.run_grid(runs, tmp_path / "cut")) == ["skipped", "finished"]
    assert outcomes(whole) == ["finished", "finished"]
    for run in runs:
        a, b = (records.load(tmp_path / place / run.name) for place in ("whole", "cut"))
        np.testing.assert_array_equal(a.accuracy, b.accuracy)


def test_processes_give_the_same_numbers_and_a_killed_one_takes_no_other_along(tmp_path: Path) -> None:
    runs = configs(method("sgd"), method("layer-sketch", rank=20), method("sketchogd", budget=1000))
    news: list[grid.Update] = []
    found = grid.run_grid(runs, tmp_path / "two", jobs=2, listener=news.append)
    assert outcomes(found) == ["finished", "finished", "failed"]
    assert {update.run for update in news} == {run.name for run in runs}
    alone = train.run(runs[0], tmp_path / "alone")
    np.testing.assert_allclose(records.load(tmp_path / "two" / runs[0].name).accuracy, alone.accuracy, atol=0.05)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_process_that_dies_is_a_failure_of_its_run_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = configs(method("sgd"), method("si"))
    killed = []

    def kill_first(update: grid.Update) -> None:
        if update.run == runs[0].name and not killed:
            import multiprocessing

            victim = next(p for p in multiprocessing.active_children() if p.name == victims[0])
            killed.append(victim.pid)
            os.kill(victim.pid, signal.SIGKILL)

    victims: list[str] = []
    import multiprocessing.context

    start = multiprocessing.context.SpawnProcess.start

    def noted(self) -> None:
        start(self)
        victims.append(self.name)

    monkeypatch.setattr(multiprocessing.context.SpawnProcess, "start", noted)
    slow = [replace(runs[0], training=Training(epochs=200, lr=0.01)), runs[1]]
    found = grid.run_grid(slow, tmp_path, jobs=2, listener=kill_first)
    assert outcomes(found) == ["failed", "finished"]
    assert "code -9" in found[0].message


PLUGIN = """
import numpy as np
from sketchogd.lab.methods import register
from sketchogd.lab.methods.protected import Nothing
from sketchogd.lab.runs.measure import register_measurement


class Own(Nothing):
    def measurements(self):
        return {"own": np.arange(3)}


@register("own", "plain training under another name")
def own(settings, setup):
    return Own()


@register_measurement
def measured(learner):
    return {"twice": 2 * np.arange(3)} if isinstance(learner, Own) else {}
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module on PYTHONPATH that registers the method "own" and a measurement."""
    monkeypatch.setattr(measure, "MEASUREMENTS", list(measure.MEASUREMENTS))
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "plugin_of_a_test.py").write_text(PLUGIN)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'modules'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    yield "plugin_of_a_test"
    KINDS.pop("own", None)
    sys.modules.pop("plugin_of_a_test", None)


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_a_plugin_registers_exists_in_every_process(tmp_path: Path, plugin: str, jobs: int) -> None:
    with pytest.raises(ImportError, match="no_such_plugin"):
        grid.run_grid([], tmp_path, plugins=["no_such_plugin"])
    __import__(plugin)  # as a script does that registers methods and makes configs of them
    runs = configs(method("own"), method("sgd"))
    assert outcomes(grid.run_grid(runs, tmp_path / "runs", jobs=jobs, plugins=[plugin])) == ["finished"] * 2
    found = records.load(tmp_path / "runs" / runs[0].name)
    assert {key: array.tolist() for key, array in found.spectra().items()} == {"own": [0, 1, 2], "twice": [0, 2, 4]}
    assert found.accuracy.tolist() == records.load(tmp_path / "runs" / runs[1].name).accuracy.tolist()


def test_without_plugins_other_processes_do_not_know_a_script_s_methods(tmp_path: Path, plugin: str) -> None:
    __import__(plugin)
    (found,) = grid.run_grid(configs(method("own")), tmp_path / "runs", jobs=2)
    assert found.status == "failed"
    assert "own" in found.message
