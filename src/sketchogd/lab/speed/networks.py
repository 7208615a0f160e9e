"""What the default memory costs on networks people train: remembering, steps, and memory, in a quarter of the model.

Remembering is compared with the passes that it needs (a forward pass, and a backward pass for each logit or random
combination of logits), steps with unprotected ones over whole cycles of `every`, its peak memory with that of a
training step of the same batch. Networks have random weights; three of them need transformers.
"""

import gc
import importlib.util
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import sketchogd as so
from sketchogd.lab.models import seeded
from sketchogd.lab.speed.layers import resnet18
from sketchogd.lab.speed.peak import peak_bytes
from sketchogd.lab.speed.ratios import Ratio
from sketchogd.lab.speed.turns import fastest, once
from sketchogd.model.batches import batch_size, call, evaluating, logits_of, map_tensors
from sketchogd.model.sensitivities import COMBINATIONS, EVERY_LOGIT_UP_TO

BUDGET = "25%"
REMEMBER, PEAK = 1.5, 1.2
STEPS = {"cuda": 1.05, "cpu": 1.10}
EVERY_STEP = 1.3
"""Targets: of remembering, of its memory, of a step at every=10, and at every=1."""

SECONDS = 4.0
"""Time for turns of each measurement, on a GPU; on a CPU each has two turns."""


@dataclass(frozen=True)
class Case:
    """A network as people train it.

    Args:
        name: in the table.
        build: makes it.
        draw: (inputs, targets) of so many examples; targets None for a language model, whose inputs have labels.
        optimizer: of its parameters.
        batch: examples in a step, on a GPU and on a CPU.
        every: for which steps are measured.
    """

    name: str
    build: Callable[[], nn.Module]
    draw: Callable[[int], tuple[Any, Tensor | None]]
    optimizer: Callable[[nn.Module], Optimizer]
    batch: tuple[int, int]
    every: tuple[int, ...] = (10,)

    def examples(self, device: torch.device, seed: int) -> tuple[Any, Any]:
        """A batch."""
        with seeded(seed):
            inputs, targets = self.draw(self.batch[0 if device.type == "cuda" else 1])
        move: Callable[[Tensor], Tensor] = lambda t: t.to(device)  # noqa: E731
        return map_tensors(move, inputs), None if targets is None else targets.to(device)


class OfSentences(nn.Module):
    """A BERT of MiniLM's shape, the mean over tokens, and 15 classes."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
        self.bert, self.head = BertModel(BertConfig(**sizes), add_pooling_layer=False), nn.Linear(384, 15)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Logits (b, 15)."""
        h = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None].to(h.dtype)
        logits: Tensor = self.head((h * mask).sum(1) / mask.sum(1))
        return logits


def sentences(b: int) -> tuple[Any, Tensor]:
    """Sentences of 8 to 32 tokens, padded."""
    lengths = torch.randint(8, 33, (b, 1))
    mask = (torch.arange(32) < lengths).long()
    return {"input_ids": torch.randint(1, 30_000, (b, 32)) * mask, "attention_mask": mask}, torch.randint(15, (b,))


def vit_small() -> nn.Module:
    """ViT-S/16 for images of 224 × 224 and 10 classes."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536}
    model: nn.Module = ViTForImageClassification(ViTConfig(**sizes, num_labels=10))
    return model


def gpt2() -> nn.Module:
    """GPT-2 of 124 million weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model: nn.Module = GPT2LMHeadModel(GPT2Config())
    return model


def text(length: int) -> Callable[[int], tuple[Any, None]]:
    """Sequences of so many tokens; the labels are the tokens."""

    def draw(b: int) -> tuple[Any, None]:
        tokens = torch.randint(50_000, (b, length))
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}, None

    return draw


def images(size: int) -> Callable[[int], tuple[Any, Tensor]]:
    """Images of so many pixels a side, and 10 classes."""
    return lambda b: (torch.randn(b, 3, size, size), torch.randint(10, (b,)))


def adamw(model: nn.Module) -> Optimizer:
    """AdamW as people use it."""
    return AdamW(model.parameters(), lr=1e-5)


def momentum(model: nn.Module) -> Optimizer:
    """SGD with momentum."""
    return SGD(model.parameters(), lr=1e-4, momentum=0.9)


CASES = (
    Case("ResNet-18", resnet18, images(32), momentum, (64, 32)),
    Case("MiniLM", OfSentences, sentences, adamw, (32, 32)),
    Case("ViT-S", vit_small, images(224), adamw, (32, 4)),
    Case("GPT-2 124M", gpt2, text(256), adamw, (8, 1), (10, 1)),
)


def measure(device: str, quick: bool) -> list[Ratio]:
    """Ratios for every network that can be built here. `quick`: ResNet-18 only."""
    found: list[Ratio] = []
    for case in CASES[:1] if quick else CASES:
        if case.build is resnet18 or importlib.util.find_spec("transformers"):
            try:
                for ratio in of_case(case, torch.device(device)):
                    found.append(ratio)
            except Exception as error:  # one network that fails must not stop the others
                found.append(Ratio.failed(case.name, error))
            gc.collect()
    return found


def of_case(case: Case, device: torch.device) -> Iterator[Ratio]:
    """The ratios of one network."""
    yield from remember_ratios(case, device)
    for every in case.every:
        gc.collect()
        value = step_ratio(case, device, every)
        most = EVERY_STEP if every == 1 else STEPS[device.type]
        yield Ratio(f"{case.name}: a step, every={every}", value, most, False, "x an unprotected step")


def loss_of(model: nn.Module, inputs: Any, targets: Tensor | None) -> Tensor:
    """The training loss."""
    output = call(model, inputs)
    loss: Tensor = output.loss if targets is None else F.cross_entropy(logits_of(output), targets)
    return loss


def training_step(model: nn.Module, optimizer: Optimizer, batch: tuple[Any, Any]) -> None:
    """One step, after which gradients are gone."""
    loss_of(model, *batch).backward()
    optimizer.step()
    optimizer.zero_grad()


def protected(model: nn.Module, optimizer: Optimizer, case: Case, device: torch.device, every: int) -> so.Protection:
    """A model that remembers two batches, after a step."""
    protection = so.protect(model, optimizer, budget=BUDGET, every=every)
    training_step(model, optimizer, case.examples(device, 0))
    protection.remember([case.examples(device, seed) for seed in (1, 2)])
    return protection


def passes_needed(inputs: Any, logits: Tensor) -> int:
    """How many backward passes `observe` takes of a batch."""
    each = logits[0].numel()
    return each if each <= EVERY_LOGIT_UP_TO else COMBINATIONS


def remember_ratios(case: Case, device: torch.device) -> Iterator[Ratio]:
    """Observing a batch over the passes it needs, gradients of the weights included, and its peak memory."""
    model = case.build().to(device)
    optimizer = case.optimizer(model)
    inputs, targets = batch = case.examples(device, 3)
    training_step(model, optimizer, batch)
    step = peak_of_all(lambda: training_step(model, optimizer, batch), device)
    protection = protected(model, optimizer, case, device, 10)
    called = {key: value for key, value in inputs.items() if key != "labels"} if targets is None else inputs
    passes = 0

    def ordinary() -> None:
        nonlocal passes
        with evaluating(model):
            logits = logits_of(call(model, called))
        passes = passes_needed(inputs, logits)
        weight = torch.ones_like(logits)
        for i in range(passes):
            logits.backward(weight, retain_graph=i + 1 < passes)
            model.zero_grad()

    observe: Callable[[], object] = lambda: protection.observe(inputs, targets)  # noqa: E731
    took = turns({"observe": observe, "passes": ordinary}, device)
    note = f"x a forward and {passes} backward passes on {batch_size(inputs)} examples"
    yield Ratio(f"{case.name}: remembering", took["observe"] / took["passes"], REMEMBER, False, note)
    peak = peak_of_all(observe, device)
    if math.isfinite(peak):
        yield Ratio(f"{case.name}: peak memory of remembering", peak / step, PEAK, False, "x that of a training step")
    refresh = once(protection.refresh, device) / took["passes"]
    yield Ratio(f"{case.name}: a refresh, once per task", refresh, None, False, "x these passes")


def peak_of_all(work: Callable[[], object], device: torch.device) -> float:
    """The most that is allocated on a GPU during some work, with what was there before; NaN on a CPU."""
    if device.type != "cuda":
        return float("nan")
    return peak_bytes(work, device) + torch.cuda.memory_allocated(device)


def turns(things: dict[str, Callable[[], object]], device: torch.device) -> dict[str, float]:
    """Fastest turns; two of each on a CPU, where a turn takes seconds."""
    return fastest(things, device, seconds=SECONDS if device.type == "cuda" else 0.0, most=200)


def step_ratio(case: Case, device: torch.device, every: int) -> float:
    """A protected step over an unprotected one, over cycles of `every` steps with all that protection does in them.

    On a CPU the passes, the same for both, are timed once, and cycles of the optimizers' steps take turns.
    """
    free, kept = (case.build().to(device) for _ in range(2))
    free_optimizer, kept_optimizer = case.optimizer(free), case.optimizer(kept)
    protection = protected(kept, kept_optimizer, case, device, every)
    training_step(free, free_optimizer, case.examples(device, 0))
    batch = case.examples(device, 4)
    whole, cycle = device.type == "cuda", max(10, every)

    def gradients(model: nn.Module) -> None:
        loss_of(model, *batch).backward()

    def train(model: nn.Module, optimizer: Optimizer) -> None:
        for _ in range(cycle):
            if whole:
                optimizer.zero_grad()
                gradients(model)
            optimizer.step()

    passes = 0.0
    if not whole:
        passes = min(once(partial(gradients, model), device) for model in (kept, free))
    things: dict[str, Callable[[], object]] = {
        "free": lambda: train(free, free_optimizer),
        "kept": lambda: train(kept, kept_optimizer),
    }
    took = turns(things, device)
    protection.detach()
    ratio = (cycle * passes + took["kept"]) / (cycle * passes + took["free"])
    return ratio if math.isfinite(ratio) else float("nan")
