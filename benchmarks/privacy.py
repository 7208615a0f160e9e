"""What memories reveal, and what a guarantee costs.

    python benchmarks/privacy.py audit --data DATA --json benchmarks/results/privacy-audit-cpu.json
    python benchmarks/privacy.py accuracy --data DATA --json benchmarks/results/privacy-accuracy-cpu.json
    python benchmarks/privacy.py plot --records benchmarks/results/privacy-accuracy-cpu.json --figures accuracy.png

"audit" trains the network of a benchmark on two halves of its first task, remembers some of one half, and attacks the
memory: once with others of the other half, which the weights know as well, so that all that is found comes from the
memory; and once with test data, where weights leak too. "accuracy" trains all tasks for each ε, at the bytes of the
same layer memory. Benchmarks whose data is not in the folder are left out, and named.
"""

import argparse
import json
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sketchogd as so
from sketchogd.lab.data import datasets
from sketchogd.lab.runs.evaluate import use_head
from sketchogd.lab.streams.benchmarks import BENCHMARKS
from sketchogd.lab.streams.tasks import Recipe, Stream

DELTA = 1e-5
WORDS, LENGTH = 4096, 16


class Sentences(nn.Module):
    """The mean of hashed words' embeddings, and two layers."""

    def __init__(self, classes: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words = nn.Embedding(WORDS, 64, padding_idx=0)
        self.hidden, self.head = nn.Linear(64, 128), nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        count = (x > 0).sum(1, keepdim=True).clamp_min(1)
        return self.head(torch.relu(self.hidden(4 * self.words(x).sum(1) / count)))


def sentences(folder: Path) -> Stream:
    """CLINC150: a task per domain of fifteen intents, numbered from 0 in each, with one head for all."""
    data = json.loads((folder / "data_full.json").read_text())
    domains = json.loads((folder / "domains.json").read_text())

    def half(part: str, names: Sequence[str]) -> Callable[[], tuple[Tensor, Tensor]]:
        own = [(text, names.index(name)) for text, name in data[part] if name in names]
        return lambda: (torch.stack([hashed(text) for text, _ in own]), torch.tensor([y for _, y in own]))

    return Stream(
        "clinc150",
        [Recipe(domain, 15, 0, half("train", names), half("test", names)) for domain, names in domains.items()],
    )


def hashed(text: str) -> Tensor:
    """Numbers of words, from their letters alone: no vocabulary is made of the data."""
    numbers = []
    for word in text.lower().split()[:LENGTH]:
        value = 0
        for letter in word.encode():
            value = (value * 257 + letter) % 1_000_003
        numbers.append(1 + value % (WORDS - 1))
    return torch.tensor(numbers + [0] * (LENGTH - len(numbers)))


def setup(name: str, data: Path, seed: int, n: int | None, tasks: int | None) -> tuple[Stream, nn.Module, Any]:
    """(stream, network, protected parameters). Raises FileNotFoundError where the data is not there."""
    if name == "clinc150":
        if not (data / "clinc150" / "data_full.json").exists():
            raise FileNotFoundError("clinc150/data_full.json")
        stream = sentences(data / "clinc150")
        return (stream if tasks is None else stream[:tasks]), Sentences(15, seed), None
    benchmark = BENCHMARKS[name]
    images = datasets.load("mnist" if "mnist" in name else benchmark.dataset, data)
    stream = benchmark.stream(images, seed=seed, tasks=tasks, n_train=n, n_test=None if "cifar" in name else 1500)
    return stream, benchmark.network(stream, seed), benchmark.protected


def batches(x: Tensor, y: Tensor, size: int = 500) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(size), y.split(size), strict=True))


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "clinc150":
        return torch.optim.Adam(model.parameters(), lr=2e-3)
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def train(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor, epochs: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(32):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()


# ---------------------------------------------------------------- what a memory reveals


FEW, MORE = 40, 1000
"""Remembered by the rows that say so; others remember `--examples`."""

Case = tuple[str, Callable[[], Any], float | None, int | None]


def memories() -> Iterator[Case]:
    """(name, memory, ε or None, how many examples are remembered or None for the usual number)."""
    layers, product, gradient = (
        lambda: so.LayerMemory(200),
        lambda: so.ProductSketch(100),
        lambda: so.GradientSketch(100),
    )
    for name, memory in (("layer memory", layers), ("product sketch", product), ("gradient sketch", gradient)):
        yield name, memory, None, None
    yield "layer memory, exact factors", lambda: so.LayerMemory(2048), None, None
    yield "all rows", lambda: so.AllRows(), None, None
    yield "random rows", lambda: so.RandomRows(50), None, None
    yield "PCA of rows", lambda: so.PCARows(100, 50), None, None
    yield "frequent directions", lambda: so.FrequentDirections(50), None, None
    yield "incremental PCA", lambda: so.IncrementalPCA(50), None, None
    yield "symmetric sketch", lambda: so.SymmetricSketch(50, 50), None, None
    for name, memory in (("layer memory", layers), ("product sketch", product), ("gradient sketch", gradient)):
        yield name, memory, None, FEW
        yield name, memory, 3.0, FEW
    yield "layer memory", layers, None, MORE
    for epsilon in (1.0, 3.0, 8.0):
        yield "layer memory", layers, epsilon, MORE
    yield "product sketch", product, 8.0, MORE
    yield "gradient sketch", gradient, 8.0, MORE


def audits(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    stream, model, parameters = setup(name, options.data, 0, None, 1)
    x, y = stream.train(0)
    held_x, held_y = stream.test(0)
    use_head(model, 0)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    n = min(MORE, len(x) // 2)
    inside, outside = order[:n], order[n : 2 * n]
    both = torch.cat([inside, outside])
    optimizer = optimizer_of(name, model)
    train(model, optimizer, x[both], y[both], max(1, options.steps * 32 // len(both)), 0)
    for title, memory, epsilon, count in memories():
        if options.only and options.only not in title:
            continue
        start = time.time()
        privacy = None if epsilon is None else so.Privacy(epsilon, DELTA)
        protection = so.protect(model, optimizer, memory=memory(), parameters=parameters, privacy=privacy, output=None)
        members, others = (each[: count or options.examples] for each in (inside, outside))
        protection.remember(batches(x[members], y[members]))
        found = {
            "trained, not remembered": so.privacy.audit(
                protection,
                batches(x[members], y[members]),
                batches(x[others], y[others]),
                inputs=count == FEW or title.startswith("layer"),  # a search in a large span takes minutes
            ),
            "test data": so.privacy.audit(
                protection,
                batches(x[members], y[members]),
                batches(held_x[: len(members)], held_y[: len(members)]),
                inputs=False,
            ),
        }
        first = found["trained, not remembered"]
        if options.figures is not None and first.reconstructions and count == FEW:
            slug = f"{title} {'' if epsilon is None else f'epsilon {epsilon:g}'}".strip().replace(" ", "-")
            first.figure(options.figures / f"privacy-{name}-{slug}.png")
        yield {
            "benchmark": name,
            "memory": title,
            "bytes": protection.memory.nbytes,
            "examples": len(members),
            "epsilon": epsilon,
            "bound": first.bound(),
            "others": {key: each.rows() for key, each in found.items()},
            "seconds": round(time.time() - start, 1),
        }
        protection.detach()


# ---------------------------------------------------------------- what a guarantee costs


def accuracy(model: nn.Module, stream: Stream) -> float:
    model.eval()
    found = []
    with torch.no_grad():
        for task in range(len(stream)):
            x, y = stream.test(task)
            use_head(model, stream.recipes[task].head)
            found.append(float((model(x).argmax(1) == y).float().mean()))
    return sum(found) / len(found)


def run(
    name: str, options: argparse.Namespace, epsilon: float | None, seed: int, n: int | None, memory: Any | None
) -> dict[str, Any]:
    """One run; ε None without a guarantee, memory None without protection."""
    stream, model, parameters = setup(name, options.data, seed, n, None if name == "clinc150" else options.tasks)
    optimizer, disjoint = optimizer_of(name, model), name.startswith(("split", "clinc"))
    protection = None
    if memory is not None:
        privacy = None
        if epsilon is not None:
            privacy = so.Privacy(epsilon, DELTA, disjoint=True) if disjoint else so.Privacy(epsilon, DELTA, len(stream))
        protection = so.protect(model, optimizer, memory=memory, parameters=parameters, every=10, privacy=privacy)
    for task, recipe in enumerate(stream.recipes):
        x, y = stream.train(task)
        use_head(model, recipe.head)
        train(model, optimizer, x, y, max(1, options.steps * 32 // len(x)), seed)
        if protection is not None:
            protection.remember(batches(x, y))
    if protection is not None:
        protection.settle()
    return {
        "benchmark": name,
        "memory": None if memory is None else repr(memory),
        "bytes": 0 if protection is None else protection.ledger().nbytes,
        "epsilon": epsilon,
        "disjoint": disjoint,
        "examples": len(x),
        "seed": seed,
        "accuracy": accuracy(model, stream),
    }


def costs(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for seed in range(options.seeds):
        for n in [None] if name == "clinc150" else options.remember:
            for epsilon in ["none", "inf", *options.epsilon]:
                own = None if epsilon == "none" else so.LayerMemory(200, anchor_dtype="int8")
                yield run(name, options, None if epsilon in ("none", "inf") else float(epsilon), seed, n, own)


def plot(records: Sequence[Path], path: Path) -> None:
    """Accuracy over ε of every benchmark in these files, with the mean and all seeds."""
    from matplotlib.figure import Figure

    rows = [row for record in records for row in json.loads(record.read_text())["rows"]]
    kinds = sorted({(row["benchmark"], row["examples"]) for row in rows if row["epsilon"]})
    figure = Figure(figsize=(3.8 * len(kinds), 3))
    figure.subplots_adjust(wspace=0.3)
    for i, (name, n) in enumerate(kinds):
        own = [row for row in rows if (row["benchmark"], row["examples"]) == (name, n)]
        axes = figure.add_subplot(1, len(kinds), i + 1)
        private = sorted({row["epsilon"] for row in own if row["epsilon"]})
        means = [_mean([row["accuracy"] for row in own if row["epsilon"] == epsilon]) for epsilon in private]
        axes.plot(private, means, color="tab:blue")
        shown = [row for row in own if row["epsilon"]]
        axes.plot([row["epsilon"] for row in shown], [row["accuracy"] for row in shown], "o", color="tab:blue")
        for memory, label, colour in ((True, "no guarantee", "tab:green"), (False, "no memory", "tab:red")):
            level = [row["accuracy"] for row in own if row["epsilon"] is None and (row["memory"] is not None) == memory]
            axes.axhline(_mean(level), color=colour, linestyle="--", label=label)
        axes.set_xscale("log")
        axes.set_xticks(private, [f"{epsilon:g}" for epsilon in private])
        axes.minorticks_off()
        axes.set_xlabel("ε")
        axes.set_title(f"{name}, {n:,} per task", fontsize=9)
        if i == 0:
            axes.set_ylabel("mean accuracy")
            axes.legend(fontsize=8)
    figure.savefig(path, dpi=110, bbox_inches="tight")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["audit", "accuracy", "plot"])
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with mnist/, clinc150/ and cifar100/")
    parser.add_argument("--benchmarks", nargs="*", default=["split-mnist", "clinc150", "split-cifar100"])
    parser.add_argument("--examples", type=int, default=300, help="audit: how many are remembered")
    parser.add_argument("--only", help="audit: memories with this in their name")
    parser.add_argument("--steps", type=int, default=190, help="optimizer steps per task")
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--remember", type=int, nargs="*", default=[2000], help="accuracy: examples per task")
    parser.add_argument("--epsilon", nargs="*", default=["10", "3", "1", "0.3"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figures", type=Path, help="audit: a folder for pictures; plot: the file to write")
    parser.add_argument("--records", type=Path, nargs="*", help="plot: files that accuracy wrote")
    options = parser.parse_args()
    if options.what == "plot":
        plot(options.records, options.figures)
        return
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*noise hides")
    rows: list[dict[str, Any]] = []
    missing = []
    for name in options.benchmarks:
        try:
            for row in (audits if options.what == "audit" else costs)(name, options):
                rows.append(row)
                print(json.dumps(row, ensure_ascii=False), flush=True)
        except FileNotFoundError as error:
            missing.append(name)
            print(f"{name} is left out, its data is not in {options.data}: {error}", flush=True)
    if options.json is not None:
        machine = {"torch": torch.__version__, "system": f"{platform.system()} {platform.machine()}", "threads": 1}
        record = {"machine": machine, "delta": DELTA, "steps": options.steps, "missing": missing, "rows": rows}
        options.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
