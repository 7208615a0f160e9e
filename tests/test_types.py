"""py.typed holds: a user's program on the public names passes `mypy --strict`, and the types are not Any."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PROGRAM = """
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sketchogd as so
from sketchogd import theory
from sketchogd.lab import Learner, RunConfig, Training, benchmark, fit, method, mlp, register, register_stream, run_grid
from sketchogd.lab import Stream, Task, from_datasets
from sketchogd.lab.methods import Method, Setup

Batches = Iterable[tuple[Tensor, Tensor]]


def train(model: nn.Module, tasks: list[Batches]) -> so.Protection:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    protection = so.protect(model, optimizer, budget="2MB", every=50)
    for task in tasks:
        for inputs, targets in task:
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(model(inputs), targets))
            optimizer.step()
        protection.remember(task)
        with protection.settled():
            print(protection.ledger().nbytes, protection.coverage())
    protection.save(Path("memory.safetensors"))
    return protection


memories: list[so.Memory] = [
    so.LayerMemory(rank=8, rule=so.Pull(strength=5.0)),
    so.LayerMemory(rank={"0.inputs": 4}, ridge=0.1),
    so.GradientMemory(so.ProductSketch(8, test_matrix=so.SparseSign(2)), blocks=4),
]
protection = train(mlp(), [])
reveal_type(protection)
reveal_type(protection.ledger())
reveal_type(protection.coverage())
reveal_type(protection.forgetting())
reveal_type(protection.diagnostics())
reveal_type(protection.memory)
reveal_type(so.LayerMemory(8).rule)
reveal_type(so.per_example_gradients)
reveal_type(theory.recommend)
chosen: so.ProtectedParameters = so.ProtectedParameters(mlp(), so.excluding(mlp()))


class Mine(Learner):
    def end_task(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        return None

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        return None


@register("mine", "my own method", strength=1.0)
def mine(settings: Method, setup: Setup) -> Learner:
    return Mine()


@register_stream("my-stream")
def my_stream(seed: int) -> Stream:
    x, y = torch.randn(4, 2), torch.zeros(4, dtype=torch.int64)
    return from_datasets([Task(x, y, x, y, name="one", classes=2)])


result = fit(benchmark("split-mnist"), mlp(), method("layer-memory", budget=2_000_000), Training(epochs=1))
reveal_type(result)
reveal_type(run_grid([RunConfig("split-mnist", method("sgd"))], "runs", jobs=2))
"""

EXPECTED = [
    "sketchogd.protection.Protection",
    "sketchogd.ledger.Ledger",
    "sketchogd.coverage.Coverage",
    "float | None",
    "dict[str, Any]",
    "sketchogd.memory.base.Memory",
    "sketchogd.projector.rules.Rule",
    "def (",
    "def (",
    "sketchogd.lab.runs.loop.Result",
    "list[sketchogd.lab.runs.grid.Outcome]",
]


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """What mypy says of the program."""
    pytest.importorskip("mypy", reason="mypy checks types; `make` installs it")
    path = tmp_path_factory.mktemp("types") / "program.py"
    path.write_text(PROGRAM)
    config = path.parent / "mypy.ini"
    config.write_text(f"[mypy]\nstrict = True\nmypy_path = {ROOT / 'src'}\nfollow_imports = silent\n")
    words = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(config),
        "--cache-dir",
        str(ROOT / ".mypy_cache" / "user"),
    ]
    done = subprocess.run([*words, str(path)], cwd=path.parent, capture_output=True, text=True, timeout=600)
    return done.stdout


def test_a_user_s_program_passes_strict_checks(checked):
    assert "error:" not in checked, checked
    assert "Success" in checked


def test_public_types_are_known(checked):
    revealed = re.findall(r'Revealed type is "(.*)"', checked.replace("builtins.", ""))
    assert len(revealed) == len(EXPECTED), checked
    for found, wanted in zip(revealed, EXPECTED, strict=True):
        assert found.startswith(wanted.replace("builtins.", "")), (found, wanted)
