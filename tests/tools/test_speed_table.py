"""The table of speeds on docs/speed.md: values, targets and verdicts from the files, dashes elsewhere, and no drift."""

import json
import shutil
from pathlib import Path

import pytest

from sketchogd.lab.speed.ratios import Ratio
from tools import results_page, speed_table
from tools.results import main

REPOSITORY = Path(__file__).parents[2]


def written(*ratios: Ratio) -> dict:
    return {"machine": {"torch": "9.9"}, "ratios": [ratio.as_dict() for ratio in ratios]}


def cells(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {speed_table.ROWS[name]} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_values_targets_and_verdicts_come_from_the_files():
    basis, share, graph = (
        "basis of ProductSketch",
        "remembering with GradientSketch",
        "training: a step of 5 seeds with lazy projection, as a CUDA graph",
    )
    cpu = written(Ratio(basis, 1.114, 1.0, at_least=False), Ratio(share, 123.4, 0.8), Ratio("not in the table", 7.0, 1))
    gpu = written(Ratio(basis, 1.114, None, at_least=False), Ratio(share, float("nan"), 0.6), Ratio(graph, 0.125, None))
    text = speed_table.speed_table(cpu, gpu)
    assert cells(text, basis) == ["**1.11**", "≤ 1", "1.11", "–"]
    assert cells(text, share) == ["123", "≥ 0.8", "–", "–"]
    assert cells(text, graph) == ["–", "–", "0.12", "–"]
    assert cells(text, "memory over p") == ["–"] * 4
    assert "torch 9.9 on the CPU" in text
    assert "not in the table" not in text


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of what this repository has, to be spoilt."""
    for name in (speed_table.PAGE, *speed_table.FILES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    speed_table.write(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", speed_table.FILES)
def test_a_number_that_changes_is_noticed_and_written(repository: Path, name: str):
    before = (repository / speed_table.PAGE).read_text()
    content = json.loads((repository / name).read_text())
    (ratio,) = [each for each in content["ratios"] if each["name"] == "projection, p = 113,610"]
    ratio["value"] = 0.123
    (repository / name).write_text(json.dumps(content))
    assert len(speed_table.check(repository)) == 1
    speed_table.write(repository)
    assert speed_table.check(repository) == []
    after = (repository / speed_table.PAGE).read_text()
    assert "0.12" in "".join(cells(after, "projection, p = 113,610"))
    assert before.split(speed_table.BEGIN)[0] == after.split(speed_table.BEGIN)[0]
    assert before.split(speed_table.END)[1] == after.split(speed_table.END)[1]


def test_the_command_writes_and_checks_it(repository: Path, monkeypatch):
    for other in ("write", "check"):
        monkeypatch.setattr(results_page, other, lambda *where: [])
    page = repository / speed_table.PAGE
    where = ["--repository", str(repository)]
    assert main([*where, "--check"]) == 0
    right = page.read_text()
    page.write_text(right.replace("| target |", "| goal |", 1))
    assert main([*where, "--check"]) == 1
    assert main([*where, "--write"]) == 0
    assert page.read_text() == right


def test_a_page_without_its_markers_is_refused(repository: Path):
    (repository / speed_table.PAGE).write_text("nothing here")
    with pytest.raises(ValueError, match="needs the two lines"):
        speed_table.write(repository)


def test_without_measurements_there_is_nothing_to_say(tmp_path: Path):
    assert speed_table.write(tmp_path) == speed_table.check(tmp_path) == []


def test_this_repository_s_page_has_what_was_measured():
    for name in speed_table.FILES:
        known = {ratio["name"] for ratio in json.loads((REPOSITORY / name).read_text())["ratios"]}
        assert len(known & set(speed_table.ROWS)) > len(speed_table.ROWS) / 2, f"{name} has other names of rows"
    assert speed_table.check(REPOSITORY) == [], "run: python -m tools.results --write"
