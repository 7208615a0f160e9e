"""The blocks of the recipes run as they stand, one after the other, given only the models and data that they name."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import sketchogd as so

from .. import pages

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def run(page, names):
    return pages.run(f"recipes/{page}", names)


def net(outputs=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, outputs))


def points(seed, n=64):
    g = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(n, 16, generator=g), torch.randint(0, 4, (n,), generator=g))


def test_transformers(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'sketchogd[transformers]'")
    from transformers import TrainingArguments

    from .bert import USUAL, bert
    from .tasks import Markers

    data = {f"{name}_dataset": Markers(i, 32) for i, name in enumerate(("first", "second", "other"))}
    arguments = TrainingArguments(str(tmp_path), **{**USUAL, "max_steps": 2})
    names = run("transformers.md", {**data, "model": bert(), "args": arguments})
    assert names["args"].logging_steps == 50
    names["args"].logging_steps = 1
    names["trainer"].train()
    assert names["callback"].protection.memory.examples == 96
    assert any("protection/displacement" in logs for logs in names["trainer"].state.log_history)


def test_peft(tmp_path):
    pytest.importorskip("peft", reason="peft is not installed: pip install 'sketchogd[transformers]'")
    from transformers import TrainingArguments

    from .bert import USUAL, bert
    from .tasks import Markers

    def batches(task):
        return [({"input_ids": Markers(task, 16).tokens}, Markers(task, 16).labels)]

    data = {"first_dataset": Markers(0, 32), "second_dataset": Markers(1, 32)}
    arguments = TrainingArguments(str(tmp_path), **{**USUAL, "max_steps": 2})
    more = {"legal_batches": batches(0), "medical_batches": batches(1)}
    names = run("peft.md", {**data, **more, "load_base": bert, "args": arguments})
    assert (tmp_path / "adapter" / "sketchogd.safetensors").exists()
    assert names["legal"].memory.examples == 16


def test_accelerate():
    pytest.importorskip("accelerate", reason="accelerate is not installed: pip install 'sketchogd[transformers]'")
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    model = net()
    names = {"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "cross_entropy": cross_entropy}
    names = run("accelerate.md", {**names, "loader": DataLoader(points(0), 16)})
    AcceleratorState._reset_state(reset_partial_state=True)
    assert names["protection"].memory.examples == 64
    assert names["protection"].parameters.shapes[-1] == (5,)
    assert Path("memory.safetensors").exists()


def test_lightning():
    pytest.importorskip("lightning", reason="lightning is not installed: pip install 'sketchogd[lightning]'")
    loaders = {"first_loader": DataLoader(points(0), 32), "second_loader": DataLoader(points(1), 32)}
    names = run("lightning.md", {**loaders, "network": net(), "__name__": "a script"})
    assert names["callback"].protection.memory.examples == 128
    assert isinstance(names["callback"].protection, so.Protection)


def test_avalanche():
    pytest.importorskip("dill", reason="Avalanche needs dill: pip install 'sketchogd[avalanche]'")
    from . import stubs

    try:
        stubs.import_avalanche()
    except ImportError as error:
        pytest.skip(f"Avalanche is not installed ({error}): see docs/recipes/avalanche.md")
    from avalanche.benchmarks import tensors_benchmark

    pairs = [points(seed).tensors for seed in (0, 1)]
    benchmark = tensors_benchmark(train_tensors=pairs, test_tensors=pairs, task_labels=[0, 0])
    names = run("avalanche.md", {"model": net(), "benchmark": benchmark})
    assert names["plugin"].protection.memory.examples == 128
