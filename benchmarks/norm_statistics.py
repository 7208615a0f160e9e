"""How much of forgetting is that running statistics move, and what holding them keeps and costs.

    python benchmarks/norm_statistics.py --json benchmarks/results/norm-statistics-cpu.json
    python benchmarks/norm_statistics.py --network resnet --optimizers SGD --json …        # adds to the same file

Five tasks of MNIST digits (14 × 14), a network with BatchNorm, a layer memory at full rank, every step projected. The
share of the statistics is measured where they are free: each task is evaluated once more at the end, with the weights
that there are then and the statistics that it was remembered with. What it gains is the statistics' share of the
backward transfer. Seeds, and the rotated stream, are others than those the settings were chosen on.
"""

import argparse
import itertools
import json
import math
import platform
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sketchogd as so
from sketchogd.lab.data import datasets

TASKS, EXAMPLES, EPOCHS, BATCH = 5, 400, 5, 32
Task = tuple[Tensor, Tensor, Tensor, Tensor]


def rotated(x: Tensor, degrees: float) -> Tensor:
    a = math.radians(degrees)
    turn = torch.tensor([[math.cos(a), -math.sin(a), 0], [math.sin(a), math.cos(a), 0]]).expand(len(x), 2, 3)
    return F.grid_sample(x, F.affine_grid(turn, list(x.shape), align_corners=False), align_corners=False)


def brightness(x: Tensor, t: int) -> Tensor:
    return x * (1, 0.7, 1.3, 0.8, 1.2)[t] + (0, 0.1, 0, -0.1, 0.1)[t]


STREAMS: dict[str, tuple[int, Callable[[Tensor, int], Tensor]]] = {
    "pairs of digits": (2, lambda x, t: x),
    "pairs, every other inverted": (2, lambda x, t: 1 - x if t % 2 else x),
    "ten digits, brightness": (10, brightness),
    "ten digits, rotated": (10, lambda x, t: rotated(x, 15 * t)),
}
"""Classes of a task, and what happens to its images. Pairs have a head each, ten digits one head."""


def stream(name: str, seed: int) -> list[Task]:
    """Training images and labels, then those of the test, for each task."""
    classes, change = STREAMS[name]
    data, g = datasets.load("mnist-subset"), torch.Generator().manual_seed(seed)
    digits = torch.randperm(10, generator=g)
    tasks = []
    for t in range(TASKS):
        own = digits[2 * t : 2 * t + 2] if classes == 2 else torch.arange(10)
        found: list[Tensor] = []
        for x, y, n in ((data.x_train, data.y_train, EXAMPLES), (data.x_test, data.y_test, 500)):
            places = torch.isin(y, own).nonzero().flatten()
            places = places[torch.randperm(len(places), generator=g)[:n]]
            labels = (y[places, None] == own).long().argmax(1)
            found += [change(F.avg_pool2d(x[places].float() / 255, 2), t), labels]
        tasks.append((found[0], found[1], found[2], found[3]))
    return tasks


class Block(nn.Module):
    def __init__(self, i: int, o: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.norm2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        shorter = [nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o)]
        self.short = nn.Sequential(*([] if i == o and stride == 1 else shorter))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(self.short(x) + inner)


def conv(i: int, o: int) -> list[nn.Module]:
    return [nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]


BODIES: dict[str, Callable[[], list[nn.Module]]] = {
    "cnn": lambda: [*conv(1, 16), nn.MaxPool2d(2), *conv(16, 32), nn.MaxPool2d(2), *conv(32, 32)],
    "resnet": lambda: [*conv(1, 12), Block(12, 12), Block(12, 24, 2), Block(24, 32, 2)],
}


class Net(nn.Module):
    def __init__(self, body: str, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*BODIES[body](), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.heads = nn.ModuleList(nn.Linear(32, classes) for _ in range(TASKS if classes == 2 else 1))
        self.task = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.heads[min(self.task, len(self.heads) - 1)](self.body(x))


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
}

RULES: dict[str, so.HoldStatistics | None] = {
    "free": None,
    "hold": so.HoldStatistics(),
    "at once": so.HoldStatistics(handover=0, batch_gradient=0),
    "evaluation only": None,
}
""""evaluation only": held by momentum 0, while training goes on with the statistics of its batches."""


def run(body: str, name: str, optimizer_name: str, rule: str, seed: int) -> dict[str, float]:
    """Accuracies in percent after a stream, NaN where training diverged."""
    tasks = stream(name, seed)
    torch.manual_seed(seed)
    model = Net(body, STREAMS[name][0])
    optimizer = OPTIMIZERS[optimizer_name](model)
    protection = so.protect(model, optimizer, memory=so.LayerMemory(1000), buffers=RULES[rule])
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]

    def accuracy(t: int) -> float:
        model.eval()
        model.task = t
        with torch.no_grad():
            return 100 * float((model(tasks[t][2]).argmax(1) == tasks[t][3]).float().mean())

    learned, kept = [], []
    for t, (x, y, _, _) in enumerate(tasks):
        model.task = t
        for _ in range(EPOCHS):
            for chosen in torch.randperm(len(x)).split(BATCH):
                model.train()
                optimizer.zero_grad()
                F.cross_entropy(model(x[chosen]), y[chosen]).backward()
                optimizer.step()
        model.train()
        try:
            protection.remember([(x[:200], y[:200])])
        except so.NonFiniteError:
            return dict.fromkeys(("accuracy", "learned", "transfer", "restored"), math.nan)
        learned.append(accuracy(t))
        kept.append({key: value.clone() for key, value in model.state_dict().items() if "running" in key})
        for norm in norms if rule == "evaluation only" else []:
            norm.momentum = 0.0
    last = [accuracy(t) for t in range(TASKS)]
    restored = []
    for t in range(TASKS):
        model.load_state_dict(kept[t], strict=False)
        restored.append(accuracy(t))
    old = range(TASKS - 1)
    return {
        "accuracy": sum(last) / TASKS,
        "learned": sum(learned[1:]) / len(old),
        "transfer": sum(last[t] - learned[t] for t in old) / len(old),
        "restored": sum(restored[t] - learned[t] for t in old) / len(old),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="cnn", choices=list(BODIES))
    parser.add_argument("--rules", nargs="+", default=["free", "hold"], choices=list(RULES))
    parser.add_argument("--streams", nargs="+", default=list(STREAMS), choices=list(STREAMS))
    parser.add_argument("--optimizers", nargs="+", default=list(OPTIMIZERS), choices=list(OPTIMIZERS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[10, 11])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", so.ProtectionWarning)
    print("| network | stream | optimizer | statistics | accuracy | new tasks | transfer | with its own statistics |")
    print("|---|---|---|---|---:|---:|---:|---:|")
    for name, optimizer, rule in itertools.product(options.streams, options.optimizers, options.rules):
        runs = [run(options.network, name, optimizer, rule, seed) for seed in options.seeds]
        means = [sum(r[key] for r in runs) / len(runs) for key in runs[0]]
        cells = ["diverged" if math.isnan(mean) else f"{mean:.1f}" for mean in means]
        print(f"| {options.network} | {name} | {optimizer} | {rule} | {' | '.join(cells)} |", flush=True)
        if options.json is not None:
            key = f"{options.network}; {name}; {optimizer}; {rule}"
            record(options.json, key, dict(zip(options.seeds, runs, strict=True)))


def record(path: Path, key: str, runs: dict[int, dict[str, float]]) -> None:
    """Add runs by seed to a file."""
    found = json.loads(path.read_text()) if path.exists() else {"results": {}}
    found["machine"] = {"torch": torch.__version__, "system": f"{platform.system()} {platform.machine()}"}
    found["results"][key] = runs
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
