"""PEFT: two tasks in turn with one adapter, several adapters, and a memory that lies beside the adapter."""

import pytest
import torch

import sketchogd as so

pytest.importorskip("peft", reason="peft is not installed: pip install 'sketchogd[transformers]'")
pytest.importorskip("transformers", reason="transformers is not installed: pip install 'sketchogd[transformers]'")

from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from torch import nn
from torch.nn.functional import cross_entropy

from sketchogd.integrations.transformers import FILE, ForgettingCallback

from .bert import bert, outputs, trainer
from .tasks import Markers

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
TARGETS = ["query", "key", "value", "dense"]


def lora(base=None, **options):
    torch.manual_seed(1)
    config = LoraConfig(r=8, lora_alpha=16, target_modules=TARGETS, modules_to_save=["classifier"], **options)
    return get_peft_model(base or bert(), config)


class Points(nn.Module):
    """Points about four centres, which the second task moves and gives other labels; a frozen body, as of a base."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 4)

    def forward(self, x, labels=None):
        logits = self.head(self.body(x))
        return {"logits": logits} if labels is None else {"loss": cross_entropy(logits, labels), "logits": logits}


def points(task, n=128, seed=0):
    g = torch.Generator().manual_seed(50)
    centres, moves = 1.5 * torch.randn(2, 4, 16, generator=g)
    g.manual_seed(10 * task + seed)
    y = torch.randint(0, 4, (n,), generator=g)
    return centres[y] + task * moves[y] + 0.5 * torch.randn(n, 16, generator=g), (y + task) % 4


@torch.no_grad()
def accuracy(model, task):
    x, y = points(task, 512, seed=5)
    return float((model.eval()(x=x)["logits"].argmax(1) == y).float().mean())


def learn(callbacks, tmp_path):
    config = LoraConfig(r=8, lora_alpha=16, target_modules=["body.0", "body.2"], modules_to_save=["head"])
    model, found = get_peft_model(Points(), config), []
    for task in (0, 1):
        data = [{"x": x, "labels": y} for x, y in zip(*points(task), strict=True)]
        trainer(model, task, tmp_path, callbacks, data=data, learning_rate=5e-3, max_steps=100).train()
        found.append([accuracy(model, 0), accuracy(model, 1)])
    return found


def test_two_tasks_in_turn_with_one_lora(tmp_path):
    free, kept = learn([], tmp_path), learn([ForgettingCallback("100%")], tmp_path)
    assert free[1][0] < free[0][0] - 0.2, free
    assert kept[1][0] >= kept[0][0] - 0.03, kept
    assert min(kept[0][0], kept[1][1]) > 0.9, kept


def test_the_memory_lies_beside_the_adapter_and_is_found_with_it(tmp_path):
    model, callback = lora(), ForgettingCallback("1MB")
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    trainer(model, 0, tmp_path / "run", [callback], **options).train()
    found = {path.name for path in (tmp_path / "run" / "checkpoint-2").iterdir()}
    assert {FILE, "adapter_model.safetensors"} <= found
    model.save_pretrained(tmp_path / "adapter")
    callback.protection.save(tmp_path / "adapter" / FILE)
    again = PeftModel.from_pretrained(bert(), tmp_path / "adapter", is_trainable=True)
    assert torch.equal(outputs(again), outputs(model))
    other = ForgettingCallback("1MB", path=tmp_path / "adapter" / FILE)
    trainer(again, 1, tmp_path / "run2", [other], max_steps=2).train()
    assert other.protection.memory.examples == 2 * 128


def adamw(model, lr=1e-2):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)


def steps(model, optimizer, task, n=4):
    data = Markers(task, 32)
    for _ in range(n):
        optimizer.zero_grad()
        cross_entropy(model(input_ids=data.tokens).logits, data.labels).backward()
        optimizer.step()


def test_each_adapter_has_a_protection_of_its_own():
    model = lora()
    model.add_adapter("second", LoraConfig(r=4, target_modules=TARGETS, modules_to_save=["classifier"]))
    data, protections, optimizers = Markers(0), {}, {}
    for name in ("default", "second"):
        model.set_adapter(name)
        optimizers[name] = adamw(model)
        protections[name] = so.protect(model, optimizers[name], memory=so.LayerMemory(64, strength=1e6))
        steps(model, optimizers[name], 0, n=40)
        protections[name].remember([({"input_ids": data.tokens}, data.labels)])
    assert not set(protections["default"].parameters.names) & set(protections["second"].parameters.names)
    model.set_adapter("default")
    waiting = protections["second"].parameters.tensors
    before = [t.detach().clone() for t in waiting]
    kept, optimizer = outputs(model), adamw(model, 1e-3)
    protections["default"].attach(optimizer)
    steps(model, optimizer, 1)
    moved = float((outputs(model) - kept).norm())
    assert all(
        torch.equal(a, b.detach()) for a, b in zip(before, protections["second"].parameters.tensors, strict=True)
    )
    with pytest.raises(so.ProtectionError, match="no longer requires gradients"):
        protections["second"].remember([({"input_ids": data.tokens}, data.labels)])
    protections["default"].detach()
    steps(model, optimizer, 1)
    assert float((outputs(model) - kept).norm()) > 2 * moved


def test_merging_an_adapter_ends_its_memory_with_words_and_keeps_the_outputs():
    model = lora()
    optimizer = adamw(model)
    protection = so.protect(model, optimizer, budget="1MB")
    data = Markers(0, 32)
    steps(model, optimizer, 0)
    protection.remember([({"input_ids": data.tokens}, data.labels)])
    before = outputs(model)
    merged = model.merge_and_unload()
    torch.testing.assert_close(outputs(merged), before, atol=1e-4, rtol=1e-4)
    with pytest.raises(so.ProtectionError, match="the model changed since it was protected"):
        protection.remember([({"input_ids": data.tokens}, data.labels)])


@pytest.mark.parametrize("kind", ["dora", "ia3"])
def test_other_adapters_are_protected_too(kind):
    """DoRA's magnitudes and all of IA³ belong to no layer: their gradients are sketched."""
    rule = so.Pull(1e6) if kind == "dora" else so.Project()
    moved = {}
    for protect in (True, False):
        if kind == "dora":
            model = lora(use_dora=True)
        else:
            torch.manual_seed(1)
            ia3 = IA3Config(target_modules=TARGETS, feedforward_modules=["dense"], modules_to_save=["classifier"])
            model = get_peft_model(bert(), ia3)
        optimizer = adamw(model)
        protection = so.protect(model, optimizer, memory=so.LayerMemory(64, rule=rule, rest=64))
        data = Markers(0)
        steps(model, optimizer, 0, n=40)
        protection.remember([({"input_ids": data.tokens}, data.labels)])
        assert not [row for row in protection.coverage() if "no memory" in row.how]
        before = outputs(model)
        optimizer = adamw(model, 1e-3)
        protection.attach(optimizer)
        if not protect:
            protection.detach()
        steps(model, optimizer, 1, n=8)
        moved[protect] = float((outputs(model) - before).norm())
    assert moved[True] < 0.4 * moved[False], moved


@pytest.mark.filterwarnings("ignore:TorchaoLoraLinear was")
def test_adapters_of_a_quantised_base_are_protected():
    """Weights of one byte with a scale per row, as torchao keeps them; the adapters on them are not quantised."""
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed: pip install torchao")
    moved = {}
    for strength in (1e6, None):
        base = bert()
        quantization.quantize_(base.bert.encoder, quantization.Int8WeightOnlyConfig())
        model = lora(base)
        optimizer, data = adamw(model), Markers(0)
        protection = so.protect(model, optimizer, budget="1MB", strength=strength)
        assert all(".lora_" in name or ".modules_to_save." in name for name in protection.parameters.names)
        steps(model, optimizer, 0, n=40)
        protection.remember([({"input_ids": data.tokens}, data.labels)])
        before, optimizer = outputs(model), adamw(model, 1e-3)
        protection.attach(optimizer)
        if strength is None:
            protection.detach()
        steps(model, optimizer, 1, n=8)
        moved[strength] = float((outputs(model) - before).norm())
    assert moved[1e6] < 0.35 * moved[None], moved
