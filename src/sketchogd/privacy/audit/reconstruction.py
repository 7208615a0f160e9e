"""Reconstruction: inputs that can be read off a memory, and how near they are to inputs that were remembered.

An input of a linear layer that sees whole examples is a row a of its factor Σ ‖δ‖² a aᵀ, whose eigenvectors are
candidates. The gradient of a linear layer at one position is δ aᵀ, of rank one: whoever has it has a (Zhu, Blaschko
2021, R-GAP, go on from there to layers below). A sketch has a span of gradients instead, in which matrices of rank one
are searched for by alternating projections, from many starts: while there are at most as many examples as rows, the
span is that of the gradients themselves.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...memory import GradientMemory, LayerMemory, Memory

MOST = 64
"""Candidates per attack."""

STEPS = 40
"""Alternating projections per start, of which there are `STARTS` in a span of gradients."""

STARTS = 12

NEAR = 0.9
"""From this correlation on a candidate is a picture of an example."""


@dataclass(frozen=True)
class Reconstruction:
    """Candidates for inputs, and how near the nearest real ones are.

    Args:
        name: of the attack.
        candidates: (c, d), of any scale and sign.
        members: of each candidate the largest |correlation| with a member (c,).
        others: the same with as many other examples: what pictures have in common is no secret of the memory.
        nearest: the number of the nearest member (c,).
    """

    name: str
    candidates: Tensor
    members: Tensor
    others: Tensor
    nearest: Tensor

    @property
    def share(self) -> float:
        """The share of candidates that are pictures of a member: nearer than `NEAR`, and than any other example."""
        return float(((self.members >= NEAR) & (self.members > self.others)).double().mean())


def first_linear(memory: Memory, length: int) -> tuple[str, Tensor] | None:
    """(name, weight) of the layer that sees whole inputs of this length; None where there is none."""
    model = memory.parameters.model
    names = {id(t): name for name, t in zip(memory.parameters.names, memory.parameters.tensors, strict=True)}
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.in_features == length and id(module.weight) in names:
            return names[id(module.weight)].removesuffix("weight").removesuffix("."), module.weight
    return None


def judged(name: str, candidates: Tensor, members: Tensor, others: Tensor) -> Reconstruction:
    """Compare candidates (c, d) with members and others (n, d), as many of both."""
    n = min(len(members), len(others))
    to_members = _correlations(candidates, members[:n])
    to_others = _correlations(candidates, others[:n])
    nearest = to_members.max(1)
    return Reconstruction(name, candidates, nearest.values, to_others.max(1).values, nearest.indices)


def _correlations(a: Tensor, b: Tensor) -> Tensor:
    a, b = ((x - x.mean(1, keepdim=True)).double() for x in (a, b))
    a, b = (x / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min(1e-300) for x in (a, b))
    return (a @ b.T).abs()


def of_weights(weight: Tensor) -> Tensor:
    """Candidates from the weights alone: the inputs that a layer amplifies most."""
    return torch.linalg.svd(weight.detach().double(), full_matrices=False)[2][:MOST]


def of_memory(memory: Memory, layer: str, weight: Tensor, seed: int = 0) -> Tensor:
    """Candidates from a memory, for a layer that sees whole inputs. Raises TypeError for a kind that has none."""
    if isinstance(memory, LayerMemory):
        sketch = memory.factors[layer].inputs
        assert sketch is not None
        return sketch.spectrum()[1][:MOST, : weight.shape[1]].double()
    if isinstance(memory, GradientMemory):
        return _from_gradients(memory, weight, seed)
    raise TypeError(f"no attack is known on a {type(memory).__name__}")


def _from_gradients(memory: GradientMemory, weight: Tensor, seed: int) -> Tensor:
    place = next(place for t, place in memory.parameters.slices() if t is weight)
    columns = slice(place, place + weight.numel()) if isinstance(place, int) else place
    rows = []
    for block in memory.parts:
        low, high = max(columns.start, block.place.start), min(columns.stop, block.place.stop)
        if low < high:
            own = block.sketch.basis()[:, low - block.place.start : high - block.place.start].double()
            whole = own.new_zeros(len(own), weight.numel())
            whole[:, low - columns.start : high - columns.start] = own
            rows.append(whole)
    span = torch.cat(rows) if rows else torch.zeros(0, weight.numel(), dtype=torch.float64)
    return rank_one(span.view(-1, *weight.shape), STARTS, seed)


def rank_one(span: Tensor, starts: int, seed: int = 0) -> Tensor:
    """Right factors (starts, w) of the matrices nearest to rank one in a span of matrices (r, o, w)."""
    r, _, w = span.shape
    if not r:
        return torch.zeros(0, w, dtype=torch.float64)
    Q = torch.linalg.svd(span.flatten(1), full_matrices=False)
    kept = 1e-7 * Q.S[:1] < Q.S
    basis = Q.Vh[kept].view(int(kept.sum()), *span.shape[1:])
    generator = torch.Generator().manual_seed(seed)
    found = [_search(basis, generator) for _ in range(starts)]
    return torch.stack(found)


def _search(basis: Tensor, generator: torch.Generator) -> Tensor:
    """Alternate between the span and matrices of rank one, from a random direction of the inputs.

    For a given right factor v the coefficients are the leading left singular vector of the products basis · v.
    """
    _, _, w = basis.shape
    v = torch.randn(w, generator=generator, dtype=torch.float64)
    c = torch.linalg.svd((basis @ (v / v.norm())), full_matrices=False)[0][:, 0]
    for _ in range(STEPS):
        _, _, V = torch.linalg.svd(torch.tensordot(c, basis, 1), full_matrices=False)
        v = V[0]
        new = torch.linalg.svd(basis @ v, full_matrices=False)[0][:, 0]
        if float((new @ c).abs()) > 1 - 1e-10:
            break
        c = new
    return v
