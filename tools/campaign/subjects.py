"""Protections of every kind on a small model, and everything that must not change when an operation is refused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sketchogd as so


class Tokens(nn.Module):
    """An embedding, a norm that belongs to no layer, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.out = nn.Embedding(7, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (b, 3) of tokens (b, 4)."""
        return self.out(self.norm(self.embed(tokens)).mean(1))


MEMORIES: dict[str, Callable[[], Any]] = {
    "layers": lambda: so.LayerMemory(4),
    "positions": lambda: so.LayerMemory(4, curvature="positions"),
    "int8": lambda: so.LayerMemory(3, anchor_dtype="int8"),
    "span": lambda: so.LayerMemory({"*": 3, "out.inputs": 2}, anchor_dtype="span"),
    "ridge": lambda: so.LayerMemory({"*": 4}, ridge=0.1),
    "gpm": lambda: so.LayerMemory(4, ridge=0.0, energy=0.95, outputs=False),
    "frequent-layers": lambda: so.LayerMemory(3, sketch=so.FrequentDirections),
    "gradient": lambda: so.GradientSketch(6),
    "product": lambda: so.ProductSketch(6),
    "symmetric": lambda: so.SymmetricSketch(4, 5),
    "stored": lambda: so.ProductSketch(6, test_matrix=so.Gaussian(stored=True)),
    "all": lambda: so.AllRows(),
    "random": lambda: so.RandomRows(8),
    "pca": lambda: so.PCARows(8, 4),
    "frequent": lambda: so.FrequentDirections(6),
    "incremental": lambda: so.IncrementalPCA(6, 3),
    "bfloat16": lambda: so.GradientMemory(so.ProductSketch(6), basis_dtype="bfloat16", offload="cpu"),
    "blocks": lambda: so.GradientMemory(so.ProductSketch(5), blocks=3),
    "pull": lambda: so.GradientMemory(so.ProductSketch(5), blocks=2, rule=so.Pull(3.0, anchor_dtype="int8")),
}


def batch(seed: int, n: int = 24) -> tuple[Tensor, Tensor]:
    """Tokens and targets."""
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 7, (n, 4), generator=g), torch.randint(0, 3, (n,), generator=g)


@dataclass
class Subject:
    """A protection in the middle of training, with steps that wait where `every` > 1."""

    name: str
    every: int = 1
    seed: int = 0
    remembered: bool = True

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.model = Tokens()
        adam = self.seed % 2 == 0
        optimizer = torch.optim.Adam if adam else torch.optim.SGD
        self.optimizer = optimizer(self.model.parameters(), lr=0.01)
        self.protection = so.protect(self.model, self.optimizer, memory=MEMORIES[self.name](), every=self.every)
        self.train(2)
        x, y = batch(100 + self.seed, 6 if self.name == "frequent-layers" else 24)
        if self.remembered:
            self.protection.remember([(x, y)])
        else:
            self.protection.observe(x, y)
        self.train(self.every + 1 if self.every > 1 else 2)
        self._before: dict[str, Tensor] | None = None

    def before(self) -> dict[str, Tensor]:
        """`everything` as it was at the first call; for a subject whose operations are all refused."""
        if self._before is None:
            self._before = self.everything()
        return self._before

    def train(self, steps: int) -> None:
        """Some steps."""
        for i in range(steps):
            x, y = batch(200 + i, 8)
            self.optimizer.zero_grad()
            cross_entropy(self.model(x), y).backward()
            self.optimizer.step()

    def everything(self) -> dict[str, Tensor]:
        """Copies of all tensors: weights, sketches, basis, anchor, and the numbers of the memory's metadata."""
        memory = self.protection.memory
        found: dict[str, Tensor] = {f"weight {name}": t for name, t in self.model.named_parameters()}
        found |= {f"held {item.name}": item.tensor for item in self.protection.held()}
        found |= {f"state {name}": t for name, t in memory.state_dict()["tensors"].items()}
        found["pending"] = torch.tensor([self.protection.pending, memory.examples])
        return {name: t.detach().clone() for name, t in found.items()}


def differing(before: dict[str, Tensor], after: dict[str, Tensor]) -> list[str]:
    """The names of tensors that are not the same to the bit."""
    common = before.keys() & after.keys()
    return sorted({name for name in common if not _same(before[name], after[name])} | (before.keys() ^ after.keys()))


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
