"""Under torchrun: who dies or hangs makes the others fail in time, a restart goes on, the command line works."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sketchogd.cli import app

from . import workers
from .processes import outcomes

ROOT = Path(__file__).parents[2]
TIMEOUT = 4
"""Seconds of the process group."""


@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_the_others_fail_in_time_and_say_why(how, tmp_path):
    found = outcomes(workers.one_is_lost, 2, tmp_path, how, limit=40, timeout=TIMEOUT)
    status, (seconds, message) = found[0]
    assert status == "ok", message
    # A process that died is noticed at once, one that hangs after the timeout, long before it goes on.
    assert seconds < workers.HANGS - 1
    assert "process 0 of 2" in message
    assert "Another process died" in message
    assert "last saved memory" in message


def test_torchrun_restarts_and_goes_on_from_the_last_saved_memory(tmp_path):
    """Process 1 dies in the second of three tasks; what is done again is that task, and nothing is remembered twice."""
    done = torchrun(str(ROOT / "examples" / "ddp.py"), "--folder", str(tmp_path), "--kill-in-task", "2", restarts=1)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "resumed from after-task-1, 101 examples remembered" in done.stdout
    assert "remembered 303 examples" in done.stdout  # 101 is odd: the sampler padded each task


def test_the_fsdp2_example_runs():
    small = ["--examples", "20", "--remembered", "3", "--rank", "4", "--epochs", "1"]
    done = torchrun(str(ROOT / "examples" / "fsdp2.py"), *small)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "protected classes 0–1" in done.stdout
    anchor = next(line for line in done.stdout.splitlines() if "reference.linear1.weight" in line)
    assert "50 × 1024" in anchor  # of 100 rows


def torchrun(*words, restarts=0):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", str(restarts), *words]
    if "ddp.py" in words[0]:
        command += ["--tasks", "3", "--examples", "101", "--epochs", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def test_the_command_line_under_torchrun_gives_what_one_process_gives(tmp_path):
    """Two processes, two seeds: one folder a run, one table, and the accuracies of the run of one process."""
    words = ["run", "split-mnist", "sketchogd", "--option", "rank=20", "--tasks", "2", "--n-train", "60"]
    words += ["--n-test", "100", "--epochs", "1", "--lr", "0.05", "--every", "3", "--seeds", "2", "--json", "--out"]
    alone = CliRunner().invoke(app, [*words, str(tmp_path / "one")])
    done = torchrun("-m", "sketchogd.cli", *words, str(tmp_path / "two"))
    assert done.returncode == 0, done.stderr[-3000:]
    (row,) = json.loads(done.stdout)
    (expected,) = json.loads(alone.stdout)
    assert row["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-6)
    assert row["accuracy"] > 0.6
    one, two = (sorted((tmp_path / name).rglob("run.json")) for name in ("one", "two"))
    assert len(one) == len(two) == 2
    for mine, theirs in zip(two, one, strict=True):
        a, b = (json.loads(path.read_text()) for path in (mine, theirs))
        assert (a["status"], a["steps"], a["ledger"]) == ("finished", b["steps"], b["ledger"])
