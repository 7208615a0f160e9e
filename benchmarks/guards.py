"""Measure what the guards cost: a protected training step with them over one without them.

Guards are the check that steps are finite, the count of steps that broke off, the watch for other optimizers and for
parameters that join, and the hooks on a model whose steps wait. Three kinds of turns alternate in one process, in every
order: without guards, with them, without them again. A turn is ten steps, or one of the large model if every step is
projected, and its CPU time counts. `ratio` is 1 + the median over rounds of what guards add, over the median turn;
`same` compares the two kinds without guards in the same way, and so says what can be measured at all.
"""

import argparse
import gc
import itertools
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import register_optimizer_step_pre_hook

import sketchogd as so
from sketchogd.optimizer import warn
from sketchogd.optimizer.finite import Finite, FiniteCheck
from sketchogd.optimizer.hooks import UpdateProjection
from sketchogd.optimizer.unsettled import UnsettledHooks
from tools.markdown import table, with_part

HOME = Path(__file__).parents[1]
RESULTS = HOME / "benchmarks" / "results" / "guards-cpu.json"
PAGE = HOME / "docs" / "warnings.md"
BEGIN, END = "<!-- cost of the guards -->", "<!-- end of the cost -->"

Batch = tuple[Any, torch.Tensor]
Network = tuple[nn.Module, Callable[[int], Batch]]


def mlp() -> Network:
    """The paper's network, 113,610 parameters, and batches of 32."""
    model = nn.Sequential(
        nn.Linear(1024, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10), nn.Flatten()
    )
    return model, lambda i: (torch.randn(32, 1024, generator=seeded(i)), labels(32, 10, i))


def minilm() -> Network:
    """A BERT of the sizes of all-MiniLM-L6, 22.7 million parameters, with random weights; batches of 8 x 32 tokens."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    model = BertForSequenceClassification(BertConfig(**sizes, num_labels=4))
    return model, lambda i: (
        {"input_ids": torch.randint(1, 30_000, (8, 32), generator=seeded(i)), "attention_mask": torch.ones(8, 32)},
        labels(8, 4, i),
    )


def seeded(i: int) -> torch.Generator:
    return torch.Generator().manual_seed(i)


def labels(n: int, classes: int, i: int) -> torch.Tensor:
    return torch.randint(0, classes, (n,), generator=seeded(i))


def sgd(p: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(p, lr=1e-3)


def adamw(p: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(p, lr=1e-4)


@dataclass(frozen=True)
class Case:
    """A network, an optimizer, a memory; steps between two projections, steps of a turn, and rounds of three turns."""

    network: Callable[[], Network]
    optimizer: Callable[..., torch.optim.Optimizer]
    memory: Callable[[], so.LayerMemory]
    every: int
    turn: int
    rounds: int


def pull(rank: int) -> Callable[[], so.LayerMemory]:
    return lambda: so.LayerMemory(rank)


def shrink(rank: int) -> Callable[[], so.LayerMemory]:
    return lambda: so.LayerMemory(rank, ridge=0.1)


CASES = {
    "MLP, SGD, every=1": Case(mlp, sgd, pull(200), 1, 10, 150),
    "MLP, SGD, every=10": Case(mlp, sgd, pull(200), 10, 10, 400),
    "MLP, AdamW, every=1": Case(mlp, adamw, pull(200), 1, 10, 150),
    "MLP, AdamW, every=10": Case(mlp, adamw, pull(200), 10, 10, 300),
    "MLP, AdamW, ridge, every=1": Case(mlp, adamw, shrink(200), 1, 10, 150),
    "MiniLM, AdamW, every=1": Case(minilm, adamw, pull(32), 1, 1, 36),
    "MiniLM, AdamW, every=10": Case(minilm, adamw, pull(32), 10, 10, 12),
}


@contextmanager
def unguarded(protection: so.Protection) -> Iterator[None]:
    """Without the guards, and without the hooks that the first step that waits puts on a model for good."""
    hooks = protection._projection._unsettled
    armed = bool(hooks._handles)
    hooks.remove()
    with ExitStack() as stack:
        stack.enter_context(patch.object(FiniteCheck, "of", lambda self, t, skipped_anyway=False: Finite(True)))
        stack.enter_context(patch.object(UnsettledHooks, "arm", lambda self: None))
        stack.enter_context(patch.object(UpdateProjection, "_count_broken_step", lambda self: None))
        warn._global_handle.remove()
        try:
            yield
        finally:
            warn._global_handle = register_optimizer_step_pre_hook(warn._watch_other_optimizers)
    if armed:
        hooks.arm()


def measure(case: Case) -> dict[str, Any]:
    """Milliseconds of a step without and with guards, and their ratio."""
    torch.manual_seed(0)
    model, batch = case.network()
    optimizer = case.optimizer(model.parameters())
    protection = so.protect(model, optimizer, memory=case.memory(), every=case.every)
    protection.remember([batch(-1 - i) for i in range(2)])
    batches = [batch(i) for i in range(16)]
    count = itertools.count()

    def turn() -> float:
        start = time.process_time()
        for _ in range(case.turn):
            x, y = batches[next(count) % len(batches)]
            optimizer.zero_grad()
            outputs = model(**x).logits if isinstance(x, dict) else model(x)
            cross_entropy(outputs, y).backward()
            optimizer.step()
        return (time.process_time() - start) / case.turn * 1e3

    took: dict[str, list[float]] = {"without": [], "with": [], "again": []}
    orders = list(itertools.permutations(took))
    turn()
    gc.disable()
    for i in range(case.rounds):
        for kind in orders[i % len(orders)]:
            with nullcontext() if kind == "with" else unguarded(protection):
                took[kind].append(turn())
    gc.enable()
    usual = statistics.median(took["without"] + took["again"])
    triples = list(zip(took["without"], took["with"], took["again"], strict=True))
    added = [guarded - (first + second) / 2 for first, guarded, second in triples]
    low, high = interval(added)
    return {
        "rounds": case.rounds,
        "without_ms": usual,
        "added_ms": statistics.median(added),
        "ratio": 1 + statistics.median(added) / usual,
        "low": 1 + low / usual,
        "high": 1 + high / usual,
        "same": 1 + statistics.median(second - first for first, _, second in triples) / usual,
    }


def interval(values: list[float]) -> tuple[float, float]:
    """In which the median lies in 95 of 100 cases, by resampling."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(400))
    return medians[10], medians[-11]


def cost(found: dict[str, Any]) -> str:
    """The table for the docs."""
    rows = []
    for name, n in found["cases"].items():
        span = f"{n['low']:.3f} to {n['high']:.3f}"
        rows.append([name, f"{n['without_ms']:.2f}", f"{n['added_ms'] * 1e3:.0f}", f"{n['ratio']:.3f}", span])
        rows[-1].append(f"{n['same']:.3f}")
    heads = ["", "a step without guards, ms", "guards add, µs", "ratio", "95 %", "without over without"]
    return "\n".join([BEGIN, *table(heads, rows), END])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], choices=list(CASES), help="only this case")
    parser.add_argument("--json", type=Path, help=f"write the numbers here, for the docs {RESULTS.name}; others stay")
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "torch": torch.__version__, "threads": 1}
    found: dict[str, Any] = {"machine": machine, "cases": {}}
    if options.json is not None and options.json.exists() and options.only:
        found["cases"] = json.loads(options.json.read_text())["cases"]
    for name, case in CASES.items():
        if not options.only or name in options.only:
            found["cases"][name] = numbers = measure(case)
            print(name, {key: round(value, 4) for key, value in numbers.items()}, flush=True)
    found["cases"] = {name: found["cases"][name] for name in CASES if name in found["cases"]}
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
        if options.json.resolve() == RESULTS:
            PAGE.write_text(with_part(PAGE.read_text(encoding="utf-8"), cost(found)), encoding="utf-8")


if __name__ == "__main__":
    main()
