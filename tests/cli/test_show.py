"""What is printed: tables that fit, other forms of them, and progress where nothing can be overwritten."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from sketchogd.cli import show
from sketchogd.cli.show import Form, console, progress
from sketchogd.cli.show.progress import Lines, Tally
from sketchogd.lab.methods import method
from sketchogd.lab.runs.config import RunConfig, Training
from sketchogd.lab.runs.grid import Update

ROWS = [
    {
        "method": "layer-sketch,strength=4.0,damping=0.05",
        "accuracy": 0.7404999,
        "accuracy_std": 0.25,
        "nbytes": 1601312,
    },
    {"method": "a|b_c 50 %", "accuracy": 0.25, "accuracy_std": None, "nbytes": None},
]
COLUMNS: show.Columns = {
    "method": str,
    "accuracy": show.three_decimals,
    "accuracy_std": lambda value: "" if value is None else f"±{value:.3f}",
    "nbytes": show.bytes_cell,
}


def printed(capsys: pytest.CaptureFixture[str], form: Form = Form.table) -> str:
    show.table("two methods", ROWS, COLUMNS, form)
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [44, 80, 120])
def test_no_line_is_longer_than_the_terminal_and_no_number_is_cut(width, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = printed(capsys)
    assert max(map(cell_len, text.splitlines())) <= width
    words = text.split()
    assert {"0.740", "±0.250", "1.6", "MB", "0.250"} <= set(words)
    assert "…" not in text


def test_a_table_that_is_too_wide_becomes_a_block_for_each_row(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    text = printed(capsys).splitlines()
    assert "  accuracy  0.740" in text
    assert not any(line.startswith("  std") for line in text[-4:]), "what is missing has no line"


def test_nothing_limits_a_line_in_a_pipe(capsys, monkeypatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    long = "x" * 300
    show.table("wide", [{"name": long, "value": 1}], {"name": str, "value": str})
    assert long in capsys.readouterr().out
    show.say("word " * 60)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_an_error_is_one_line_unless_a_terminal_shows_it(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "44")
    show.problem("word " * 60)
    assert len(capsys.readouterr().err.splitlines()) == 1
    monkeypatch.setattr(console, "err", Console(stderr=True, force_terminal=True, color_system=None))
    assert console.room(console.err) == 44


def test_csv_has_raw_values(capsys) -> None:
    rows = list(csv.DictReader(io.StringIO(printed(capsys, Form.csv))))
    assert rows[0] == {
        "method": ROWS[0]["method"],
        "accuracy": "0.7404999",
        "accuracy_std": "0.25",
        "nbytes": "1601312",
    }
    assert rows[1]["nbytes"] == ""


def test_markdown_has_as_many_cells_in_every_line(capsys) -> None:
    lines = printed(capsys, Form.markdown).splitlines()
    assert lines[0] == "| method | accuracy | std | bytes |"
    assert lines[1] == "|---|---:|---:|---:|"
    assert {line.replace("\\|", "").count("|") for line in lines} == {5}


def test_latex_has_no_bare_special_character(capsys) -> None:
    text = printed(capsys, Form.latex)
    assert r"a|b\_c 50 \% & 0.250 &  &  \\" in text
    assert r"$\pm$0.250" in text
    assert text.count("&") == 3 * 3
    assert "\\begin{tabular}{lrrr}" in text


def test_json_has_the_rows_or_what_a_command_says_in_their_place(capsys) -> None:
    assert json.loads(printed(capsys, Form.json)) == ROWS
    show.table("", ROWS, COLUMNS, Form.json, {"whole": 1})
    assert json.loads(capsys.readouterr().out) == {"whole": 1}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_tally_counts_epochs_and_what_was_done_before_takes_no_time() -> None:
    clock = Clock()
    tally = Tally({"a/b/c": 30, "a/d/c": 10}, clock)
    assert (tally.share, tally.left) == (0.0, None)
    tally.add(Update("a/b/c", 1.0, "skipped"))
    clock.now = 5.0
    assert (tally.share, tally.left) == (0.75, None)
    tally.add(Update("a/d/c", 0.5, "task 1 of 2"))
    assert (tally.share, tally.left) == (0.875, 5.0)


def test_lines_come_at_the_ends_of_runs_and_every_tenth_or_minute() -> None:
    clock, lines = Clock(), []
    listener = Lines(Tally({"x/a/seed-0": 100}, clock), lines.append)
    for percent in range(100):
        clock.now += 0.5
        listener.listen(Update("x/a/seed-0", percent / 100, "task 1 of 2"))
    listener.listen(Update("x/a/seed-0", 1.0, "finished"))
    assert [line.split("%")[0].strip() for line in lines] == ["0", *map(str, range(10, 100, 10)), "100"]
    assert lines[1] == " 10%  x a seed-0: task 1 of 2, about 50 s left"
    assert lines[-1] == "100%  x a seed-0: finished"
    clock.now += 61
    listener.listen(Update("x/a/seed-0", 0.99, "task 2 of 2"))
    assert len(lines) == 12, "a minute has passed"
    listener.listen(Update("x/b/seed-0", 1.0, "skipped"))
    assert len(lines) == 12


def test_a_terminal_has_a_bar_that_fits(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "44")
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=44, color_system=None)
    monkeypatch.setattr(progress, "err", terminal)
    config = RunConfig("split-mnist", method("layer-sketch", strength=3.0), Training(epochs=3))
    with show.grid_bar([config], quiet=False) as listener:
        listener(Update(config.name, 0.5, "task 3 of 5"))
    lines = re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9?;]*[A-Za-z]", "", screen.getvalue()))
    (last,) = {line for line in lines if "50%" in line}
    assert last.startswith("layer-sketch: ta")
    assert max(map(cell_len, lines)) <= 44


def test_what_is_written_into_a_log_ends_lines(tmp_path: Path) -> None:
    words = ["run", "split-mnist", "sgd", "--tasks", "2", "--n-train", "60", "--n-test", "40", "--epochs", "1"]
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    done = subprocess.run(
        [sys.executable, "-m", "sketchogd", *words, "--out", str(tmp_path), "--json"],
        **{"capture_output": True, "text": True, "timeout": 120, "env": environment},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["method"] == "sgd"
    lines = done.stderr.splitlines()
    assert lines[0].startswith("  0%  split-mnist sgd seed-0: task 1 of 2")
    assert lines[-1] == "100%  split-mnist sgd seed-0: finished"
    assert "\r" not in done.stderr
