"""`sketchogd protect-check`: what it says before training is what a protection then has."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import sketchogd as so
from sketchogd.cli import protect_check
from sketchogd.coverage import Coverage, Row
from tests.cli.test_cli import call
from tests.cli.test_options import refused

MODEL = """
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 4))


def frozen():
    model = build()
    model[0].requires_grad_(False)
    return model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)


def batch():
    return torch.randn(24, 20), torch.randint(0, 4, (24,))


class Spare(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(20, 4), nn.Linear(20, 4)

    def forward(self, x):
        return self.used(x)


def spare():
    return Spare()


def number():
    return 3


def fails():
    raise RuntimeError("no weights\\nhere")


def pair():
    return build(), "sgd"
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path / "model.py"


def test_it_says_what_a_protection_says(path: Path) -> None:
    found = json.loads(call("protect-check", f"{path}:build", "--budget", "100%", "--json").stdout)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 4))
    own = so.protect(model, torch.optim.Adam(model.parameters()), budget="100%")
    assert found["nbytes"] == own.ledger().nbytes
    assert [(row["parameter"], row["protected"]) for row in found["coverage"]] == [
        (r.name, r.how) for r in own.coverage()
    ]
    assert [entry["tensor"] for entry in found["ledger"]] == [entry.name for entry in own.ledger()]
    assert found["reason"] == own.diagnostics()["reason"]
    assert found["parameters"] == own.parameters.p


def test_budgets_are_compared_and_small_ones_are_said_to_be_too_small(path: Path) -> None:
    words = ["protect-check", f"{path}:build", "--budget", "1%", "--budget", "90%", "--budget", "1MB"]
    found = json.loads(call(*words, "--json").stdout)
    rows = found["budgets"]
    assert [row["budget"] for row in rows] == ["1%", "90%", "1MB"]
    assert rows[0]["bytes"] is None
    assert "too small" in rows[0]["note"]
    assert 0 < rows[1]["bytes"] <= 0.9 * 4 * found["parameters"] < rows[2]["bytes"]
    assert found["budget"] == "90%", "the first that is enough is looked at closely"
    shown = call(*words).stdout
    assert "too small" in shown
    assert rows[2]["memory"] in " ".join(shown.split())
    assert "too small" in refused("protect-check", f"{path}:build", "--budget", "1%")


def test_settings_reach_the_protection(path: Path) -> None:
    words = ["protect-check", f"{path}:build", "--budget", "1MB", "--strength", 11, "--parameters", "3.*", "--every", 5]
    found = json.loads(call(*words, "--optimizer", "sgd", "--json").stdout)
    assert "strength 11" in found["memory"]
    assert found["parameters"] == 32 * 4 + 4
    assert {row["parameter"]: row["protected"] for row in found["coverage"]}["0.weight"] == "not protected: not chosen"


def test_a_batch_shows_what_no_output_depends_on(path: Path) -> None:
    words = ["protect-check", f"{path}:spare", "--budget", "1MB", "--json"]
    before, after = (
        {row["parameter"]: row["protected"] for row in json.loads(call(*words, *more).stdout)["coverage"]}
        for more in ((), ("--batch", f"{path}:batch"))
    )
    assert not before["spare.weight"].startswith("free so far")
    assert after["spare.weight"].startswith("free so far: nothing observed depends on it")
    assert not after["used.weight"].startswith("free so far")
    assert "no batch was given" in call(*words[:-1]).stderr
    assert "no batch was given" not in call(*words[:-1], "--batch", f"{path}:batch").stderr


def test_a_model_with_its_optimizer_is_taken_as_it_is(path: Path) -> None:
    found = json.loads(call("protect-check", f"{path}:frozen", "--budget", "1MB", "--json").stdout)
    assert "requires no gradient" in {row["parameter"]: row["protected"] for row in found["coverage"]}["0.weight"]


def test_what_nothing_protects_is_named_with_exit_code_1(path: Path, monkeypatch) -> None:
    def bare(self: so.Protection) -> Coverage:
        return Coverage((Row("lost.weight", (3,), "not protected: no memory has a place for it"),))

    monkeypatch.setattr(so.Protection, "coverage", bare)
    result = call("protect-check", f"{path}:build", "--budget", "1MB", code=1)
    assert "NOT PROTECTED: lost.weight" in result.stderr
    model = nn.Linear(1, 1)
    said = Coverage.of(model, model.parameters(), [], 0)
    assert all(row.how.startswith(protect_check.UNCOVERED) for row in said), "the words are those of coverage()"


@pytest.mark.parametrize("width", [44, 80])
def test_it_fits_the_terminal(path: Path, width: int, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = call("protect-check", f"{path}:build", "--batch", f"{path}:batch").stdout
    assert max(map(len, text.splitlines())) <= width
    for word in ("coverage()", "ledger()", "what a budget gives", "0.weight", "total"):
        assert word in text


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("model.py", "such as model.py:build"),
        ("model:build", "such as model.py:build"),
        ("nowhere.py:build", "no such Python file"),
        ("model.py:biuld", "did you mean build"),
        ("model.py:number", "torch.nn.Module"),
        ("model.py:fails", "model.py:fails failed: RuntimeError: no weights here"),
        ("model.py:pair", "torch.optim.Optimizer"),
    ],
)
def test_mistakes_are_one_line(path: Path, target: str, hint: str, monkeypatch) -> None:
    monkeypatch.chdir(path.parent)
    assert hint in refused("protect-check", target)
    assert "2 pints" in refused("protect-check", "model.py:build", "--budget", "2 pints")
    assert "did you mean adam" in refused("protect-check", "model.py:build", "--optimizer", "adma")
