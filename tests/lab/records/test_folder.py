"""Records: what is written is what is read, whole or not at all, and a grid knows what is left to do."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sketchogd.lab import records
from sketchogd.lab.data.fileformats import DataError
from sketchogd.lab.records import RecordError, RunFolder, State, checkpoint
from sketchogd.lab.records.checkpoint import CheckpointError
from sketchogd.storage import atomic

SOURCE = Path(records.__file__).parents[3]
CONFIG = {"benchmark": "split-mnist", "method": "sgd", "seed": 0, "sizes": [100, 100]}


def same(a: object, b: object) -> bool:
    """Equal trees: same types, same keys, tensors equal to the bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and (a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b)))


def start_script(*lines: str) -> subprocess.Popen:
    code = "\n".join(["import sys", f"sys.path.insert(0, {str(SOURCE)!r})", *lines])
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomic.write_bytes(path, b"old")

    def fail_halfway() -> None:
        with atomic.replacing(path) as temporary:
            temporary.write_bytes(b"half of the n")
            assert path.read_bytes() == b"old"
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        fail_halfway()
    assert path.read_bytes() == b"old"
    atomic.write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_returns_the_same_tree(tmp_path: Path) -> None:
    shared = torch.randn(4, 4)
    tree = {
        "numbers": [1, 2.5, -0.1, math.nan, math.inf, True, None, "text", 2**70],
        3: (torch.arange(3), (), [], {}),
        "views": [shared, shared.T, shared[1:2], shared],
        "kinds": {kind: torch.ones(2, dtype=getattr(torch, kind)) for kind in ("bfloat16", "float64", "uint8", "bool")},
        "empty": torch.empty(0, 5),
        "scalar": torch.tensor(1.5),
        "generator": torch.Generator().manual_seed(3).get_state(),
    }
    checkpoint.save(tmp_path / "c.safetensors", tree)
    assert same(checkpoint.load(tmp_path / "c.safetensors"), tree)
    checkpoint.save(tmp_path / "c.safetensors", {"a": 1})
    assert checkpoint.load(tmp_path / "c.safetensors") == {"a": 1}


def test_training_goes_on_from_a_checkpoint_to_the_same_weights(tmp_path: Path) -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator) -> None:
        optimizer.zero_grad()
        model(torch.randn(8, 3, generator=generator)).square().mean().backward()
        optimizer.step()

    def fresh() -> tuple[nn.Module, torch.optim.Optimizer, torch.Generator]:
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        return model, torch.optim.Adam(model.parameters(), lr=0.1), torch.Generator().manual_seed(1)

    model, optimizer, generator = fresh()
    for _ in range(3):
        step(model, optimizer, generator)
    state = {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict(), "generator": generator.get_state()}
    checkpoint.save(tmp_path / "c", state)
    for _ in range(3):
        step(model, optimizer, generator)
    again, optimizer, generator = fresh()
    state = checkpoint.load(tmp_path / "c")
    again.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    generator.set_state(state["generator"])
    for _ in range(3):
        step(again, optimizer, generator)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))


def test_checkpoints_refuse_what_they_cannot_hold_or_read(tmp_path: Path) -> None:
    path = tmp_path / "c"
    for bad in ({"x": object()}, {"x": {1.5: 0}}, {"x": {True: 0}}, {"x": np.float64(1.0)}, [{1, 2}]):
        with pytest.raises(CheckpointError):
            checkpoint.save(path, bad)
    assert not path.exists()
    checkpoint.save(path, {"x": torch.ones(100)})
    data = path.read_bytes()
    for damaged in (data[:-10], data[:20], b"", b"junk" * 10):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="not a readable checkpoint"):
            checkpoint.load(path)
    from safetensors.torch import save_file

    save_file({"x": torch.ones(1)}, path)
    with pytest.raises(CheckpointError, match="expected the format"):
        checkpoint.load(path)
    with pytest.raises(FileNotFoundError):
        checkpoint.load(tmp_path / "none")


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a" / "run")
    folder.start(CONFIG)
    assert records.load(folder.path).status == "running"
    assert records.load(folder.path).accuracy is None
    matrix = np.array([[0.9, np.nan], [0.7, 0.8]])
    folder.save_accuracy(matrix)
    folder.append({"kind": "task", "task": 0, "loss": math.nan})
    folder.update(timings={"train": 1.5}, ledger={"sketch": 1024})
    folder.finish(results={"average_accuracy": 0.75, "forward_transfer": math.nan})
    run = records.load(folder.path)
    assert (run.status, run.config) == ("finished", CONFIG)
    assert run.record["ledger"] == {"sketch": 1024}
    assert run.record["results"] == {"average_accuracy": 0.75, "forward_transfer": None}
    assert run.record["versions"]["torch"] == torch.__version__
    assert run.record["device"]["kind"] == "cpu"
    assert run.record["ended"] >= run.record["started"]
    np.testing.assert_array_equal(run.accuracy, matrix)
    assert run.initial is None
    assert folder.events() == [{"kind": "task", "task": 0, "loss": None}]
    # Standard JSON: a parser that knows no NaN reads it.
    text = (folder.path / "run.json").read_text() + (folder.path / "events.jsonl").read_text()
    assert "NaN" not in text
    folder.save_accuracy(matrix, initial=np.array([0.1, 0.2]))
    np.testing.assert_array_equal(records.load(folder.path).initial, [0.1, 0.2])
    assert records.find(tmp_path) == [folder.path]


def test_starting_anew_forgets_the_old_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.start(CONFIG)
    folder.save_accuracy(np.eye(2))
    folder.append({"kind": "x"})
    folder.checkpoint({"step": 1})
    folder.fail(RuntimeError("out of luck"))
    record = records.load(tmp_path).record
    assert record["status"] == "failed"
    assert record["error"] == {"type": "RuntimeError", "message": "out of luck"}
    folder.start(CONFIG)
    assert "error" not in records.load(tmp_path).record
    assert records.load(tmp_path).accuracy is None
    assert folder.events() == []
    assert folder.resume() is None


def test_resuming_drops_events_after_the_checkpoint_and_a_torn_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.start(CONFIG)
    folder.append({"step": 1})
    folder.append({"step": 2})
    folder.checkpoint({"weights": torch.arange(3.0), "step": 2})
    folder.append({"step": 3})
    with open(tmp_path / "events.jsonl", "a") as file:
        file.write('{"ste')
    assert [event["step"] for event in folder.events()] == [1, 2, 3]
    assert same(folder.resume(), {"weights": torch.arange(3.0), "step": 2})
    folder.append({"step": 3, "again": True})
    assert folder.events() == [{"step": 1}, {"step": 2}, {"step": 3, "again": True}]
    folder.finish()
    assert folder.resume() is None


def test_damaged_records_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"run\.json is missing"):
        records.load(tmp_path)
    folder = RunFolder(tmp_path)
    folder.start(CONFIG)
    good = json.loads((tmp_path / "run.json").read_text())
    for bad, match in (
        ("{", "damaged"),
        ("[]", "format"),
        (json.dumps(good | {"format": 99}), "format"),
        (json.dumps(good | {"status": "odd"}), "known status"),
        (json.dumps({key: value for key, value in good.items() if key != "config"}), "lacks config"),
    ):
        (tmp_path / "run.json").write_text(bad)
        with pytest.raises(RecordError, match=match):
            records.load(tmp_path)
    folder.start(CONFIG)
    (tmp_path / "accuracy.npz").write_bytes(b"junk")
    with pytest.raises(DataError, match=r"accuracy\.npz"):
        records.load(tmp_path)


def test_configs_are_compared_by_content() -> None:
    turned = dict(reversed(CONFIG.items()))
    assert records.config_digest(CONFIG) == records.config_digest(turned)
    assert records.config_digest(CONFIG) == records.config_digest(CONFIG | {"sizes": (100, 100)})
    assert records.config_digest(CONFIG) != records.config_digest(CONFIG | {"seed": 1})
    named = CONFIG | {"preset": "table1"}
    assert records.config_digest(CONFIG) == records.config_digest(named)
    assert records.identity(CONFIG) == records.identity(turned)
    assert records.identity(CONFIG) == records.identity(CONFIG | {"preset": ""}) != records.identity(named)


def test_a_grid_knows_what_is_left_to_do(tmp_path: Path) -> None:
    configs = {name: CONFIG | {"name": name} for name in ("done", "broken", "cut", "held", "new", "changed")}
    for name in ("done", "broken", "cut", "held", "changed"):
        RunFolder(tmp_path / name).start(configs[name])
    RunFolder(tmp_path / "done").finish()
    RunFolder(tmp_path / "broken").fail(ValueError("no"))
    RunFolder(tmp_path / "changed").finish()
    configs["changed"] = configs["changed"] | {"epochs": 3}
    with RunFolder(tmp_path / "held").hold():
        plan = records.plan(tmp_path, configs)
    assert plan == {
        State.MISSING: ["new"],
        State.RUNNING: ["held"],
        State.INTERRUPTED: ["cut"],
        State.FAILED: ["broken"],
        State.FINISHED: ["done"],
        State.DIFFERENT: ["changed"],
    }
    assert records.plan(tmp_path, configs)[State.INTERRUPTED] == ["cut", "held"]


@pytest.mark.skipif(sys.platform == "win32", reason="the lock and SIGKILL are those of POSIX")
def test_one_process_holds_a_run_and_a_kill_releases_it(tmp_path: Path) -> None:
    RunFolder(tmp_path).start(CONFIG)
    process = start_script(
        "import time",
        "from sketchogd.lab.records import RunFolder",
        f"with RunFolder({str(tmp_path)!r}).hold():",
        "    print('held', flush=True)",
        "    time.sleep(60)",
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert records.state(tmp_path, CONFIG) is State.RUNNING
        with pytest.raises(RecordError, match="another process"), RunFolder(tmp_path).hold():
            pass
    finally:
        process.kill()
        process.communicate()
    assert records.state(tmp_path, CONFIG) is State.INTERRUPTED
    (tmp_path / ".run.json.abc.tmp").write_text("left by the kill")
    with RunFolder(tmp_path).hold():
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "run.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX's")
def test_a_kill_at_any_moment_leaves_whole_files(tmp_path: Path) -> None:
    """The child writes self-describing files as fast as it can; whatever is there after a kill is whole."""
    script = (
        "import itertools, numpy as np, torch",
        "from sketchogd.lab.records import RunFolder",
        f"folder = RunFolder({str(tmp_path)!r})",
        "folder.start({})",
        "for i in itertools.count(1):",
        "    folder.append({'i': i, 'pad': 'x' * (i % 5000)})",
        "    folder.save_accuracy(np.full((50, 50), float(i)))",
        "    folder.update(results={str(j): i for j in range(2000)})",
        "    folder.checkpoint({'i': i, 'weights': torch.full((20_000,), float(i))})",
        "    if i == 3: print('going', flush=True)",
    )
    for delay in (0.01, 0.043, 0.11):
        process = start_script(*script)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "going\n"
            time.sleep(delay)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        run = records.load(tmp_path)
        assert run.status == "running"
        assert run.accuracy is not None
        assert len(set(run.accuracy.flatten())) == 1
        assert len(set(run.record["results"].values())) == 1
        events = RunFolder(tmp_path).events()
        assert [event["i"] for event in events] == list(range(1, len(events) + 1))
        state = RunFolder(tmp_path).resume()
        assert state["weights"].unique().tolist() == [float(state["i"])]
        assert [event["i"] for event in RunFolder(tmp_path).events()] == list(range(1, state["i"] + 1))
        # The three writes of a round are in this order, so they differ by one round at most.
        assert int(run.accuracy[0, 0]) - 1 <= state["i"] <= int(run.accuracy[0, 0])
