"""The script that runs everything: every run once, in pieces, skipping what is packed, and stopping in time."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sketchogd.lab import records
from sketchogd.lab.records import RunFolder, bundles, config_digest
from sketchogd.lab.runs import grid
from sketchogd.paper import presets
from tests.lab.records.test_bundles import write_run
from tools import reproduce_all as script
from tools.pack import pack

ROOT = Path(__file__).parents[2]


def test_every_run_is_in_one_piece() -> None:
    pieces = script.all_pieces(chunk=40)
    assert len({piece.name for piece in pieces}) == len(pieces)
    found = [config_digest(run.record()) for piece in pieces for run in piece.runs]
    wanted = {config_digest(run.record()) for name in script.ORDER for run in presets.PRESETS[name]().runs}
    assert sorted(found) == sorted(wanted)
    assert {run.method.name for p in pieces if p.preset == "table2" for run in p.runs}.isdisjoint({"random-ogd"})
    assert sum(len(p.runs) for p in pieces if p.preset == "spectra") == len(presets.spectra().runs)
    assert set(script.ORDER) | {"curves"} == set(presets.PRESETS)
    for piece in pieces:
        assert 0 < len(piece.runs) <= 40
        assert {f"{run.preset}/{run.benchmark}" for run in piece.runs} == {piece.name.rpartition("/")[0]}
    assert all(len(piece.runs) <= 3 for piece in script.all_pieces(chunk=3))


class Grid:
    """Stands in for `run_grid`: writes finished runs at once, and lets time pass."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.now, self.done = seconds, 0.0, []

    def __call__(self, runs, root, *, jobs, devices, data_folder, listener, plugins):
        outcomes = []
        for run in runs:
            self.now += self.seconds
            listener(grid.Update(run.name, 0.5, "training"))
            options = run.record()
            for key in ("benchmark", "method", "seed", "preset", "epochs"):
                options.pop(key)
            folder = write_run(Path(root), run.method.name, run.seed, run.preset, benchmark=run.benchmark, **options)
            assert folder.path.exists()
            self.done.append(run.name)
            outcomes.append(grid.Outcome(run.name, "finished"))
        return outcomes


def call(tmp_path: Path, *more: str) -> int:
    where = ["--out", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    return script.main([*where, "--pieces", "table1/rotated-mnist/*", "--seeds", "2", "--chunk", "4", *more])


def test_what_is_packed_is_not_done_again(tmp_path: Path, monkeypatch, capsys) -> None:
    fake = Grid()
    monkeypatch.setattr(grid, "run_grid", fake)
    assert call(tmp_path) == 0
    assert len(fake.done) == 14
    assert len(bundles.digests(tmp_path / "results")) == 14
    assert call(tmp_path) == 0
    assert len(fake.done) == 14
    assert call(tmp_path, "--list") == 0
    assert "table1/rotated-mnist/1: 0 of 4 runs left" in capsys.readouterr().out


def test_a_run_of_another_experiment_with_the_same_config_counts(tmp_path: Path, monkeypatch) -> None:
    fake = Grid()
    monkeypatch.setattr(grid, "run_grid", fake)
    piece = next(p for p in script.all_pieces(4, 2) if p.name == "table1/rotated-mnist/2")
    for run in piece.runs:
        RunFolder(tmp_path / "curves" / run.name).start(replace(run, preset="curves").record())
        RunFolder(tmp_path / "curves" / run.name).save_accuracy(np.eye(2))
        RunFolder(tmp_path / "curves" / run.name).finish()
    pack(tmp_path / "curves", tmp_path / "results")
    assert call(tmp_path) == 0
    assert len(fake.done) == 10
    assert not {run.name for run in piece.runs} & set(fake.done)


def test_the_time_limit_keeps_what_is_done_and_the_next_call_goes_on(tmp_path: Path, monkeypatch) -> None:
    fake = Grid(seconds=10.0)
    monkeypatch.setattr(grid, "run_grid", fake)
    monkeypatch.setattr(script.time, "monotonic", lambda: fake.now)
    # Pieces of four take 40 s: after two of them a third would not end within 100 s, so it is not begun.
    assert call(tmp_path, "--time-limit", "100") == script.PIECES_LEFT
    assert len(fake.done) == 8
    assert call(tmp_path, "--time-limit", "100") == 0
    assert len(bundles.digests(tmp_path / "results")) == 14


def test_a_piece_that_is_too_long_is_left_with_its_finished_runs_packed(tmp_path: Path, monkeypatch, capsys) -> None:
    fake = Grid(seconds=10.0)
    monkeypatch.setattr(grid, "run_grid", fake)
    monkeypatch.setattr(script.time, "monotonic", lambda: fake.now)
    assert call(tmp_path, "--time-limit", "25") == script.PIECES_LEFT
    assert len(fake.done) == len(bundles.digests(tmp_path / "results")) == 2
    assert "--chunk" not in capsys.readouterr().out
    assert call(tmp_path, "--time-limit", "5") == script.PIECES_LEFT
    assert "none of its 2 runs was finished: give more time, or half as large a --chunk" in capsys.readouterr().out


def test_a_piece_that_another_process_works_on_is_left_to_it(tmp_path: Path, monkeypatch, capsys) -> None:
    fake = Grid()
    monkeypatch.setattr(grid, "run_grid", fake)
    with records.RunFolder(tmp_path / "runs" / ".pieces" / "table1/rotated-mnist/2").hold():
        assert call(tmp_path) == script.PIECES_LEFT
    assert len(fake.done) == 10
    assert "left to the processes that work on them: 1" in capsys.readouterr().out
    assert call(tmp_path) == 0
    assert len(fake.done) == 14


def test_what_another_process_has_done_meanwhile_is_not_done_again(tmp_path: Path, monkeypatch) -> None:
    fake, other = Grid(), Grid()

    def both(runs, root, **options):
        if not other.done:  # while the first piece is being done, another process does the second
            pieces = [p for p in script.all_pieces(4, 2) if p.name == "table1/rotated-mnist/2"]
            other(pieces[0].runs, tmp_path / "elsewhere" / "table1", **options)
            pack(tmp_path / "elsewhere", tmp_path / "results")
        return fake(runs, root, **options)

    monkeypatch.setattr(grid, "run_grid", both)
    assert call(tmp_path) == 0
    assert len(other.done) == 4
    assert len(fake.done) == 10


def test_a_failed_run_is_reported(tmp_path: Path, monkeypatch, capsys) -> None:
    def failing(runs, root, **_):
        return [grid.Outcome(run.name, "failed", "out of memory") for run in runs]

    monkeypatch.setattr(grid, "run_grid", failing)
    assert call(tmp_path) == 1
    assert "out of memory" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no piece is called"):
        script.main(["--pieces", "nothing/*"])


def test_the_script_needs_no_command_line_packages() -> None:
    code = "import sys; sys.modules.update(dict.fromkeys(['typer', 'rich', 'click', 'matplotlib'])); import runpy; "
    code += "sys.argv = ['x', '--list', '--pieces', 'goals/*']; "
    code += "runpy.run_module('tools.reproduce_all', run_name='__main__')"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert found.returncode == 0, found.stderr
    assert "goals/split-mnist/1" in found.stdout
