"""Split MNIST with and without protection: five tasks of two digits each, one head, a plain training loop.

The network is trained on (0, 1), then on (2, 3), … and tested on all of them at the end.
Run it: python examples/split_mnist.py
"""

import argparse

import torch
from torch.nn.functional import cross_entropy

import sketchogd as so
from sketchogd.lab import benchmark, mlp


def train(tasks, memory: so.LayerMemory | None, epochs: int, seed: int = 0):
    torch.manual_seed(seed)
    model = mlp(outputs=2, seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    protection = None
    if memory is not None:
        protection = so.protect(model, optimizer, memory=memory, every=50)
    for task in tasks:
        for _ in range(epochs):
            for batch in torch.randperm(len(task.x_train)).split(10):
                optimizer.zero_grad()
                cross_entropy(model(task.x_train[batch]), task.y_train[batch]).backward()
                optimizer.step()
        if protection is not None:
            protection.remember(zip(task.x_train.split(500), task.y_train.split(500), strict=True))
    with torch.no_grad():
        scores = [(model(t.x_test).argmax(1) == t.y_test).float().mean().item() for t in tasks]
    return scores, protection


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30, help="epochs per task (default: the paper's 30)")
    parser.add_argument("--rank", type=int, default=200)
    parser.add_argument("--ridge", type=float, default=0.1, help="ridge of the memory that projects; larger is softer")
    options = parser.parse_args()
    tasks = list(benchmark("split-mnist"))
    print("accuracy after the last task     " + "  ".join(task.name for task in tasks) + "   mean")
    memories = {
        "plain SGD": None,
        f"layer memory, ridge {options.ridge:g}": so.LayerMemory(rank=options.rank, ridge=options.ridge),
        "layer memory": so.LayerMemory(rank=options.rank),
    }
    for name, memory in memories.items():
        scores, protection = train(tasks, memory, options.epochs)
        cells = "  ".join(f"{score:{max(5, len(task.name))}.3f}" for score, task in zip(scores, tasks, strict=True))
        print(f"{name:32} {cells}  {sum(scores) / len(scores):.3f}")
    print(protection.ledger())


if __name__ == "__main__":
    main()
