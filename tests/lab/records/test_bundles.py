"""Bundles: what is packed is read again as the same runs, small, merged without loss, and shown like folders."""

import json
from pathlib import Path

import numpy as np
import pytest

from sketchogd.lab import records
from sketchogd.lab.pages import groups, report
from sketchogd.lab.pages.trajectory import trajectory
from sketchogd.lab.records import RecordError, RunFolder, bundles, sketch_errors, spectra
from sketchogd.lab.streams import BENCHMARKS
from tools import evidence
from tools.pack import main, pack

T, EPOCHS = 10, 30


def accuracies(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 1.0, (T, T)).round(4)


def write_run(root: Path, method: str, seed: int, preset: str = "table1", **config) -> RunFolder:
    benchmark = config.pop("benchmark", "rotated-mnist")
    options = config.get("options", {})
    folder = RunFolder(root / benchmark / ",".join([method, *map(str, options.values())]) / f"seed-{seed}")
    A = accuracies(seed)
    folder.start({"benchmark": benchmark, "method": method, "seed": seed, "preset": preset, "epochs": EPOCHS, **config})
    folder.save_accuracy(A, np.full(T, 0.1))
    for task in range(T):
        for epoch in range(1, EPOCHS + 1):
            row = (A[task, : task + 1] * epoch / EPOCHS).tolist()
            folder.append({"event": "evaluation", "task": task, "epoch": epoch, "accuracy": row, "loss": 1.0})
    entries = [
        {"name": "sketch.rows", "shape": [2, 3], "dtype": "float32", "nbytes": 400},
        {"name": "sketch.omega.matrix", "shape": [2, 3], "dtype": "float32", "nbytes": 300},
        {"name": "basis", "shape": [2, 3], "dtype": "bfloat16", "nbytes": 200},
        {"name": "reference.linear.weight", "shape": [3], "dtype": "float32", "nbytes": 100},
    ]
    ledger = {"nbytes": 1000, "entries": entries}
    folder.finish(ledger=ledger, timings={"train": 1.23456, "total": 12.3456}, results={"average_accuracy": 0.5})
    return folder


def only(root: Path) -> list[records.Run]:
    return [run for path in bundles.find(root) for run in bundles.read(path)]


def test_a_run_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", "sgd", 0)
    original = records.load(folder.path)
    written = pack(tmp_path / "runs", tmp_path / "results")
    assert written == {tmp_path / "results" / "table1" / "rotated-mnist.json": (1, 1)}
    (run,) = only(tmp_path / "results")
    lower = np.tril_indices(T)
    assert (run.accuracy[lower] == original.accuracy[lower]).all()
    assert np.isnan(run.accuracy[np.triu_indices(T, 1)]).all()
    assert (run.initial == original.initial).all()
    assert (run.status, run.config) == ("finished", original.config)
    assert run.record["digest"] == original.record["digest"] == records.config_digest(run.config)
    assert run.record["timings"] == {"train": 1.23, "total": 12.35}
    assert run.record["ledger"]["nbytes"] == 1000
    assert "platform" not in run.record["versions"]


def test_the_curves_that_figures_need_are_kept_for_the_first_seed(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / "runs", "sgd", seed)
    write_run(tmp_path / "runs", "ogd", 0, preset="equal-bytes")
    pack(tmp_path / "runs", tmp_path / "results")
    first, second, other = sorted(only(tmp_path / "results"), key=lambda run: (run.config["method"] == "ogd", run.path))
    assert second.evaluations() == other.evaluations() == []
    events = {(event["task"], event["epoch"]): event["accuracy"] for event in first.evaluations()}
    assert len(events) == T * EPOCHS
    A = accuracies(0)
    for (task, epoch), row in events.items():
        assert len(row) == task + 1
        for chosen in BENCHMARKS["rotated-mnist"].curves:
            if chosen <= task + 1:
                assert row[chosen - 1] == pytest.approx(A[task, chosen - 1] * epoch / EPOCHS, abs=6e-4)
        if task > 0:
            assert row[1] == (A[task, 1] if epoch == EPOCHS else None), "task 2 has the ends of tasks only"


def test_curves_of_a_bundle_are_those_of_its_folders(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / "runs", "sgd", seed)
    pack(tmp_path / "runs", tmp_path / "results")
    (group,), _ = groups.collect(tmp_path / "results")
    x, mean, std = trajectory(group)
    assert len(x) == T * EPOCHS
    kept = ~np.isnan(mean[:, 4])
    one = write_run(tmp_path / "one", "sgd", 0)
    (alone,), _ = groups.collect(one.path)
    _, expected, _ = trajectory(alone)
    # Seeds without a curve do not enter: a mean that jumps at the ends of tasks would be neither.
    np.testing.assert_allclose(mean[kept, 4], expected[kept, 4], atol=6e-4)
    assert (std[kept, 4] == 0).all()


def test_packing_again_adds_and_replaces_and_loses_nothing(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    write_run(first, "sgd", 0)
    write_run(first, "sgd", 1)
    pack(first, tmp_path / "results")
    again = write_run(second, "sgd", 1)
    again.update(timings={"total": 99.0})
    write_run(second, "ogd", 0)
    (path,) = pack(second, tmp_path / "results")
    runs = {run.path.relative_to(path).as_posix(): run for run in bundles.read(path)}
    assert list(runs) == ["ogd/seed-0", "sgd/seed-0", "sgd/seed-1"]
    assert runs["sgd/seed-1"].record["timings"] == {"total": 99.0}
    before = path.read_bytes()
    pack(first / "rotated-mnist" / "sgd" / "seed-0", tmp_path / "results")
    assert path.read_bytes() == before, "the same runs give the same bytes"


def test_bundles_can_be_packed_into_bundles(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "sgd", 0)
    pack(tmp_path / "runs", tmp_path / "here")
    (here,) = bundles.find(tmp_path / "here")
    (there,) = pack(tmp_path / "here", tmp_path / "there")
    assert there.read_bytes() == here.read_bytes()


def test_unfinished_runs_stay_out(tmp_path: Path) -> None:
    RunFolder(tmp_path / "runs" / "x").start({"benchmark": "split-mnist", "method": "sgd", "seed": 0})
    failed = RunFolder(tmp_path / "runs" / "y")
    failed.start({"benchmark": "split-mnist", "method": "sgd", "seed": 1})
    failed.fail(ValueError("no"))
    assert pack(tmp_path / "runs", tmp_path / "results") == {}
    assert bundles.digests(tmp_path / "results") == set()


def test_of_a_run_that_diverged_the_error_is_kept_until_one_finishes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "first", "ewc", 0, "ridges", options={"strength": 1000.0})
    folder.fail(FloatingPointError("the loss of task 2, epoch 1 is nan; lower lr"))
    (path,) = pack(tmp_path / "first", tmp_path / "results")
    (run,) = bundles.read(path)
    assert (run.status, run.diverged, run.accuracy, run.evaluations()) == ("failed", True, None, [])
    assert run.record["error"]["message"] == "the loss of task 2, epoch 1 is nan; lower lr"
    assert bundles.digests(tmp_path / "results") == {run.record["digest"]}
    found = evidence.Evidence.load(tmp_path / "results")
    assert found.runs == []
    assert pack(tmp_path / "results", tmp_path / "again") == {tmp_path / "again" / "ridges" / path.name: (1, 1)}
    assert bundles.read(tmp_path / "again" / "ridges" / path.name)[0].record == run.record
    write_run(tmp_path / "second", "ewc", 0, "ridges", options={"strength": 1000.0})
    pack(tmp_path / "second", tmp_path / "results")
    pack(tmp_path / "first", tmp_path / "results")  # does not take its place
    (run,) = bundles.read(path)
    assert (run.status, run.diverged) == ("finished", False)


def test_a_run_is_small(tmp_path: Path) -> None:
    for seed in range(1, 4):
        write_run(tmp_path / "runs", "sketchogd", seed, options={"rank": 1200, "zeta": 2})
    (path,) = pack(tmp_path / "runs", tmp_path / "results")
    assert path.stat().st_size < 3 * 2000
    write_run(tmp_path / "runs", "sketchogd", 0, options={"rank": 1200, "zeta": 2})
    pack(tmp_path / "runs", tmp_path / "results")
    assert path.stat().st_size < 4 * 2000 + 4000


def test_bytes_are_told_apart_by_kind_and_place(tmp_path: Path) -> None:
    kinds = {"sketch": 400, "test matrix": 300, "basis": 200, "weights": 100}
    here = records.load(write_run(tmp_path, "sketchogd", 0).path)
    assert bundles.totals(here.record) == {"nbytes": 1000, "host": 0, "kinds": kinds}
    away = records.load(write_run(tmp_path, "sketchogd", 0, options={"offload": "cpu"}).path)
    assert bundles.totals(away.record) == {"nbytes": 1000, "host": 700, "kinds": kinds}
    data = records.load(write_run(tmp_path, "a-gem", 0).path)
    assert bundles.totals(data.record)["kinds"] == {"examples": 1000}
    pack(tmp_path, tmp_path / "results")
    packed = {run.path.parts[-2]: run for run in only(tmp_path / "results")}
    assert bundles.totals(packed["sketchogd,cpu"].record) == bundles.totals(away.record)
    rows = {row["variant"]: row for row in report.summary_table(tmp_path / "results") if row["method"] == "sketchogd"}
    assert {name: row["host_nbytes"] for name, row in rows.items()} == {"": 0, "offload cpu": 700}


def test_spectra_are_thinned_and_errors_kept(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", "ogd", 0, preset="spectra")
    s = 10.0 / np.arange(1, 4801)
    arrays = {key: np.array([0.5, 0.25]) for key in sketch_errors.KEYS}
    np.savez(folder.path / "spectra.npz", singular_values=s, stable_rank=np.array(1.6449), **arrays)
    (whole,), _ = groups.collect(tmp_path / "runs")
    (path,) = pack(tmp_path / "runs", tmp_path / "results")
    assert path.stat().st_size < 9000
    (packed,), _ = groups.collect(path)
    found, full = (spectra.mean_spectrum(run.spectra() for run in group.runs) for group in (packed, whole))
    full = spectra.thinned(full)
    assert found.stable_rank == pytest.approx(1.6449)
    assert (found.index == full.index).all()
    assert found.index[[0, -1]].tolist() == [1, 4800]
    np.testing.assert_allclose(found.values, full.values, rtol=1e-4)
    assert (packed.runs[0].spectra()["optimum"] == [0.5, 0.25]).all()


def test_damage_and_other_files_are_told_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "sgd", 0)
    (path,) = pack(tmp_path / "runs", tmp_path / "results")
    (tmp_path / "results" / "speed.json").write_text('{"step": 1}')
    assert bundles.find(tmp_path / "results") == [path]
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    with pytest.raises(RecordError, match="damaged"):
        bundles.read(path)
    found, left_out = groups.collect(tmp_path / "results")
    assert found == []
    assert left_out[0]["run"] == "table1/rotated-mnist.json"
    assert "damaged" in left_out[0]["reason"]
    with pytest.raises(RecordError, match="damaged"):
        pack(tmp_path / "runs", tmp_path / "results")
    path.write_text(json.dumps({"bundle": 2, "runs": []}, separators=(",", ":")))
    with pytest.raises(RecordError, match="format 2"):
        bundles.read(path)


def test_the_bundles_of_this_repository_can_be_read() -> None:
    root = Path(__file__).parents[3] / "results"
    for path in bundles.find(root):
        runs = bundles.read(path)
        assert runs
        for run in runs:
            assert records.intact(run.record)
            assert path == root / run.config["preset"] / f"{run.config['benchmark']}.json"


def test_the_command_packs_and_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write_run(tmp_path / "runs", "sgd", 0)
    main([str(tmp_path / "runs"), str(tmp_path / "results")])
    path = tmp_path / "results" / "table1" / "rotated-mnist.json"
    assert capsys.readouterr().out == f"{path}: 1 packed, 1 in all, {path.stat().st_size:,} bytes\n"
    (tmp_path / "empty").mkdir()
    for folder, reason in (("empty", "found none"), ("nowhere", "no such folder")):
        with pytest.raises(SystemExit):
            main([str(tmp_path / folder), str(tmp_path / "results")])
        assert reason in capsys.readouterr().err
