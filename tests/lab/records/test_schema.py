"""Damaged and forged records: each is left out by name, and neither the page nor a bundle goes without the others."""

import contextlib
import copy
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sketchogd.cli.app import app
from sketchogd.lab import records
from sketchogd.lab.pages import figures, report
from sketchogd.lab.pages.groups import collect, damaged
from sketchogd.lab.records import RecordError, RunFolder, bundles, schema
from tools import pack

VALUES = (
    None, True, -1, 0, 2**40, 10**400, 1e308, "", "x" * 300, "../../outside", "/outside", "a\x00b", "..", "\ud800", [],
    [[[]]], {}, {"a\x00": 1}, {"a": {"b": 1}}, {"name": []}, [1, "a"], [{"name": "a", "nbytes": "b"}], {"nbytes": -1},
)  # fmt: skip
"""What a field may be forged to."""


def write_run(folder: Path, seed: int = 0, **config) -> RunFolder:
    run = RunFolder(folder)
    A = np.array([[0.9, np.nan], [0.5, 0.9]])
    run.start({"benchmark": "own", "method": "sgd", "seed": seed, "preset": "table1", "epochs": 1, **config})
    run.save_accuracy(A, np.array([0.1, 0.2]))
    for task in range(2):
        run.append({"event": "evaluation", "task": task, "epoch": 1, "accuracy": A[task, : task + 1].tolist()})
    entries = [{"name": "sketch.rows", "shape": [2], "dtype": "float32", "nbytes": 8}]
    run.finish(
        timings={"total": 1.0},
        ledger={"nbytes": 8, "entries": entries},
        results={"average_accuracy": 0.7},
        parameters={"all": 3},
        steps=4,
    )
    return run


def places(tree, path=()):
    """The path to every value of a tree of objects."""
    for key, value in tree.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


def forged(record, path, value):
    """The record of another seed with another value at a path, and a digest that fits."""
    changed = copy.deepcopy(record)
    changed["config"]["seed"] = 1
    node = changed
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    if path != ("digest",) and isinstance(changed.get("config"), dict):
        with contextlib.suppress(ValueError):
            changed["digest"] = records.config_digest(changed["config"])
    return changed


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """A good run among hundreds, of which each has one forged field."""
    root = tmp_path_factory.mktemp("hostile") / "runs"
    good = write_run(root / "good")
    record = json.loads((good.path / "run.json").read_text())
    number = 0
    for path in places(record):
        for value in VALUES:
            number += 1
            folder = root / f"z-forged-{number}"
            folder.mkdir()
            for name in ("accuracy.npz", "events.jsonl"):
                os.link(good.path / name, folder / name)
            (folder / "run.json").write_text(json.dumps(forged(record, path, value)))
    assert number > 500
    return root


def test_the_page_and_the_figures_are_made_without_the_forged_runs(hostile, tmp_path):
    page = report.page_data(hostile)
    json.dumps(page, allow_nan=False)
    shown = {run["run"] for group in page["groups"] for run in group["runs"]}
    assert "good" in shown
    left_out = {item["run"]: item["reason"] for item in page["left_out"]}
    assert len(shown) + len(left_out) == len(list(hostile.iterdir()))
    assert sum(reason.startswith("damaged: run.json is damaged: ") for reason in left_out.values()) > 300
    assert len(damaged(hostile)) == sum(reason.startswith("damaged: ") for reason in left_out.values())
    report.summary_table(hostile)
    for folder in sorted(hostile.iterdir())[::12]:
        shutil.copytree(folder, tmp_path / "some" / folder.name)
    figures.save_all(tmp_path / "some", tmp_path / "figures", formats=("png",))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figures", "some"]


def test_nothing_is_packed_outside_the_folder(hostile, tmp_path):
    """With `"preset": "../../outside"` a bundle was written there."""
    written = pack.pack(hostile, tmp_path / "a" / "b" / "results")
    assert tmp_path / "a" / "b" / "results" / "table1" / "own.json" in written
    for path in written:
        assert path.resolve().is_relative_to((tmp_path / "a" / "b" / "results").resolve()), path
    found = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert found == set(written)
    assert not list(hostile.parent.glob("outside*"))
    for path in written:
        assert bundles.read(path)


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format": 1, "config": ' + b'{"a":' * 900 + b"1" + b"}" * 901,
        b'{"format": 1, "status": "finished", "config": {"lr": NaN}, "digest": ""}',
        b'{"format": 1, "started": ' + b"9" * 5000 + b"}",
        b'{"format": 1, "status": ["finished"], "config": {}, "digest": ""}',
        b"null",
    ],
)
def test_one_damaged_record_does_not_take_the_others_along(text, tmp_path):
    write_run(tmp_path / "runs" / "good")
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "run.json").write_bytes(text)
    groups, left_out = collect(tmp_path / "runs")
    assert [run.path.name for group in groups for run in group.runs] == ["good"]
    assert [item["run"] for item in left_out] == ["bad"]
    assert str(tmp_path) not in left_out[0]["reason"]
    assert len(pack.pack(tmp_path / "runs", tmp_path / "results")) == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("events.jsonl", b'{"event": "evaluation", "task": 1e400, "epoch": 1, "accuracy": []}\n'),
        ("events.jsonl", b'{"event": "evaluation", "task": 5, "epoch": 1, "accuracy": []}\n'),
        ("events.jsonl", b'{"event": "evaluation", "task": 0, "epoch": 1, "accuracy": ["a"]}\n'),
        ("events.jsonl", b"[1]\n"),
        ("events.jsonl", b"\xff\n"),
        ("accuracy.npz", (np.zeros((2, 3)), np.zeros(2))),
        ("accuracy.npz", (np.zeros(2), np.zeros(2))),
        ("accuracy.npz", (np.full((2, 2), np.inf), np.zeros(2))),
        ("accuracy.npz", (np.zeros((2, 2)), np.zeros(3))),
        ("accuracy.npz", b"junk"),
    ],
)
def test_other_damaged_files_of_a_run_are_named_too(name, content, tmp_path):
    write_run(tmp_path / "good")
    bad = write_run(tmp_path / "bad", 1).path / name
    if isinstance(content, bytes):
        bad.write_bytes(content)
    else:
        np.savez(bad, matrix=content[0], initial=content[1])
    groups, left_out = collect(tmp_path)
    assert [run.path.name for group in groups for run in group.runs] == ["good"]
    assert [item["run"] for item in left_out] == ["bad"]
    assert name in left_out[0]["reason"]


def test_odd_spectra_are_no_spectra(tmp_path):
    for number, arrays in enumerate((
        {"singular_values": np.ones(3), "index": np.arange(2)},
        {"singular_values": np.ones(3), "index": np.array([3, 2, 1])},
        {"singular_values": np.ones(3), "index": np.array([0, 1, 2])},
        {"singular_values": np.ones(3), "stable_rank": np.ones(2)},
        {"singular_values": np.ones(3), "stable_rank": np.array(np.nan)},
    )):  # fmt: skip
        np.savez(write_run(tmp_path / str(number), number).path / "spectra.npz", **arrays)
    assert all("spectrum" not in group for group in report.page_data(tmp_path)["groups"])


def test_a_file_that_is_no_plain_file_or_too_large_is_not_read(tmp_path):
    write_run(tmp_path / "runs" / "good")
    for name in ("folder", "device", "large"):
        (tmp_path / "runs" / name).mkdir()
    (tmp_path / "runs" / "folder" / "run.json").mkdir()
    (tmp_path / "runs" / "device" / "run.json").symlink_to("/dev/zero")
    with open(tmp_path / "runs" / "large" / "run.json", "wb") as file:
        file.truncate(schema.FILE_BYTES + 1)
    assert {item["run"] for item in collect(tmp_path / "runs")[1]} == {"folder", "device", "large"}


@pytest.mark.parametrize("key", ["preset", "benchmark"])
def test_a_run_of_a_name_that_is_a_path_does_not_start(key, tmp_path):
    for name in ("../x", "a/b", "a\\b", "c:d", "..", "\n"):
        with pytest.raises(RecordError, match=f"cannot be recorded: config.{key} must be a name without separators"):
            write_run(tmp_path / "run", **{key: name})
    assert not (tmp_path / "run" / "run.json").exists()
    write_run(tmp_path / "run", **{key: "Own stream, 10 tasks (v1.5)"})


def test_forged_bundles_are_named_and_the_others_are_shown(tmp_path):
    write_run(tmp_path / "runs" / "good")
    (path,) = pack.pack(tmp_path / "runs", tmp_path / "results")
    content = json.loads(path.read_text())
    (entry,) = content["runs"]
    entry["curve"] = {"1": [0.5, 0.5], "2": [0.5]}
    number = 0
    for place in places(entry):
        for value in VALUES:
            number += 1
            changed = json.dumps({"bundle": 1, "runs": [forged(entry, place, value)]}, separators=(",", ":"))
            (tmp_path / "results" / f"z-forged-{number}.json").write_text(changed)
    page = report.page_data(tmp_path / "results")
    json.dumps(page, allow_nan=False)
    assert any(run["run"].startswith("table1/own.json/") for group in page["groups"] for run in group["runs"])
    assert sum(item["reason"].startswith("damaged: the bundle is damaged") for item in page["left_out"]) > number / 2
    pack.pack(tmp_path / "results", tmp_path / "again" / "deep" / "results")
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "results", "again"}
    assert not list((tmp_path / "again").glob("*.json"))


def test_the_commands_say_which_runs_are_damaged_and_end_with_status_1(tmp_path, capsys):
    write_run(tmp_path / "runs" / "good")
    assert CliRunner().invoke(app, ["report", str(tmp_path / "runs")]).exit_code == 0
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "run.json").write_text("{")
    result = CliRunner().invoke(app, ["report", str(tmp_path / "runs")])
    assert result.exit_code == 1
    assert "bad: run.json is damaged" in result.output
    page = (tmp_path / "runs" / "report.html").read_text()
    assert "damaged: run.json is damaged" in page
    with pytest.raises(SystemExit) as left:
        pack.main([str(tmp_path / "runs"), str(tmp_path / "results")])
    assert left.value.code == 1
    said = capsys.readouterr()
    assert "bad: run.json is damaged" in said.err
    assert "1 packed, 1 in all" in said.out
