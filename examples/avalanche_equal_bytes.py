"""SketchOGD beside EWC, GEM and A-GEM of Avalanche, each with the same bytes, on five rotations of MNIST.

    pip install "sketchogd[lab,avalanche]"            # brings Avalanche and torchvision, which it imports
    python examples/avalanche_equal_bytes.py          # a few minutes on two cores; no download

The bytes are those of EWC's online variant: one copy of the weights and one of their importances. GEM and A-GEM keep as
many images as fit, in one byte per pixel. Every method has three learning rates to choose from, by the accuracy on
images that are held out from training; EWC also has three weights of its penalty. The rest is as in Avalanche and the
papers (GEM's memory strength 0.5, A-GEM's samples of 64). The images are the subset of MNIST inside this package.
"""

import argparse
import itertools
from statistics import mean, stdev

import torch
from avalanche.benchmarks import tensors_benchmark
from avalanche.training.plugins import AGEMPlugin, EvaluationPlugin, EWCPlugin, GEMPlugin
from avalanche.training.supervised import Naive
from torch.nn.functional import cross_entropy

from sketchogd.integrations.avalanche import SketchOGDPlugin
from sketchogd.lab import benchmark, mlp

HELD = 200
"""Images per task that choose the settings."""

IMAGE = 28 * 28 + 1
"""Bytes of an original image and its label; the turn or permutation of its task is known and can be repeated."""

RATES = {"rate": (0.03, 0.1, 0.3)}
PENALTIES = {"penalty": (10.0, 100.0, 1000.0)}


def methods(nbytes, experiences):
    """Per name what makes the plugins, and the settings to choose from."""
    patterns = nbytes // (experiences * IMAGE)
    return {
        "plain SGD": (lambda: [], RATES),
        "EWC, online": (lambda penalty: [EWCPlugin(penalty, "online", decay_factor=1.0)], RATES | PENALTIES),
        "GEM": (lambda: [GEMPlugin(patterns, 0.5)], RATES),
        "A-GEM": (lambda: [AGEMPlugin(patterns, 64)], RATES),
        "sketchogd": (lambda: [SketchOGDPlugin(nbytes)], RATES),
    }


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    return float((model(x).argmax(1) == y).float().mean())


def run(make, rate, tasks, options, seed, **settings):
    """Mean accuracies at the end, held out and on test images, and when tasks were learned; the plugins."""
    torch.manual_seed(seed)
    stream = tensors_benchmark(
        train_tensors=[(t.x_train[HELD:], t.y_train[HELD:]) for t in tasks],
        test_tensors=[(t.x_test, t.y_test) for t in tasks],
        task_labels=[0] * len(tasks),
    )
    model, plugins = mlp(seed=seed), make(**settings)
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        criterion=cross_entropy,
        train_mb_size=10,
        train_epochs=options.epochs,
        plugins=plugins,
        evaluator=EvaluationPlugin(loggers=[]),
    )
    learned = []
    for experience, task in zip(stream.train_stream, tasks, strict=True):
        strategy.train(experience)
        learned.append(accuracy(model, task.x_test, task.y_test))
    return {
        "held": mean(accuracy(model, t.x_train[:HELD], t.y_train[:HELD]) for t in tasks),
        "final": mean(accuracy(model, t.x_test, t.y_test) for t in tasks),
        "learned": mean(learned),
        "plugins": plugins,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--benchmark", default="rotated-mnist", choices=["rotated-mnist", "permuted-mnist"])
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--examples", type=int, default=1000, help="training images per task, held-out ones among them")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3, help="runs with the settings that were chosen")
    options = parser.parse_args()
    tasks = list(benchmark(options.benchmark, tasks=options.tasks, n_train=options.examples))
    nbytes = 2 * sum(p.numel() * p.element_size() for p in mlp().parameters())
    print(f"{nbytes:,} bytes for every method; an image and its label take {IMAGE:,}\n")
    print("| method | chosen | when learned | at the end | ± |\n|---|---|--:|--:|--:|")
    for name, (make, grid) in methods(nbytes, len(tasks)).items():
        choices = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        tried = [(run(make, tasks=tasks, options=options, seed=100, **choice)["held"], choice) for choice in choices]
        chosen = max(tried, key=lambda each: each[0])[1]
        runs = [run(make, tasks=tasks, options=options, seed=seed, **chosen) for seed in range(options.seeds)]
        for plugin in runs[0]["plugins"]:
            if isinstance(plugin, SketchOGDPlugin):
                assert plugin.protection.ledger().nbytes <= nbytes
        learned, final = (mean(found[key] for found in runs) for key in ("learned", "final"))
        spread = stdev(found["final"] for found in runs) if len(runs) > 1 else 0.0
        words = ", ".join(f"{key} {value:g}" for key, value in chosen.items())
        print(f"| {name} | {words} | {learned:.1%} | {final:.1%} | {spread:.1%} |", flush=True)


if __name__ == "__main__":
    main()
