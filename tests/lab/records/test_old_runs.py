"""Runs written by earlier versions: they load, count as done, stand in reports, and go on from their checkpoints.

`tests/fixtures/runs` has four run folders from before the preset was left out of digests: three finished, and one that
was interrupted in its second task.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sketchogd.lab import records
from sketchogd.lab.methods import method
from sketchogd.lab.pages import groups, report
from sketchogd.lab.records import RecordError, RunFolder, State, bundles, metrics
from sketchogd.lab.runs import grid, train
from sketchogd.lab.runs.config import RunConfig, Training
from tools.pack import pack

FIXTURES = Path(__file__).parents[2] / "fixtures" / "runs"
SMALL = {"tasks": 2, "n_train": 60, "n_test": 60}
TRAINING = Training(epochs=2, lr=0.05)
CONFIGS = {
    config.name: config
    for config in (
        RunConfig("rotated-mnist", method("sketchogd", rank=10), TRAINING, 0, "table1", **SMALL),
        RunConfig("split-mnist", method("layer-sketch", rank=10), TRAINING, 1, "goals", **SMALL),
        RunConfig("permuted-mnist", method("a-gem", per_task=20, batch=10), TRAINING, 0, **SMALL),
    )
}
INTERRUPTED = RunConfig("rotated-mnist", method("layer-sketch", rank=10), TRAINING, 3, "table1", **SMALL)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A copy of the fixtures: asking for the state of a run touches its lock."""
    return Path(shutil.copytree(FIXTURES, tmp_path / "runs"))


@pytest.mark.parametrize("name", CONFIGS)
def test_they_load(runs: Path, name: str) -> None:
    run = records.load(runs / name)
    assert (run.status, run.complete, run.config) == ("finished", True, CONFIGS[name].record())
    assert metrics.average_accuracy(run.accuracy) == run.record["results"]["average_accuracy"]
    assert len(run.evaluations()) == 4
    with_preset = run.record["digest"] != records.config_digest(run.config)
    assert with_preset is bool(run.config.get("preset"))


@pytest.mark.parametrize("name", CONFIGS)
def test_they_are_done_whatever_the_preset(runs: Path, name: str) -> None:
    config = CONFIGS[name]
    for preset in (config.preset, "curves", ""):
        assert records.state(runs / name, replace(config, preset=preset).record()) is State.FINISHED
    for other in (replace(config, seed=7), replace(config, training=replace(TRAINING, lr=0.1))):
        assert records.state(runs / name, other.record()) is State.DIFFERENT


def test_a_grid_of_another_preset_leaves_them_as_they_are(runs: Path) -> None:
    before = {name: (runs / name / "run.json").read_bytes() for name in CONFIGS}
    outcomes = grid.run_grid([replace(config, preset="curves") for config in CONFIGS.values()], runs)
    assert [outcome.status for outcome in outcomes] == ["skipped"] * 3
    assert {name: (runs / name / "run.json").read_bytes() for name in CONFIGS} == before


def test_a_config_that_is_not_that_of_the_digest_is_damage(runs: Path) -> None:
    name, config = next(iter(CONFIGS.items()))
    path = runs / name / "run.json"
    content = json.loads(path.read_text())
    for key, value in (("lr", 0.1), ("preset", "goals")):
        path.write_text(json.dumps(content | {"config": content["config"] | {key: value}}))
        with pytest.raises(RecordError, match="digest is not that of its config"):
            records.load(runs / name)
        with pytest.raises(RecordError, match="digest is not that of its config"):
            records.state(runs / name, config.record())
        with pytest.raises(RecordError, match="digest is not that of its config"):
            train.run(config, runs / name)
    path.write_text(json.dumps(content | {"config": list(content["config"])}))
    with pytest.raises(RecordError, match="damaged"):
        records.load(runs / name)


def test_a_report_shows_them_and_says_what_is_not_finished(runs: Path) -> None:
    rows = {(row["benchmark"], row["method"]): row["accuracy"] for row in report.summary_table(runs)}
    assert rows == {
        (config.benchmark, config.method.name): records.load(runs / name).record["results"]["average_accuracy"]
        for name, config in CONFIGS.items()
    }
    _, left_out = groups.collect(runs)
    assert left_out == [{"run": INTERRUPTED.name, "reason": "not finished"}]


def test_a_report_lists_a_run_once_for_each_preset(runs: Path, tmp_path: Path) -> None:
    name, config = next(iter(CONFIGS.items()))
    old = records.load(runs / name)
    for preset in ("table1", "curves"):
        again = RunFolder(tmp_path / "again" / preset / name)
        again.start(replace(config, preset=preset).record())
        again.save_accuracy(old.accuracy)
        again.finish()
    shutil.copytree(runs / name, tmp_path / "again" / "old" / name)
    found, left_out = groups.collect(tmp_path / "again")
    assert sorted(group.variant for group in found) == ["preset curves", "preset table1"]
    assert [each["reason"] for each in left_out] == ["the same config as another run"]
    written = pack(tmp_path / "again", tmp_path / "results")
    assert {path.parent.name: count for path, count in written.items()} == {"curves": (1, 1), "table1": (1, 1)}
    assert bundles.digests(tmp_path / "results") == {records.config_digest(config.record())}
    assert pack(runs / name, tmp_path / "results") == {tmp_path / "results/table1/rotated-mnist.json": (1, 1)}


def test_an_interrupted_one_goes_on_to_the_numbers_it_would_have_had(runs: Path) -> None:
    folder = runs / INTERRUPTED.name
    assert records.state(folder, INTERRUPTED.record()) is State.INTERRUPTED
    with pytest.raises(RecordError, match="another config"):
        train.run(replace(INTERRUPTED, seed=4), folder)
    before, done = records.load(folder), []
    train.run(INTERRUPTED, folder, progress=lambda epochs, whole, doing: done.append(epochs))
    run = records.load(folder)
    assert min(done) == TRAINING.epochs, "it begins with the second task"
    assert (run.status, run.record["started"]) == ("finished", before.record["started"])
    assert run.evaluations()[:2] == before.evaluations()[:2]
    with np.load(FIXTURES / "interrupted-expected.npz") as expected:
        # These are the numbers of one machine; on another, rounding may decide one of 60 test examples otherwise.
        np.testing.assert_allclose(run.accuracy, expected["matrix"], atol=1.01 / 60)
        np.testing.assert_array_equal(run.initial, expected["initial"])
