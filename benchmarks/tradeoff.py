"""What strength and budget do: accuracy on old tasks against accuracy on new ones, on two streams of MNIST digits.

    python benchmarks/tradeoff.py --json benchmarks/results/tradeoff-cpu.json --figures docs/images

Five tasks in turn, an MLP with one head, Adam, three epochs, two seeds. `old` is the accuracy at the end on
all tasks but the last, `new` that on tasks 2 to 5 when each was just learned. The JSON has a line per run; with
--read the figures and the tables are made from it.
"""

import argparse
import itertools
import json
import platform
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sketchogd as so
from sketchogd.lab import benchmark

STREAMS = {"split-mnist": "pairs of digits", "rotated-mnist": "rotated digits"}
BUDGETED = "split-mnist"
STRENGTHS = (0.1, 0.5, 2.0, 10.0, 30.0, 100.0)
BUDGETS = ("25%", "50%", "100%", "200%", "400%")
EPOCHS, BATCH, RATE = 3, 32, 1e-3


def train(stream, seed, budget=None, strength=None):
    """Accuracy on task j after task i, and the bytes kept; without a budget nothing is protected."""
    tasks = list(benchmark(stream, seed=seed))
    torch.manual_seed(seed)
    sizes = (tasks[0].x_train[0].numel(), 100, 100, tasks[0].classes)
    layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(sizes[:-1])]
    model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(*sizes[-2:]))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    protection = None if budget is None else so.protect(model, optimizer, budget=budget, strength=strength)
    accuracy = np.zeros((len(tasks), len(tasks)))
    for i, task in enumerate(tasks):
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(task.x_train)).split(BATCH):
                optimizer.zero_grad()
                cross_entropy(model(task.x_train[batch]), task.y_train[batch]).backward()
                optimizer.step()
        if protection is not None:
            protection.remember(list(zip(task.x_train.split(500), task.y_train.split(500), strict=True)))
        with torch.no_grad():
            accuracy[i] = [float((model(t.x_test).argmax(1) == t.y_test).float().mean()) for t in tasks]
    return accuracy, 0 if protection is None else protection.ledger().nbytes


def scores(accuracy):
    """Old and new accuracy, and the mean over all tasks at the end, of an accuracy matrix."""
    diagonal = np.diag(accuracy)
    return {"old": accuracy[-1, :-1].mean(), "new": diagonal[1:].mean(), "all": accuracy[-1].mean()}


def settings(stream):
    """What is run on a stream: nothing, strengths at one budget; on the first also budgets at the usual strength."""
    yield {"budget": None, "strength": None}
    for strength in STRENGTHS:
        yield {"budget": "100%", "strength": strength}
    for budget in BUDGETS if stream == BUDGETED else ("100%",):
        yield {"budget": budget, "strength": None}


def measure(seeds):
    runs = []
    for stream in STREAMS:
        for setting in settings(stream):
            for seed in range(seeds):
                accuracy, nbytes = train(stream, seed, **setting)
                found = {key: round(float(value), 4) for key, value in scores(accuracy).items()}
                runs.append({"stream": stream, **setting, "seed": seed, "nbytes": nbytes, **found})
                print(runs[-1], flush=True)
    return runs


def mean(runs, key, **wanted):
    """The mean over seeds of the runs with these settings."""
    return float(np.mean([run[key] for run in runs if all(run[name] == value for name, value in wanted.items())]))


def draw(runs, usual, folder):
    """Two figures: the trade-off over strength, and accuracy over budget."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"font.size": 9, "svg.hashsalt": "sketchogd", "axes.spines.top": False})
    matplotlib.rcParams.update({"axes.spines.right": False, "axes.grid": True, "grid.color": "#e3e5e0"})
    from matplotlib import pyplot as plt

    blue, orange, grey = "#1d6fa5", "#c2571a", "#565c66"
    figure, axes = plt.subplots(1, len(STREAMS), figsize=(9, 3.8), layout="constrained")
    for axis, (stream, title) in zip(axes, STREAMS.items(), strict=True):
        points = [(mean(runs, "new", stream=stream, budget="100%", strength=s), s) for s in STRENGTHS]
        heights = [mean(runs, "old", stream=stream, budget="100%", strength=s) for s in STRENGTHS]
        axis.plot([x for x, _ in points], heights, "o-", color=blue, markersize=4, label='budget="100%", by strength')
        for (x, strength), y in zip(points, heights, strict=True):
            axis.annotate(f"{strength:g}", (x, y), (5, 4), textcoords="offset points", color=blue)
        at = {"stream": stream, "budget": "100%", "strength": None}
        place = mean(runs, "new", **at), mean(runs, "old", **at)
        axis.plot(*place, "o", color=orange, markersize=9, fillstyle="none", label=f"usual strength, {usual:g}")
        at["budget"] = None
        axis.plot(mean(runs, "new", **at), mean(runs, "old", **at), "s", color=grey, label="not protected")
        axis.margins(0.1)
        axis.set(title=title, xlabel="accuracy on new tasks, when learned", ylabel="accuracy on old tasks, at the end")
        axis.legend(frameon=False, loc="lower left")
    save(figure, folder / "strength.svg")
    figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
    y = [mean(runs, "all", stream=BUDGETED, budget=b, strength=None) for b in BUDGETS]
    axis.plot(range(len(BUDGETS)), y, "o-", color=blue, label="usual strength")
    plain = mean(runs, "all", stream=BUDGETED, budget=None, strength=None)
    axis.axhline(plain, color=grey, linestyle=":", label="not protected")
    axis.set(xticks=range(len(BUDGETS)), xticklabels=BUDGETS, xlabel="budget, share of the model's bytes")
    axis.set(ylabel="accuracy on all tasks, at the end", title=STREAMS[BUDGETED])
    axis.legend(frameon=False, loc="center right")
    save(figure, folder / "budget.svg")


def save(figure, path):
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def tables(runs):
    """The two tables of docs/budget.md."""
    for key, values in (("strength", STRENGTHS), ("budget", BUDGETS)):
        streams = list(STREAMS) if key == "strength" else [BUDGETED]
        cells = [f"{STREAMS[stream]}: {what}" for stream in streams for what in ("old", "new", "all")]
        print(f"\n| {key} | {' | '.join(cells)} |\n|---:|{'---:|' * len(cells)}")
        rows = [("not protected", {"budget": None, "strength": None})]
        fixed = {"budget": "100%"} if key == "strength" else {"strength": None}
        rows += [(f"{value:g}" if key == "strength" else value, {**fixed, key: value}) for value in values]
        for name, at in rows:
            found = [mean(runs, what, stream=s, **at) for s in streams for what in ("old", "new", "all")]
            print(f"| {name} | {' | '.join(f'{100 * value:.1f}' for value in found)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the runs to this file")
    parser.add_argument("--read", type=Path, help="read the runs from this file, train nothing")
    parser.add_argument("--figures", type=Path, help="write strength.svg and budget.svg to this folder")
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    start = time.process_time()
    if options.read:
        record = json.loads(options.read.read_text())
    else:
        runs, usual = measure(options.seeds), so.LayerMemory(1).rule.settings()["strength"]
        seconds = round(time.process_time() - start)
        machine = {"torch": torch.__version__, "machine": platform.machine(), "threads": torch.get_num_threads()}
        record = {**machine, "cpu_seconds": seconds, "usual_strength": usual, "runs": runs}
    if options.json:
        lines = ",\n".join(f"  {json.dumps(run)}" for run in record["runs"])
        head = json.dumps({key: value for key, value in record.items() if key != "runs"})[1:-1]
        options.json.write_text(f'{{{head}, "runs": [\n{lines}\n]}}\n')
    if options.figures:
        draw(record["runs"], record["usual_strength"], options.figures)
    tables(record["runs"])


if __name__ == "__main__":
    main()
