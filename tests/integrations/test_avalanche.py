"""Avalanche's strategies with `SketchOGDPlugin`: heads that grow, heads per task, loggers, going on from a file."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sketchogd as so

pytest.importorskip("lightning", reason="Avalanche needs torchmetrics and more: pip install 'sketchogd[avalanche]'")
pytest.importorskip("dill", reason="Avalanche needs dill: pip install 'sketchogd[avalanche]'")

from . import stubs

try:
    stubs.import_avalanche()
except ImportError as error:
    pytest.skip(f"Avalanche is not installed ({error}): see docs/recipes/avalanche.md", allow_module_level=True)

from . import ava
from .tasks import fingerprint

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:avalanche", "ignore::DeprecationWarning")


def learn(kind, plugins):
    strategy, benchmark = ava.strategy(kind, plugins), ava.benchmark(kind)
    found = []
    for experience in benchmark.train_stream:
        strategy.train(experience)
        found.append([ava.accuracy(strategy, experience) for experience in benchmark.test_stream[: len(found) + 1]])
    return strategy, found


def test_two_lines_keep_the_first_experience_where_the_head_grows():
    plugin = ava.plugin(strength=30.0)
    (_, free), (_, kept) = learn("growing", []), learn("growing", [plugin])
    assert free[1][0] < free[0][0] - 0.2, free
    assert kept[1][0] >= kept[0][0] - 0.03, kept
    assert min(kept[0][0], kept[1][1]) > 0.9, kept
    assert plugin.protection.memory.examples == 2 * 128


def test_heads_of_earlier_tasks_stay_where_each_task_has_its_own():
    moved = []
    for plugins in ([], [ava.plugin(strength=1e4)]):
        strategy, benchmark = ava.strategy("multihead", plugins), ava.benchmark("multihead")
        strategy.train(benchmark.train_stream[0])
        before = ava.outputs(strategy, benchmark.test_stream[0])
        strategy.train(benchmark.train_stream[1])
        moved.append(float((ava.outputs(strategy, benchmark.test_stream[0]) - before).norm()))
        assert ava.accuracy(strategy, benchmark.test_stream[1]) > 0.9
    assert moved[1] < 0.3 * moved[0], moved


def test_numbers_reach_the_loggers():
    strategy, _ = learn("growing", [ava.plugin(log_every=4)])
    found = strategy.evaluator.get_last_metrics()
    assert found["Protection/examples"] == 128
    steps, values = strategy.evaluator.get_all_metrics()["Protection/displacement"]
    assert len(steps) == len(values) == 2 * ava.EPOCHS * 8 // 4
    assert values[0] == 0 < values[-1]
    assert found["Protection/forgetting_estimate"] > 0


def test_evaluation_during_an_experience_sees_settled_weights():
    plugin = ava.SketchOGDPlugin(memory=so.LayerMemory(8, rule=so.Project()), every=5)
    watch = ava.Watch(plugin)
    strategy, benchmark = ava.strategy("growing", [plugin, watch], eval_every=1), ava.benchmark("growing")
    for experience in benchmark.train_stream:
        strategy.train(experience)
    assert watch.waiting
    assert not any(watch.waiting)


def test_another_process_goes_on_from_the_path_to_the_same_numbers(tmp_path):
    path = tmp_path / "memory"
    strategy, benchmark = ava.strategy("growing", [ava.plugin(path=path)]), ava.benchmark("growing")
    strategy.train(benchmark.train_stream[0])
    torch.save(strategy.model.state_dict(), tmp_path / "model")
    for name in ("memory.first", "memory.again"):
        (tmp_path / name).write_bytes(path.read_bytes())
    # Avalanche gives the same optimizer to the next experience; another process begins with a new one.
    again = ava.strategy("growing", [plugin := ava.plugin(path=tmp_path / "memory.first")], strategy.model)
    strategy.plugins[0].protection.detach()
    again.train(benchmark.train_stream[1])
    code = [sys.executable, "-m", "tests.integrations.ava", str(tmp_path)]
    found = subprocess.run(code, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert found.returncode == 0, found.stderr[-3000:]
    line = next(line for line in found.stdout.splitlines() if line.startswith("numbers"))
    assert line.split()[1:] == fingerprint(again.model, plugin.protection)


@pytest.mark.parametrize("kind", ["ewc", "replay"])
def test_it_goes_with_other_plugins_and_strategies(kind):
    plugin = ava.plugin()
    strategy, benchmark = ava.other(kind, [plugin]), ava.benchmark("growing")
    for experience in benchmark.train_stream:
        strategy.train(experience)
    assert plugin.protection.memory.examples == 2 * 128
    assert plugin.protection.metrics()["steps"] > 0
