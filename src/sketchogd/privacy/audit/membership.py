"""Membership: what a memory's eigenvectors say of an example, compared with what the weights say.

Of a second moment M with eigenpairs (λ, V), and a vector v that may have been added to it:
 - the reconstruction error, the share of ‖v‖² outside of V;
 - the quadratic form vᵀ M v / ‖v‖², as a pull weighs it;
 - the leverage vᵀ (M + ρ I)⁻¹ v. A member's is h / (1 + h), where h is what it would be if it were not in M: no
   member has more than 1, and with few examples per dimension that alone tells most members from others.

Layers have one v for their inputs and one for their sensitivities, a gradient memory the gradient itself.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...memory import GradientMemory, LayerMemory, Memory
from ...model.batches import batch_size, evaluating, logits_of, map_tensors
from ...model.layers import MIXED, grouped, input_rows, orders_of_positions, sensitivity_rows
from ...model.sensitivities import Reading
from ...model.targets import class_axis

RIDGE = 1e-3
"""ρ over the mean eigenvalue."""

CHUNK = 64

Batches = Sequence[tuple[Any, Any]]


def chunks(batches: Batches, size: int = CHUNK) -> Iterator[tuple[Any, Any]]:
    """Batches of at most this many examples."""
    for inputs, targets in batches:
        for start in range(0, batch_size(inputs), size):
            here = slice(start, start + size)
            part = [map_tensors(lambda t, here=here: t[here], each) for each in (inputs, targets)]  # type: ignore[misc]
            yield part[0], part[1]


def of_spectrum(v: Tensor, values: Tensor, vectors: Tensor, energy: float) -> Tensor:
    """Logarithms of error, quadratic form and leverage (n, 3) of rows v (n, d)."""
    v, values, vectors = v.double(), values.double(), vectors.double()
    d = v.shape[1]
    if energy <= 0:  # nothing was seen, as of a memory whose noise hides all
        return v.new_zeros(len(v), 3)
    whole = v.square().sum(1).clamp_min(1e-300)
    seen = (v @ vectors.T).square()
    left = (whole - seen.sum(1)).clamp_min(0.0)
    tail = max(0.0, energy - float(values.sum())) / max(1, d - len(values))
    ridge = RIDGE * energy / d
    error = left / whole
    quadratic = (seen @ values + left * tail) / whole
    leverage = seen @ (1 / (values + ridge)) + left / (tail + ridge)
    floor = torch.finfo(torch.float64).tiny ** 0.25
    return torch.stack([error.clamp_min(1e-6), quadratic.clamp_min(floor), leverage.clamp_min(floor)], 1).log()


def features(memory: Memory, batches: Batches) -> Tensor:
    """What a memory says of each example, (n, f). Raises TypeError for a kind of memory that has no such numbers."""
    if isinstance(memory, GradientMemory):
        return torch.cat([_of_gradients(memory, x, y) for x, y in chunks(batches)])
    if isinstance(memory, LayerMemory):
        return torch.cat([row for x, y in chunks(batches) for row in _of_layers(memory, x, y)])
    raise TypeError(f"no attack is known on a {type(memory).__name__}")


def _of_gradients(memory: GradientMemory, inputs: Any, targets: Any) -> Tensor:
    rows = torch.cat(list(memory.signals.chunks(*memory.prepared(inputs, targets))))
    found = [of_spectrum(rows[:, block.place], *block.sketch.spectrum(), block.sketch.energy) for block in memory.parts]
    return torch.cat(found, 1)


def _of_layers(memory: LayerMemory, inputs: Any, targets: Any) -> Iterator[Tensor]:
    layers = [factors.layer for factors in memory.factors.values()]
    reading = Reading(memory.parameters.model, layers, inputs, targets, memory.output, 0)
    b, orders = batch_size(inputs), orders_of_positions(reading.uses, reading.outputs)
    if MIXED in orders and b > 1:
        for x, y in chunks([(inputs, targets)], 1):
            yield from _of_layers(memory, x, y)
        return
    passes = list(reading.deltas())
    found: dict[str, Tensor] = {}
    for i, use in enumerate(reading.uses):
        factors = memory.factors[use.layer.name]
        if use.head or factors.inputs is None or use.options.get("groups", 1) > 1:
            continue  # tokens and groups of channels have no such vectors
        a = grouped(input_rows(use, torch.float64), orders[i], b)
        deltas = [deltas[i] for deltas in passes if deltas[i] is not None]
        if not deltas:
            continue
        each = [grouped(sensitivity_rows(use, delta, torch.float64), orders[i], b) for delta in deltas]
        size = torch.stack([d.square().sum(2) for d in each]).sum(0)  # of all scalars, per position
        for part, sketch, rows in (
            ("inputs", factors.inputs, [a * size.sqrt()[..., None]]),
            ("outputs", factors.outputs, [d * a.square().sum(2, keepdim=True).sqrt() for d in each]),
        ):
            if sketch is None:
                continue
            values, vectors = sketch.spectrum()
            own = [of_spectrum(r.flatten(0, 1), values, vectors, sketch.energy).view(b, -1, 3).mean(1) for r in rows]
            found[f"{use.layer.name}.{part}.{i}"] = torch.stack(own).mean(0)
    yield torch.cat(list(found.values()), 1)


@torch.no_grad()
def of_weights(model: nn.Module, batches: Batches) -> Tensor:
    """What the weights alone say of each example: its loss (Yeom et al. 2018), and how sure the model is of its class.

    Without targets, the largest probability and the spread of the logits.
    """
    found = []
    with evaluating(model):
        for inputs, targets in chunks(batches):
            logits = logits_of(model(*inputs) if isinstance(inputs, tuple) else model(inputs)).double()
            logits = logits.reshape(len(logits), -1)
            chances = logits.log_softmax(1)
            if isinstance(targets, Tensor) and class_axis(tuple(logits.shape[1:]), targets[0]) is not None:
                own = chances.gather(1, targets.long().view(-1, 1))[:, 0]
            else:
                own = chances.amax(1)
            sure = own - torch.log1p(-own.exp().clamp_max(1 - 1e-12))  # log p / (1 − p), as Carlini et al. 2022
            found.append(torch.stack([own, sure, logits.std(1)], 1))
    return torch.cat(found)
