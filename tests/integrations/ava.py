"""Two experiences of an Avalanche benchmark and a strategy for them, for the tests and for what they start."""

import sys

import torch
from torch import nn

from . import stubs
from .tasks import fingerprint

stubs.import_avalanche()

from avalanche.benchmarks import tensors_benchmark
from avalanche.core import SupervisedPlugin
from avalanche.models import IncrementalClassifier, MultiHeadClassifier, MultiTaskModule
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import EWC, Naive, Replay

from sketchogd.integrations.avalanche import SketchOGDPlugin

WIDTH, EPOCHS = 16, 6


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU())
        self.head = IncrementalClassifier(64, 2, masking=False)

    def forward(self, x):
        return self.head(self.body(x))


class MultiHead(MultiTaskModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU())
        self.head = MultiHeadClassifier(32, 2)

    def forward(self, x, task_labels):
        return self.head(self.body(x), task_labels)


def data(kind, task, seed):
    """Points about two centres of each task; labels go on from task to task where one head grows."""
    g = torch.Generator().manual_seed(50)
    centres = 1.5 * torch.randn(4, WIDTH, generator=g)
    g.manual_seed(10 * task + seed)
    y = torch.randint(0, 2, (128,), generator=g)
    x = centres[2 * task + y] + 0.5 * torch.randn(128, WIDTH, generator=g)
    return x, y if kind == "multihead" else y + 2 * task


def benchmark(kind):
    train, test = ([data(kind, task, seed) for task in (0, 1)] for seed in (0, 5))
    labels = [0, 1] if kind == "multihead" else [0, 0]
    return tensors_benchmark(train_tensors=train, test_tensors=test, task_labels=labels)


def plugin(**options):
    return SketchOGDPlugin("100KB", **options)


def strategy(kind, plugins, model=None, eval_every=-1):
    torch.manual_seed(0)
    model = model or (MultiHead() if kind == "multihead" else Growing())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Naive(model=model, optimizer=optimizer, plugins=plugins, eval_every=eval_every, **usual())


def usual():
    evaluator = EvaluationPlugin(loggers=[])
    return {
        "train_mb_size": 16,
        "train_epochs": EPOCHS,
        "eval_mb_size": 64,
        "evaluator": evaluator,
        "criterion": nn.CrossEntropyLoss(),
    }


def other(kind, plugins):
    torch.manual_seed(0)
    model = Growing()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if kind == "ewc":
        return EWC(model=model, optimizer=optimizer, ewc_lambda=1.0, plugins=plugins, **usual())
    return Replay(model=model, optimizer=optimizer, mem_size=16, plugins=plugins, **usual())


def tensors(experience):
    parts = zip(*experience.dataset, strict=True)
    return [torch.stack([torch.as_tensor(value) for value in part]) for part in parts]


@torch.no_grad()
def outputs(strategy, experience):
    model, (inputs, _, tasks) = strategy.model.eval(), tensors(experience)
    return model(inputs, tasks) if isinstance(model, MultiTaskModule) else model(inputs)


def accuracy(strategy, experience):
    return float((outputs(strategy, experience).argmax(1) == tensors(experience)[1]).float().mean())


class Watch(SupervisedPlugin):
    """Notes how many steps wait while the model is evaluated."""

    def __init__(self, plugin):
        super().__init__()
        self.plugin, self.waiting = plugin, []

    def before_eval_iteration(self, strategy, **kwargs):
        if self.plugin.protection is not None:
            self.waiting.append(self.plugin.protection.pending)


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = sys.argv[1]
    grown = Growing()
    grown.load_state_dict(torch.load(f"{folder}/model", weights_only=True))
    kept = plugin(path=f"{folder}/memory.again")
    strategy("growing", [kept], grown).train(benchmark("growing").train_stream[1])
    print("numbers", *fingerprint(grown, kept.protection))
