"""Lightning's Trainer with `ForgettingCallback`, and Fabric with `protect` itself."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import sketchogd as so

pytest.importorskip("lightning", reason="lightning is not installed: pip install 'sketchogd[lightning]'")

from ..distributed.processes import together
from . import lit
from .tasks import fingerprint

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore::FutureWarning")


def learn(callbacks, tmp_path):
    model, found = lit.module(), []
    for task in (0, 1):
        lit.fit(model, task, tmp_path, callbacks)
        found.append([lit.accuracy(model, 0), lit.accuracy(model, 1)])
    return found


def test_two_lines_keep_the_first_task_over_two_fits(tmp_path):
    free, kept = learn([], tmp_path), learn([lit.callback()], tmp_path)
    assert free[1][0] < free[0][0] - 0.2, free
    assert kept[1][0] >= kept[0][0] - 0.03, kept
    assert min(kept[0][0], kept[1][1]) > 0.9, kept


def test_fit_resumes_in_another_process_to_the_same_numbers(tmp_path):
    model, callback = lit.module(), lit.callback()
    lit.fit(model, 0, tmp_path, [callback], max_steps=10)
    lit.fit(model, 1, tmp_path, [callback, lit.checkpoints(tmp_path, 8)], max_steps=16)
    code = [sys.executable, "-m", "tests.integrations.lit", str(tmp_path / "step=8.ckpt")]
    found = subprocess.run(code, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert found.returncode == 0, found.stderr[-3000:]
    line = next(line for line in found.stdout.splitlines() if line.startswith("numbers"))
    assert line.split()[1:] == fingerprint(model, callback.protection)


def test_checkpoints_and_validation_see_settled_weights(tmp_path):
    callback = lit.ForgettingCallback(memory=so.LayerMemory(8, rule=so.Project()), every=5)
    model = lit.module()
    lit.fit(model, 0, tmp_path, [callback], max_steps=2)
    watch = lit.Watch(callback)
    loaders = lit.loader(1), lit.loader(0)
    lit.trainer(tmp_path, [callback, watch, lit.checkpoints(tmp_path, 3)], max_steps=7, val_check_interval=2).fit(
        model, *loaders
    )
    assert watch.validated
    assert not any(watch.validated)
    stored = torch.load(tmp_path / "step=3.ckpt", weights_only=True)
    assert stored["callbacks"]["ForgettingCallback"]["meta"]["remembered"]
    assert watch.at_three is not None
    assert all(torch.equal(stored["state_dict"][name], t) for name, t in watch.at_three.items())


def test_numbers_reach_the_logger(tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    logger, model, callback = CSVLogger(tmp_path), lit.module(), lit.callback()
    lit.fit(model, 0, tmp_path, [callback], max_steps=1)
    lit.fit(model, 1, tmp_path, [callback], max_steps=4, logger=logger, log_every_n_steps=2)
    first, *rows = csv.reader((Path(logger.log_dir) / "metrics.csv").read_text().splitlines())
    assert "protection/displacement" in first
    found = [float(row[first.index("protection/forgetting_estimate")]) for row in rows]
    assert len(found) == 2
    assert 0 < found[0] < found[1]


def test_a_second_callback_goes_on_from_the_path(tmp_path):
    model, path = lit.module(), tmp_path / "memory"
    lit.fit(model, 0, tmp_path, [lit.callback(path=path)], max_steps=2)
    again = lit.callback(path=path, examples=20)
    lit.fit(model, 1, tmp_path, [again], max_steps=2)
    assert again.protection.memory.examples == 128 + 20
    part = lit.callback(module="net", remember=lit.loader(0))
    lit.fit(lit.module(), 0, tmp_path, [part], max_steps=2)
    assert part.protection.memory.examples == 128
    assert all(not name.startswith("net.") for name in part.protection.parameters.names)


def test_what_goes_wrong_is_said_with_what_to_do(tmp_path):
    callback = lit.callback()
    lit.fit(lit.module(), 0, tmp_path, [callback], max_steps=1)
    with pytest.raises(so.ProtectionError, match="another model object"):
        lit.fit(lit.module(), 0, tmp_path, [callback], max_steps=1)
    with pytest.raises(so.ProtectionError, match=r"one optimizer.*returned 2"):
        lit.fit(lit.two_optimizers(), 0, tmp_path, [lit.callback()], max_steps=1)


def test_protect_in_configure_optimizers_survives_a_second_fit(tmp_path):
    model = lit.protecting()
    for task in (0, 1):
        lit.fit(model, task, tmp_path, max_steps=3)
        model.protection.remember(lit.loader(task))
    assert model.protection.memory.examples == 2 * 128
    assert model.protection.metrics()["steps"] == 6


def test_fabric_takes_protect_as_it_is():
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", precision="bf16-mixed")
    moved = []
    for strength in (1e6, None):
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
        model, optimizer = fabric.setup(inner, torch.optim.AdamW(inner.parameters(), lr=1e-2))
        protection = so.protect(model, optimizer, budget="40KB", strength=strength)
        x, y = torch.randn(64, 6), torch.randint(0, 4, (64,))
        protection.remember([(x, y)])
        before = inner(x).detach()
        if strength is None:
            protection.detach()
        for _ in range(10):
            optimizer.zero_grad()
            fabric.backward(nn.functional.cross_entropy(model(torch.randn(32, 6)), torch.randint(0, 4, (32,))))
            optimizer.step()
        moved.append(float((inner(x).detach() - before).norm()))
    assert moved[0] < 0.3 * moved[1], moved


def _surroundings(rank, size):
    import os
    import warnings

    warnings.resetwarnings()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1", WORLD_SIZE=str(size), NODE_RANK="0")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), GROUP_RANK="0", LOCAL_WORLD_SIZE=str(size))
    os.environ["TORCHELASTIC_RUN_ID"] = "a test"  # Lightning then leaves starting processes to others


def _ranks(rank, size, folder):
    _surroundings(rank, size)
    model, callback = lit.module(), lit.callback()
    for task in (0, 1):
        lit.fit(model, task, folder, [callback], max_steps=6, devices=size, strategy="ddp")
    return fingerprint(model, callback.protection), callback.protection.memory.examples


def test_two_processes_stay_equal_and_remember_each_example_once(tmp_path):
    (one, examples), (two, _) = together(_ranks, 2, tmp_path, str(tmp_path), limit=120)
    assert one == two
    assert examples == 2 * 128


def _sharded(rank, size, folder):
    """How far the outputs of remembered examples go in a second task, protected and not; and the protection."""
    from lightning.pytorch.strategies import ModelParallelStrategy

    _surroundings(rank, size)
    x, y = lit.data(0, 32).tensors
    moved = []
    for protect in (False, True):
        model = lit.sharded()
        memory = so.GradientMemory(so.ProductSketch(48))
        callback = lit.ForgettingCallback(memory=memory, remember=lit.data(0, 32))
        options = {"devices": size, "strategy": ModelParallelStrategy(size, 1), "max_steps": 6}
        lit.fit(model, 0, folder, [callback], **options)
        before = _true_logits(model, x, y)
        if not protect:
            callback.protection.detach()
        options["strategy"] = ModelParallelStrategy(size, 1)
        lit.fit(model, 1, folder, [callback] if protect else [], **options)
        moved.append(float((_true_logits(model, x, y) - before).norm()))
    kinds = {type(p).__name__ for p in callback.protection.parameters.tensors}
    return moved, list(kinds), callback.protection.metrics()


@torch.no_grad()
def _true_logits(model, x, y):
    found = model.net(x).gather(1, y[:, None])
    model.net.reshard()
    return found


def test_fsdp2_is_protected_by_a_sketch_of_gradients(tmp_path):
    (one, kinds, numbers), (two, _, others) = together(_sharded, 2, tmp_path, str(tmp_path), limit=120)
    assert one == two
    assert one[1] < 0.5 * one[0]
    assert kinds == ["DTensor"]
    assert numbers == others
    assert numbers["examples"] == 64
