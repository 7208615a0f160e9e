"""Coverage: how each parameter of a model is protected, and whether anything was remembered of it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .model.batches import every_logit
from .model.layers import Layer, Use, input_rows, sensitivity_rows
from .model.sensitivities import Reading
from .model.signs import sign_rows


@dataclass(frozen=True, eq=False)
class Covered:
    """A parameter, by what it is protected, and whether the examples observed depend on it."""

    tensor: Tensor
    how: str
    seen: bool


@dataclass(frozen=True)
class Row:
    """One parameter or buffer of the model."""

    name: str
    shape: tuple[int, ...]
    how: str


@dataclass(frozen=True)
class Coverage:
    """Every parameter and buffer of a model with how it is protected. Prints as a table."""

    rows: tuple[Row, ...]

    @staticmethod
    def of(model: nn.Module, protected: Iterable[Tensor], covered: Iterable[Covered], examples: int) -> "Coverage":
        """The coverage of a model.

        Args:
            model: the model.
            protected: the parameters that were chosen.
            covered: what the memory says of them.
            examples: how many examples were observed.
        """
        chosen = {id(t) for t in protected}
        found: dict[int, list[Covered]] = {}
        for each in covered:
            found.setdefault(id(each.tensor), []).append(each)
        rows = []
        for name, parameter in model.named_parameters():
            entries = found.get(id(parameter), [])
            if id(parameter) not in chosen:
                how = "not protected: " + ("not chosen" if parameter.requires_grad else "requires no gradient")
            elif not entries:
                how = "not protected: no memory has a place for it"
            else:
                how = "; ".join(dict.fromkeys(each.how for each in entries))
                if examples and not any(each.seen for each in entries):
                    how = f"free so far: nothing observed depends on it ({how})"
            rows.append(Row(name, tuple(parameter.shape), how))
        return Coverage(tuple(rows))

    def with_buffers(self, buffers: Iterable[tuple[str, tuple[int, ...], str]]) -> "Coverage":
        """The same with buffers, (name, shape, how each is protected), after the parameters."""
        return Coverage((*self.rows, *(Row(*buffer) for buffer in buffers)))

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        cells = [("parameter or buffer", "shape", "how it is protected")]
        cells += [(row.name, " × ".join(map(str, row.shape)), row.how) for row in self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(3)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join(lines)


def unexplained(reading: Reading, layers: Sequence[Layer], seed: int) -> list[str]:
    """The names of layers whose recorded uses do not explain the gradient of their weight or bias.

    A weight that is masked, scaled or sliced before it is used moves the outputs by calls that nothing records. The
    gradients of one random combination of all outputs, summed over examples, are compared: Σ δ aᵀ over the recorded
    uses with what autograd finds, in one backward pass; the graph is kept.

    Args:
        reading: a forward pass.
        layers: the layers that it recorded.
        seed: seed of the combination.
    """
    outputs = reading.outputs
    tensors = [t for layer in layers for t in (layer.weight, layer.bias) if t is not None]
    if not outputs.requires_grad or not tensors:
        return []
    every = reading.output is every_logit
    signs = next(reading.signs(1, seed) if every else sign_rows(outputs.detach(), 1, seed)).view_as(outputs)
    wanted: list[Any] = [*map(reading.gathered.tensor, tensors), *(use.edge for use in reading.uses)]
    found = torch.autograd.grad(outputs, wanted, signs, retain_graph=True, allow_unused=True)
    gradients = {id(t): g for t, g in zip(tensors, found, strict=False) if g is not None}
    uses: dict[str, list[tuple[Use, Tensor]]] = {}
    for use, delta in zip(reading.uses, found[len(tensors) :], strict=True):
        if delta is not None:
            uses.setdefault(use.layer.name, []).append((use, delta))
    return [layer.name for layer in layers if not _explained(layer, uses.get(layer.name, []), gradients)]


def _explained(layer: Layer, uses: Sequence[tuple[Use, Tensor]], gradients: dict[int, Tensor]) -> bool:
    if any(use.options.get("scaled") for use, _ in uses):
        return True  # scale_grad_by_freq: what autograd finds is not the gradient
    expected = _summed(layer, gradients)
    if expected is None:
        return True
    found = torch.zeros_like(expected)
    for use, delta in uses:
        found += _gradient(use, delta, expected.dtype)
    coarse = any(delta.dtype.itemsize < 4 for _, delta in uses) or layer.weight.dtype.itemsize < 4
    error = (found - expected).norm()
    return bool(error <= (5e-2 if coarse else 1e-2) * expected.norm()) or not bool(error.isfinite())


def _summed(layer: Layer, gradients: dict[int, Tensor]) -> Tensor | None:
    """What autograd found for a layer, (fan-out, width), for embeddings (tokens, fan-out)."""
    weight = gradients.get(id(layer.weight))
    bias = None if layer.bias is None else gradients.get(id(layer.bias))
    if weight is None and bias is None:
        return None
    W = (_zeros(layer.weight) if weight is None else weight.to_dense()).flatten(1)
    if layer.kind == "conv1d of transformers":
        W = W.T
    if layer.bias is not None:
        W = torch.cat([W, (_zeros(layer.bias) if bias is None else bias)[:, None]], 1)
    return W if W.dtype.itemsize >= 4 else W.float()


def _zeros(parameter: Tensor) -> Tensor:
    """Zeros for all of a parameter, which may be split."""
    return torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)


def _gradient(use: Use, delta: Tensor, dtype: torch.dtype) -> Tensor:
    """Σ δ aᵀ over all positions of a use."""
    if use.layer.tokens and not use.head:
        rows = delta.reshape(-1, delta.shape[-1]).to(dtype)
        if use.options["padding"] is not None:
            rows = rows.masked_fill((use.input.flatten() == use.options["padding"])[:, None], 0.0)
        return rows.new_zeros(use.layer.fan_in, rows.shape[1]).index_add_(0, use.input.flatten(), rows)
    g = use.options.get("groups", 1)
    a, d = input_rows(use, dtype), sensitivity_rows(use, delta, dtype)
    a, d = (rows.reshape(len(d), g, -1).transpose(0, 1) for rows in (a, d))
    return (d.mT @ a).flatten(0, 1)
