"""What a layer memory of 2 MB costs: a step against an unprotected one, remembering against the passes it needs.

What is compared takes turns in one process, and the fastest turn of each counts. With `every` = 50 a cycle is one step
that begins by copying the weights, 49 ordinary ones, and one projection. The leak is measured only at every 100th
projection once training has gone on for a while, so this is not part of the fastest turn.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer

import sketchogd as so
from sketchogd.budget import parse_bytes
from sketchogd.lab.models import mlp, seeded
from sketchogd.lab.speed.ratios import Ratio
from sketchogd.lab.speed.turns import fastest, once
from sketchogd.model.batches import every_logit
from sketchogd.model.layers import find_layers
from sketchogd.model.parameters import ProtectedParameters
from sketchogd.model.sensitivities import read_layers
from sketchogd.sketch.base import largest_rank

EVERY = 50
BUDGET = "2MB"
"""Bytes of the memory itself; the copy of the weights at the last projection is not counted."""

SECONDS = 3.0
MOST_TURNS = 500
"""Time for turns, and the most turns."""

OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "SGD": lambda model: SGD(model.parameters(), lr=1e-3),
    "AdamW": lambda model: AdamW(model.parameters(), lr=1e-4),
}


# ---------------------------------------------------------------- networks


class Residual(nn.Module):
    """Two 3 × 3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """x (b, inputs, h, w) → (b, outputs, h / stride, w / stride)."""
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet18(classes: int = 10, *, seed: int = 0) -> nn.Sequential:
    """ResNet-18 for images (b, 3, 32, 32): the first convolution is 3 × 3 and there is no pooling before the blocks."""
    with seeded(seed):
        blocks = []
        inputs = 64
        for outputs, stride in [(64, 1), (128, 2), (256, 2), (512, 2)]:
            blocks += [Residual(inputs, outputs, stride), Residual(outputs, outputs, 1)]
            inputs = outputs
        stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class Encoder(nn.Module):
    """A transformer encoder of 4 layers on tokens (b, length), with the mean over positions before the classifier."""

    def __init__(self, tokens: int = 1000, length: int = 64, width: int = 256, classes: int = 10) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (b, classes)."""
        logits: Tensor = self.head(self.encoder(self.embedding(x) + self.position).mean(1))
        return logits


def transformer(*, seed: int = 0) -> Encoder:
    """An `Encoder` of about 3.4 million parameters."""
    with seeded(seed):
        return Encoder()


@dataclass(frozen=True)
class Case:
    """A network, its batches, and the most that a protected step may take of an unprotected one."""

    name: str
    build: Callable[[], nn.Module]
    draw: Callable[[int], Tensor]
    batch: int
    """Examples in a training step."""
    remembered: tuple[int, ...]
    """Examples in each batch that is remembered before steps are timed; the first is timed itself."""
    most: float
    slow: bool
    """Whether its passes take so long on a CPU that they are timed once."""

    def examples(self, b: int, device: str) -> tuple[Tensor, Tensor]:
        """(inputs, targets) of b random examples."""
        with seeded(b):
            return self.draw(b).to(device), torch.randint(0, 10, (b,)).to(device)


CASES = (
    Case("MLP", mlp, lambda b: torch.randn(b, 1024), 10, (256, 512, 1024), 1.25, False),
    Case("ResNet-18", resnet18, lambda b: torch.randn(b, 3, 32, 32), 32, (16,), 1.10, True),
    Case("transformer", transformer, lambda b: torch.randint(0, 1000, (b, 64)), 32, (16,), 1.10, True),
)


# ---------------------------------------------------------------- timing


def measure(device: str, quick: bool) -> list[Ratio]:
    """A ratio for every network and optimizer, and one for remembering with every network. `quick`: the MLP only."""
    ratios = []
    for case in CASES[:1] if quick else CASES:
        whole = not case.slow or device.startswith("cuda")
        for name, optimizer in OPTIMIZERS.items():
            value = step_ratio(case, optimizer, device, whole)
            note = f"x an unprotected step at batch {case.batch}; {BUDGET}, every={EVERY}"
            ratios.append(Ratio(f"layer memory: step, {case.name}, {name}", value, case.most, False, note))
        ratios.append(remember_ratio(case, device))
    return ratios


def protected(model: nn.Module, optimizer: Optimizer) -> so.Protection:
    """A model under the memory of the largest rank that `BUDGET` holds."""
    parameters, nbytes = ProtectedParameters(model), parse_bytes(BUDGET)
    rank = largest_rank(lambda k: so.LayerMemory(k).cost(parameters) <= nbytes, 10_000)
    return so.protect(model, optimizer, memory=so.LayerMemory(rank), every=EVERY)


def step_ratio(case: Case, build: Callable[[nn.Module], Optimizer], device: str, whole: bool) -> float:
    """A protected step, on average over a cycle, over an unprotected one.

    `whole`: whole loops take turns. Otherwise only the optimizers' steps do, in which all protection happens, and the
    forward and backward passes, the same for both, are timed once: for networks whose passes take seconds.
    """
    x, y = case.examples(case.batch, device)
    free, kept = (case.build().to(device) for _ in range(2))
    free_optimizer, kept_optimizer = build(free), build(kept)
    protection = protected(kept, kept_optimizer)
    protection.remember([case.examples(b, device) for b in case.remembered])

    def gradients(model: nn.Module) -> None:
        model.zero_grad()
        cross_entropy(model(x), y).backward()

    def train(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
        for _ in range(steps):
            if whole:
                gradients(model)
            optimizer.step()

    n = EVERY - 1 if device.startswith("cuda") else 10  # launches of later steps overlap with earlier ones on a GPU
    where, passes = torch.device(device), 0.0
    if not whole:
        passes = min(once(partial(gradients, model), where) for model in (kept, free, kept, free))
    # After the other network's turn the first step finds its weights gone from the cache, in both loops.
    turns: dict[str, Callable[[], object]] = {
        "unprotected first": lambda: train(free, free_optimizer, 1),
        "unprotected": lambda: train(free, free_optimizer, n),
        "first": lambda: train(kept, kept_optimizer, 1),
        "others": lambda: train(kept, kept_optimizer, n),
        "settle": protection.settle,
    }
    took = fastest(turns, where, seconds=SECONDS, most=MOST_TURNS)
    cycle = EVERY * passes + took["first"] + (EVERY - 1) * took["others"] / n + took["settle"]
    return cycle / (EVERY * (passes + took["unprotected"] / n))


def remember_ratio(case: Case, device: str) -> Ratio:
    """Observing a batch over an ordinary forward pass and an ordinary backward pass for every logit.

    The note says what it is over the least that these passes could be, without gradients of the weights, and how long
    a refresh of the projector takes, which comes once per task.
    """
    model = case.build().to(device)
    protection = protected(model, OPTIMIZERS["SGD"](model))
    x, y = case.examples(case.remembered[0], device)

    def ordinary() -> None:
        *others, last = model(x).sum(0)
        for logit in others:
            logit.backward(retain_graph=True)
        last.backward()
        model.zero_grad()

    def least() -> None:
        read_layers(model, find_layers(protection.parameters), x, y, every_logit, 0)

    where = torch.device(device)
    turns: dict[str, Callable[[], object]] = {
        "observe": lambda: protection.observe(x, y),
        "passes": ordinary,
        "bare": least,
    }
    took = fastest(turns, where, seconds=SECONDS, most=MOST_TURNS)
    observe, passes, bare = took["observe"], took["passes"], took["bare"]
    refresh = once(protection.refresh, where)
    return Ratio(
        f"layer memory: remembering, {case.name}",
        observe / passes,
        1.5,
        False,
        f"x a forward and 10 backward passes on {len(x)} examples; {observe / bare:.2f} x these passes without "
        f"gradients of weights; a refresh, once per task, takes {refresh / passes:.2f} x",
    )
