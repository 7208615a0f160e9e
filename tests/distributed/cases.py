"""What every process and the single one do alike: a small model, two tasks dealt out unevenly, all sketches."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sketchogd as so

DTYPE = torch.float64
SKETCHES = {
    "gradient": lambda: so.GradientSketch(12),
    "gradient-sparse": lambda: so.GradientSketch(12, test_matrix="sparse"),
    "product": lambda: so.ProductSketch(12),
    "product-gaussian": lambda: so.ProductSketch(12, test_matrix=so.Gaussian(stored=True)),
    "product-identity": lambda: so.ProductSketch(200),
    "symmetric": lambda: so.SymmetricSketch(6, 8),
    "all": so.AllRows,
    "random": lambda: so.RandomRows(10),
    "pca": lambda: so.PCARows(8, 4),
    "incremental-pca": lambda: so.IncrementalPCA(8, 3),
    "frequent-directions": lambda: so.FrequentDirections(8, 3),
    "scaled": lambda: so.GradientMemory(so.ProductSketch(12), power=1.0),
    "pulled": lambda: so.GradientMemory(so.ProductSketch(12), strength=3.0),
}
BLOCKS = {
    "blocks": lambda: so.GradientMemory(so.ProductSketch(5), blocks=3),
    "blocks-pulled": lambda: so.GradientMemory(so.ProductSketch(5), blocks=3, strength=3.0),
    "blocks-random": lambda: so.GradientMemory(so.RandomRows(10), blocks=3),
}
LAYERS = {"layer": lambda: so.LayerSketch(rank=5), "layer-ridge": lambda: so.LayerSketch(rank=5, ridge=0.05)}
WAYS = {"": {}, "-gradient-mode": {"momentum": 0.0}, "-every": {"every": 3}}
"""How steps are projected: the update, the gradient (plain SGD), the joint displacement of three steps."""
PAPER = ("gradient", "product", "symmetric")
BATCH = 12
"""Examples of a training step: a multiple of 1, 2, 3 and 4, so that means of parts average to the mean."""


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)).to(DTYPE)


def examples(task, n=24):
    g = torch.Generator().manual_seed(task)
    return torch.randn(n, 6, generator=g, dtype=DTYPE), torch.randint(0, 3, (n,), generator=g)


def batches_of(task, rank, size, n=24):
    """What one process remembers of a task: shards of different sizes, in batches, and none at all for one process.

    Sizes are such that the first round of a split sketch of rank 12 moves sums, and later ones rows.
    """
    x, y = examples(task, n)
    if size > 1 and task == 1 and rank == size - 1:
        return []
    owners = size - (task == 1 and size > 1)
    own = torch.arange(rank, len(y), owners)
    own = own[: len(own) - rank]  # uneven
    first = 13 if size == 1 else 12
    return [(x[i], y[i]) for i in (own[:first], own[first:]) if len(i)]


def in_order(task, size, n=24):
    """The batches of all processes as one process would have to see them: round by round."""
    shards = [batches_of(task, rank, size, n) for rank in range(size)]
    for turn in range(max(map(len, shards))):
        yield from (shard[turn] for shard in shards if turn < len(shard))


def train(model, optimizer, task, rank=0, size=1, steps=4):
    """Steps on batches of BATCH examples, of which this process takes its share."""
    x, y = examples(task)
    for step in range(steps):
        chosen = torch.arange(step * 5, step * 5 + BATCH) % len(y)
        mine = chosen[rank::size]
        optimizer.zero_grad()
        cross_entropy(model(x[mine]), y[mine]).backward()
        optimizer.step()


def probes(p):
    return torch.randn(3, p, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(DTYPE)


def single(make, size, momentum=0.9, n=24, every=1):
    """One process that remembers what `size` processes do: (projected probes, weights, numbers)."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum)
    protection = so.protect(net, optimizer, memory=make(), every=every)
    for task in (1, 2):
        protection.remember(in_order(task, size, n))
        train(net, optimizer, 3 + task)
    protection.settle()
    parts = torch.stack([protection.projector.protected_part_(v) for v in probes(protection.parameters.p)])
    return {"parts": parts, "weights": protection.parameters.flatten(), **facts(protection)}


def facts(protection):
    found = protection.diagnostics()
    sketches = found.get("sketches") or {"sketch": found["sketch"]}
    return {
        "examples": found["examples"],
        "rows": [s["rows"] for s in sketches.values()],
        "energy": torch.tensor([s["energy"] for s in sketches.values()]),
        "values": [torch.tensor(s["values"]) for s in sketches.values()],
        "displacement": found["displacement"],
    }
