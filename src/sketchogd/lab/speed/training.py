"""What training side by side gains: a step of several runs at once against one of the plain loop."""

import tempfile
from pathlib import Path

import torch

from sketchogd.lab import records
from sketchogd.lab.methods import Method, method
from sketchogd.lab.runs import train
from sketchogd.lab.runs.config import RunConfig, Training
from sketchogd.lab.runs.sidebyside.group import Group
from sketchogd.lab.speed.ratios import Ratio
from sketchogd.lab.streams.benchmarks.rotated_mnist import ROTATED_MNIST

SEEDS = 5


def measure(device: str, quick: bool) -> list[Ratio]:
    """Ratios for five seeds of the paper's MLP on Rotated MNIST, side by side."""
    cuda = torch.device(device).type == "cuda"
    n = 1000 if quick else 5000
    projected = method("sketchogd", rank=100 if quick else 1200, examples=1000)
    single, together = single_step(device, n), step(device, n, method("sgd"), 1)
    found = [
        Ratio(
            "training: 5 seeds side by side, without projection",
            single * SEEDS / together,
            None if cuda else 3.0,
            unit_note=f"x as fast as one after another ({1e3 * together:.2f} ms for five, {1e3 * single:.2f} for one)",
        )
    ]
    if cuda:
        lazy = step(device, n, projected, 2)
        found.append(
            Ratio(
                "training: a step of 5 seeds with lazy projection, as a CUDA graph",
                1e3 * lazy,
                0.15,
                at_least=False,
                unit_note="ms (an absolute time, for this GPU), projected every 50 steps at rank 1200",
            )
        )
    return found


def step(device: str, n: int, chosen: Method, tasks: int) -> float:
    """Seconds of one step of all seeds together, in the last epoch of the last of `tasks` tasks."""
    training = Training(epochs=3, curve=False)
    configs = [
        RunConfig(ROTATED_MNIST.name, chosen, training, seed, tasks=tasks, n_train=n, n_test=100)
        for seed in range(SEEDS)
    ]
    with tempfile.TemporaryDirectory() as folder:
        places = [records.RunFolder(Path(folder) / str(config.seed)) for config in configs]
        group = Group(configs, places, None, torch.device(device), None)
        for t in range(tasks):
            group.train_task(t)
            if t + 1 < tasks:
                group.remember_task(t)
    return group.clock.last("train") / (n // training.batch)


def single_step(device: str, n: int) -> float:
    """Seconds of one step of the plain loop."""
    training = Training(epochs=2, curve=False)
    config = RunConfig(ROTATED_MNIST.name, method("sgd"), training, tasks=1, n_train=n, n_test=100)
    with tempfile.TemporaryDirectory() as folder:
        result = train.run(config, Path(folder) / "run", device=device)
    return result.timings["train"] / result.steps
