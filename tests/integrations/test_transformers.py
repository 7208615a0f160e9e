"""transformers' Trainer with `ForgettingCallback`: what is learned stays, under every option that people train with."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sketchogd as so

from .tasks import Markers, fingerprint

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'sketchogd[transformers]'")
pytest.importorskip("accelerate", reason="accelerate is not installed: pip install 'sketchogd[transformers]'")

from torch.utils.data import DataLoader, IterableDataset
from transformers import TrainerCallback

from sketchogd.integrations.transformers import FILE, ForgettingCallback

from ..distributed.processes import together
from . import fsdp
from .bert import accuracy, bert, outputs, trainer

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def learn(callbacks, tmp_path):
    model, found = bert(), []
    for task in (0, 1):
        trainer(model, task, tmp_path, callbacks, max_steps=240, learning_rate=1e-3).train()
        found.append([accuracy(model, 0), accuracy(model, 1)])
    return found


def test_two_lines_keep_the_first_task(tmp_path):
    """At the usual strength this small network, random and with one head for both, loses the first task in part."""
    free, kept = learn([], tmp_path), learn([ForgettingCallback("2MB", strength=5.0)], tmp_path)
    assert free[1][0] < free[0][0] - 0.2
    assert kept[1][0] >= kept[0][0] - 0.03
    assert min(kept[0][0], kept[1][1]) > 0.9


OPTIONS = {
    "accumulation": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 8},
    "bf16": {"bf16": True},
    "compiled": {"torch_compile": True, "torch_compile_backend": "eager"},
    "checkpointing": {"gradient_checkpointing": True},
    "sgd": {"optim": "sgd", "learning_rate": 0.1},
    "adafactor": {"optim": "adafactor"},
}


@pytest.mark.filterwarnings("ignore:torch.func cannot")  # with gradient checkpointing; slower, and as right
@pytest.mark.parametrize("kind", OPTIONS)
def test_every_way_to_train_is_protected(kind, tmp_path):
    """Far more strength than is of use: whatever goes past the protection would move the outputs."""
    moved = {}
    for strength in (1e6, None):
        model = bert()
        callback = ForgettingCallback("1MB", strength=strength, examples=32)
        trainer(model, 0, tmp_path, [callback], n=48, max_steps=6, **OPTIONS[kind]).train()
        before = outputs(model)
        if strength is None:
            callback.protection.detach()
        trainer(model, 1, tmp_path, [callback] if strength else [], max_steps=12, **OPTIONS[kind]).train()
        moved[strength] = float((outputs(model) - before).norm())
        if strength:
            assert callback.protection.metrics()["steps"] == 12 + 6
            assert callback.protection.memory.examples == 64
    assert moved[1e6] < 0.35 * moved[None]


def test_training_resumes_in_another_process_to_the_same_numbers(tmp_path):
    callback, model = ForgettingCallback("1MB"), bert()
    trainer(model, 0, tmp_path / "first", [callback], max_steps=10).train()
    options = {"max_steps": 12, "save_strategy": "steps", "save_steps": 6}
    trainer(model, 1, tmp_path / "second", [callback], **options).train()
    assert (tmp_path / "second" / "checkpoint-6" / FILE).exists()
    code = [sys.executable, "-m", "tests.integrations.bert", str(tmp_path / "second")]
    found = subprocess.run(code, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert found.returncode == 0, found.stderr[-3000:]
    line = next(line for line in found.stdout.splitlines() if line.startswith("numbers"))
    assert line.split()[1:] == fingerprint(model, callback.protection)


def test_a_second_trainer_goes_on_from_the_path(tmp_path):
    path, model = tmp_path / "new" / "memory", bert()
    trainer(model, 0, tmp_path, [ForgettingCallback("1MB", path=path)], max_steps=2).train()
    callback = ForgettingCallback("1MB", path=path, remember=Markers(1), examples=50)
    trainer(model, 1, tmp_path, [callback], max_steps=2).train()
    assert callback.protection.memory.examples == 128 + 50
    assert callback.protection.memory.tasks == 2
    again = ForgettingCallback("1MB", path=path)
    trainer(model, 1, tmp_path, [again], max_steps=1).train()
    assert again.protection.memory.examples == 128 + 50 + 128


class Stream(IterableDataset):
    def __iter__(self):
        return iter(list(Markers(0)))


class WithText(Markers):
    def __getitem__(self, i):
        return {**super().__getitem__(i), "text": "the words that the tokens were made of"}


def collated(features):
    return {key: torch.stack([f[key] for f in features]) for key in ("input_ids", "labels")}


SOURCES = {
    "stream": (lambda: Stream(), None),
    "columns": (lambda: WithText(0), None),
    "collator": (lambda: WithText(0), collated),
    "loader": (lambda: DataLoader(WithText(0), 16, collate_fn=collated), None),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_what_is_remembered_may_be_given_in_many_forms(kind, tmp_path):
    source, collator = SOURCES[kind]
    callback = ForgettingCallback("1MB", remember=source(), collator=collator, examples=40)
    trainer(bert(), 0, tmp_path, [callback], max_steps=1).train()
    assert callback.protection.memory.examples == 40


def test_a_stream_that_is_trained_on_is_remembered_up_to_the_limit(tmp_path):
    callback = ForgettingCallback("1MB", examples=24)
    trainer(bert(), 0, tmp_path, [callback], max_steps=1, data=Stream()).train()
    assert callback.protection.memory.examples == 24


class Reporter(TrainerCallback):
    """Like those of TensorBoard and W&B, which a Trainer tells before other callbacks."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(dict(logs))


def test_numbers_are_logged_beside_the_loss_and_through_the_trainer(tmp_path):
    model, callback, before, after = bert(), ForgettingCallback("1MB"), Reporter(), Reporter()
    logging = {"max_steps": 4, "logging_strategy": "steps", "logging_steps": 2}
    made = trainer(model, 0, tmp_path, [before, callback], **logging)
    made.add_callback(after)
    made.train()
    name = "protection/displacement"
    assert [name in logs for logs in after.logs if "loss" in logs] == [True, True]
    assert [name in logs for logs in made.state.log_history if "loss" in logs] == [True, True]
    assert not any(name in logs for logs in before.logs)
    made = trainer(model, 1, tmp_path, [before, callback], **logging)
    callback.trainer = made
    made.train()
    found = [logs[name] for logs in before.logs if name in logs]
    assert len(found) == 2
    assert found[1] > 0
    assert all(isinstance(value, (int, float)) for logs in before.logs for value in logs.values())


def test_tensorboard_has_the_predicted_forgetting(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    model, callback = bert(), ForgettingCallback("1MB")
    logging = {"max_steps": 4, "logging_strategy": "steps", "logging_steps": 2, "report_to": "tensorboard"}
    for task in (0, 1):
        made = trainer(model, task, tmp_path / str(task), [], **logging)
        callback.trainer = made
        made.add_callback(callback)
        made.train()
    (file,) = (tmp_path / "1").rglob("events.out.*")
    found = events.EventAccumulator(str(file)).Reload()
    (name,) = (tag for tag in found.Tags()["scalars"] if tag.endswith("protection/forgetting_estimate"))
    assert [event.step for event in found.Scalars(name)] == [2, 4]
    assert found.Scalars(name)[-1].value > 0


class Watch(TrainerCallback):
    """Notes how many steps wait while the model is evaluated, and whether checkpoints have the weights as they are."""

    def __init__(self, callback):
        self.callback, self.pending, self.saved = callback, [], []

    def on_prediction_step(self, *_, **__):
        self.pending.append(self.callback.protection.pending)

    def on_save(self, args, state, control, model=None, **_):
        from safetensors.torch import load_file

        stored = load_file(f"{args.output_dir}/checkpoint-{state.global_step}/model.safetensors")
        self.saved.append(all(torch.equal(stored[name], p.detach()) for name, p in model.named_parameters()))


def test_evaluations_and_checkpoints_see_settled_weights(tmp_path):
    callback = ForgettingCallback(memory=so.LayerMemory(8, rule=so.Project()), every=5)
    model, watch = bert(), Watch(callback)
    trainer(model, 0, tmp_path, [callback], max_steps=2).train()
    when = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 4, "max_steps": 9}
    trainer(model, 1, tmp_path, [callback, watch], eval_data=Markers(0, 16), **when).train()
    assert watch.pending
    assert not any(watch.pending)
    assert watch.saved == [True] * 3
    assert callback.protection.metrics()["pending"] == 0


def test_what_goes_wrong_is_said_with_what_to_do(tmp_path):
    callback = ForgettingCallback("1MB")
    trainer(bert(), 0, tmp_path / "a", [callback], max_steps=2, save_strategy="steps", save_steps=1).train()
    with pytest.raises(so.ProtectionError, match=r"another model object.*path="):
        trainer(bert(), 0, tmp_path / "b", [callback], max_steps=2).train()
    with pytest.raises(so.ProtectionError, match=r"no folder .*checkpoint=FOLDER"):
        trainer(bert(), 0, tmp_path / "c", [ForgettingCallback("1MB")], max_steps=2).train(
            resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1")
        )
    told = ForgettingCallback("1MB", checkpoint=tmp_path / "a" / "checkpoint-1")
    made = trainer(bert(), 0, tmp_path / "c", [told], max_steps=2)
    made.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1"))
    (tmp_path / "a" / "checkpoint-1" / FILE).unlink()
    with pytest.warns(so.ProtectionWarning, match="NOTHING IS REMEMBERED"):
        trainer(bert(), 0, tmp_path / "a", [ForgettingCallback("1MB")], max_steps=2).train(
            resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1")
        )
    with pytest.raises(ValueError, match="exactly one of budget="):
        trainer(bert(), 0, tmp_path / "d", [ForgettingCallback()], max_steps=2).train()


def _ranks(rank, size, folder):
    import os
    import warnings

    warnings.resetwarnings()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", ACCELERATE_USE_CPU="true", HF_HUB_OFFLINE="1")
    model, callback = bert(), ForgettingCallback("1MB")
    options = {"max_steps": 6, "per_device_train_batch_size": 8, "save_strategy": "steps", "save_steps": 3}
    for task in (0, 1):
        trainer(model, task, f"{folder}/{task}", [callback], n=50, **options).train()
    found = fingerprint(model, callback.protection)
    return found, callback.protection.memory.examples, float(callback.protection.metrics()["displacement"])


def test_two_processes_stay_equal_and_remember_each_example_once(tmp_path):
    (one, examples, moved), (two, *_) = together(_ranks, 2, tmp_path, str(tmp_path), limit=120)
    assert one == two
    assert examples == 100
    assert 0.0 < moved < 1.0
    assert (tmp_path / "1" / "checkpoint-3" / FILE).exists()


def test_fsdp2_shards_the_weights_and_a_sketch_of_gradients_protects_them(tmp_path):
    (free, kept, sharded, numbers), (*_, others) = together(fsdp.protected, 2, tmp_path, str(tmp_path), limit=150)
    assert sharded
    assert 0 < kept < 0.5 * free
    assert numbers == others
    assert numbers["steps"] == 48
    assert numbers["examples"] == 64


def test_fsdp2_resumes_from_a_checkpoint_to_the_same_numbers(tmp_path):
    found = together(fsdp.resumed, 2, tmp_path, str(tmp_path), limit=150)
    for whole, again, memory, examples in found:
        assert torch.equal(whole, again)
        assert torch.equal(whole, found[0][0])
        assert memory.startswith("LayerMemory")
        assert examples == 100
    assert (tmp_path / "1" / "checkpoint-4" / FILE).exists()


def test_fsdp2_shards_the_anchor_of_a_layer_memory(tmp_path):
    for kept, free, memory, nbytes in together(fsdp.pulled, 2, tmp_path, str(tmp_path), limit=150):
        assert memory == "layers"
        assert nbytes <= 1_000_000
        assert kept < 0.5 * free
