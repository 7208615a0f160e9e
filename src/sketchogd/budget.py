"""Bytes: from a budget to a memory that fits, and the ledger of everything that a protection keeps."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from .columns import Whole
from .memory import GradientMemory, Held, LayerSketch, Memory
from .parameters import ProtectedParameters, local
from .sketch import ProductSketch
from .sketch.base import largest_rank
from .theory.advice import recommend, typical_spectrum
from .uses import find_layers

SMALLEST_RANK = 4
"""Below this rank a sketch protects next to nothing."""

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def parse_bytes(budget: str | int) -> int:
    """A number of bytes from 2_000_000, "2MB" (10⁶ bytes) or "2MiB" (2²⁰ bytes).

    >>> parse_bytes("2MB"), parse_bytes("0.5 GiB"), parse_bytes(4096)
    (2000000, 536870912, 4096)
    """
    if isinstance(budget, int) and not isinstance(budget, bool) and budget > 0:
        return budget
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*", budget) if isinstance(budget, str) else None
    if match is None or match[2].lower() not in _UNITS or float(match[1]) <= 0:
        raise ValueError(f'a budget is a positive number of bytes or a text such as "2MB" or "512KiB"; got {budget!r}')
    return int(float(match[1]) * _UNITS[match[2].lower()])


class Choice(NamedTuple):
    """A memory that a budget picked, and why, in words."""

    memory: Memory
    reason: str


WITHOUT_ANCHOR: dict[str, Any] = {"ridge": 0.0, "energy": 0.95, "outputs": False}
"""Settings of a layer memory that has no room for an anchor: inputs only, projected hard."""


def memory_for(budget: str | int, parameters: ProtectedParameters, every: int, seed: int) -> Choice:
    """The memory that makes the most of a budget, the copy of the weights counted where one is kept.

    A layer memory where at least half of the parameters belong to layers (it needs the fewest bytes), otherwise the
    sketch of the gradients that `theory.recommend` names for `theory.typical_spectrum`, there being no gradients yet.
    Raises ValueError that says how many bytes are needed.
    """
    nbytes = parse_bytes(budget)
    layers = find_layers(parameters) if isinstance(parameters.columns, Whole) else []  # only gradients are split
    in_layers = sum(layer.weight.numel() + (0 if layer.bias is None else layer.bias.numel()) for layer in layers)
    by_layer = 2 * in_layers >= parameters.p

    weights = int(parameters.columns.largest(sum(local(t).numel() * t.element_size() for t in parameters.tensors)))
    widths = [layer.width for layer in layers if layer.kind != "embedding"] + [layer.fan_out for layer in layers]
    limit = max(widths) if by_layer else parameters.p
    settings: dict[str, Any] = {}

    def memory(rank: int) -> Memory:
        return LayerSketch(rank, **settings, seed=seed) if by_layer else GradientMemory(ProductSketch(rank, seed=seed))

    def needed(rank: int) -> int:
        return memory(rank).cost(parameters) + copies

    copies = weights if every > 1 or memory(1).anchored else 0
    smallest = min(SMALLEST_RANK, limit)
    if needed(smallest) > nbytes and every == 1 and by_layer:
        settings, copies = WITHOUT_ANCHOR, 0  # there is then no copy of the weights to pay for
    rank = largest_rank(lambda k: needed(k) <= nbytes, limit)
    if rank < smallest:
        copy = f", {copies:,} of them for a copy of the weights" if copies else ""
        raise ValueError(
            f"a budget of {nbytes:,} bytes is too small for {parameters.p:,} parameters: the smallest useful memory "
            f"(rank {smallest}) takes {needed(smallest):,} bytes{copy}. Raise the budget, or protect fewer "
            "parameters with parameters="
        )
    if by_layer:
        return Choice(
            memory(rank),
            f"{in_layers / parameters.p:.0%} of the parameters belong to layers, whose inputs and sensitivities take "
            f"far fewer bytes than gradients of length {parameters.p:,}; rank {rank} is the largest that fits."
            + (f" Inputs only: {weights:,} bytes for an anchor do not fit as well." if settings else ""),
        )
    # In rows, not bytes: without a stored test matrix every sketch takes the bytes of its rows, and they are counted.
    advice = recommend(typical_spectrum(), vectors=rank, d=parameters.p)
    return Choice(
        GradientMemory(advice.sketch(seed)),
        f"Most parameters belong to no layer, so gradients are sketched; {rank} rows fit. If their spectrum is like "
        f"that of other networks: {advice.reason}",
    )


@dataclass(frozen=True)
class Entry:
    """One tensor that a protection keeps between steps."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    nbytes: int
    purpose: str


@dataclass(frozen=True)
class Ledger:
    """Every tensor that a protection keeps between steps. Prints as a table."""

    entries: tuple[Entry, ...]

    @staticmethod
    def of(held: Iterator[Held]) -> "Ledger":
        """The ledger of these tensors."""
        return Ledger(
            tuple(
                Entry(
                    item.name,
                    tuple(item.tensor.shape),
                    str(item.tensor.dtype).removeprefix("torch."),
                    str(item.tensor.device),
                    item.nbytes,
                    item.purpose,
                )
                for item in held
            )
        )

    @property
    def nbytes(self) -> int:
        """All bytes."""
        return sum(entry.nbytes for entry in self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        rows = [("bytes", "dtype", "device", "shape", "tensor", "purpose")]
        rows += [
            (f"{e.nbytes:,}", e.dtype, e.device, " × ".join(map(str, e.shape)), e.name, e.purpose) for e in self.entries
        ]
        rows.append((f"{self.nbytes:,}", "", "", "", "total", ""))
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        lines = []
        for row in rows:
            cells = [
                row[0].rjust(widths[0]),
                *(cell.ljust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
            lines.append("  ".join(cells).rstrip())
        lines.insert(1, "  ".join("-" * width for width in widths))
        lines.insert(-1, lines[1])
        return "\n".join(lines)
