"""Measure what the guards cost: a protected training step with them over one without, for the paper's network.

Guards are the check that steps are finite, the count of steps that broke off, and the hooks on a model whose steps
wait. Steps with and without take turns in one process; the ratio of CPU time is the median over pairs of turns.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sketchogd as so
from sketchogd.optimizer.finite import Finite, FiniteCheck
from sketchogd.optimizer.hooks import UpdateProjection
from sketchogd.optimizer.unsettled import UnsettledHooks

BATCH, TURN = 32, 10

CASES: dict[str, tuple[Callable[..., torch.optim.Optimizer], int]] = {
    "SGD, every=1": (lambda p: torch.optim.SGD(p, lr=1e-3), 1),
    "SGD, every=10": (lambda p: torch.optim.SGD(p, lr=1e-3), 10),
    "AdamW, every=1": (lambda p: torch.optim.AdamW(p, lr=1e-4), 1),
    "AdamW, every=10": (lambda p: torch.optim.AdamW(p, lr=1e-4), 10),
}


@contextmanager
def unguarded() -> Iterator[None]:
    """Without the guards."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(FiniteCheck, "of", lambda self, size, skipped_anyway=False: Finite(True)))
        stack.enter_context(patch.object(UnsettledHooks, "arm", lambda self: None))
        stack.enter_context(patch.object(UpdateProjection, "_count_broken_step", lambda self: None))
        yield


def measure(make: Callable[..., torch.optim.Optimizer], every: int, turns: int) -> dict[str, float]:
    """Milliseconds of a step without and with guards, and their ratio."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(1024, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10), nn.Flatten()
    )
    x, y = torch.randn(512, 1024), torch.randint(0, 10, (512,))
    optimizer = make(model.parameters())
    protection = so.protect(model, optimizer, memory=so.LayerMemory(200), every=every)
    protection.remember([(x, y)])

    def turn() -> float:
        start = time.process_time()
        for i in range(TURN):
            rows = slice(i % 16 * BATCH, (i % 16 + 1) * BATCH)
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        return (time.process_time() - start) / TURN * 1e3

    took: dict[bool, list[float]] = {False: [], True: []}
    turn()
    for i in range(turns):
        for guarded in (True, False) if i % 2 else (False, True):
            if guarded:
                took[True].append(turn())
            else:
                with unguarded():
                    took[False].append(turn())
    ratio = statistics.median(with_ / without for with_, without in zip(took[True], took[False], strict=True))
    return {"without_ms": statistics.median(took[False]), "with_ms": statistics.median(took[True]), "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=100, help=f"turns of {TURN} steps with guards and without")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    print("| | a step without guards, ms | with | ratio |\n|---|---:|---:|---:|")
    for name, (make, every) in CASES.items():
        found[name] = numbers = measure(make, every, options.turns)
        cells = [f"{numbers['without_ms']:.2f}", f"{numbers['with_ms']:.2f}", f"{numbers['ratio']:.3f}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "torch": torch.__version__, "threads": 1}
    print(f"\n{machine}")
    if options.json is not None:
        options.json.write_text(
            json.dumps({"machine": machine, "turns": options.turns, "cases": found}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
