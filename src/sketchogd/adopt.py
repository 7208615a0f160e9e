"""What is remembered of a model, carried over to the same model with more rows, columns and layers.

A parameter keeps its name, and its old numbers stand in the first rows and columns of the new one: in its corner. A
sketch of rows of length d becomes one of rows of length d' in which the new coordinates are zero, and layers that were
added begin with empty sketches. Letters: λ and B the eigenpairs of a sketch.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from .errors import ProtectionError
from .memory import GradientMemory, LayerMemory, Memory
from .model.batches import Output
from .model.parameters import ProtectedParameters
from .optimizer.reference import FULL, Copies, Copy
from .projector.base import Anchor
from .sketch import Additive, FlatTailSketch, Sketch
from .sketch.columns import Whole


def require_grown(old: ProtectedParameters, new: ProtectedParameters) -> None:
    """Raise ProtectionError unless every old parameter stands in the corner of the new one of its name."""
    if not isinstance(old.columns, Whole) or old.split:
        raise ProtectionError(
            "a model whose parameters or sketches are split over processes (FSDP2, shard=True) cannot be adopted; "
            "detach(), and protect the new model"
        )
    present = dict(zip(new.names, new.tensors, strict=True))
    for name, tensor, shape in zip(old.names, old.tensors, old.shapes, strict=True):
        found = present.get(name)
        if found is None:
            raise ProtectionError(
                f"the new model has no parameter {name!r} to protect: what is remembered of it would be lost. Keep its "
                "name and requires_grad, or detach() and protect the new model"
            )
        if not _fits(found.shape, shape) or (
            found is not tensor and not torch.equal(found.detach()[_corner(shape)], tensor.detach().to(found))
        ):
            raise ProtectionError(
                f"parameter {name!r} of the new model, of shape {tuple(found.shape)}, does not begin with the old one, "
                f"of shape {tuple(shape)}: what is remembered would not fit. Copy the old numbers into its "
                "first rows and columns before adopt()"
            )


def _fits(found: torch.Size, shape: torch.Size) -> bool:
    """Whether a shape is at least as large as another one, with the same kernel size where it is a convolution's."""
    same = len(found) == len(shape) and found[2:] == shape[2:]
    return same and all(a >= b for a, b in zip(found, shape, strict=True))


def _corner(shape: torch.Size) -> tuple[slice, ...]:
    return tuple(slice(0, size) for size in shape)


def carried(memory: Memory, parameters: ProtectedParameters, output: Output | None) -> Memory:
    """A memory of the new parameters that remembers what the given one does of the old ones.

    Sketches of rows of the same length are taken over as they are. Longer ones observe √λ B with zeros where the new
    coordinates are, and keep the energy that lay outside of B as a number.

    Raises ProtectionError for memories whose sketches do not add up, and for blocks of gradients.
    """
    new = type(memory).from_meta(memory.state_dict()["meta"])
    new.bind(parameters, output)
    if isinstance(memory, LayerMemory) and isinstance(new, LayerMemory):
        pairs = list(_layer_sketches(memory, new))
        new.tasks, new.logits = memory.tasks, memory.logits
        new.spread.copy_(memory.spread)
    elif isinstance(memory, GradientMemory) and isinstance(new, GradientMemory) and memory.blocks == 1:
        pairs = [(memory.sketch, new.sketch, _flat_index(memory.parameters, parameters))]
        new.tasks = memory.tasks
    else:
        raise ProtectionError(
            f"{memory!r} cannot be carried over to a model that has grown; layer memories and gradient memories of one "
            "block can"
        )
    for source, target, index in pairs:
        _carry(source, target, index)
    new.examples = memory.examples
    return new


def _layer_sketches(old: LayerMemory, new: LayerMemory) -> Iterator[tuple[Sketch, Sketch, Tensor]]:
    """Every old sketch with the new one in its place and where its coordinates are there; counts are copied."""
    for name, factors in old.factors.items():
        if name not in new.factors:
            raise ProtectionError(
                f"layer {name!r} is no layer of its own any more; detach(), and protect the new model"
            )
        layer, grown = factors.layer, new.factors[name]
        if factors.counts is not None and grown.counts is not None:
            grown.counts[: len(factors.counts)] = factors.counts
        if factors.inputs is not None and grown.counts is not None:  # a table that has become a vocabulary
            values, V = factors.inputs.spectrum()
            grown.counts[: layer.fan_in] = (values[:, None] * V.double().square()).sum(0)
        if factors.inputs is not None and grown.inputs is not None:
            index = torch.arange(layer.width)
            index[layer.fan_in :] = grown.layer.fan_in  # the bias is the last input of both
            yield factors.inputs, grown.inputs, index
        if factors.outputs is not None and grown.outputs is not None:
            yield factors.outputs, grown.outputs, torch.arange(layer.fan_out)
    if old.others is not None:
        if new.others is None:
            raise ProtectionError("parameters that belonged to no layer are gone; detach(), and protect the new model")
        index = _flat_index(old.others.parameters, new.others.parameters)
        parts = {part.name: part for part in new.others.parts}
        for part in old.others.parts:
            target = parts[part.name]
            yield part.sketch, target.sketch, index[part.place] - target.place.start


def _flat_index(old: ProtectedParameters, new: ProtectedParameters) -> Tensor:
    """Where each entry of the old vector of parameters is in the new one."""
    places = dict(zip(new.names, new.slices(), strict=True))
    missing = [name for name in old.names if name not in places]
    if missing:
        raise ProtectionError(
            f"parameter {missing[0]!r} belonged to no layer and now does; detach(), and protect the new model"
        )
    parts = []
    for name, shape in zip(old.names, old.shapes, strict=True):
        grown, place = places[name]
        parts.append(torch.arange(place.start, place.stop).view(grown.shape)[_corner(shape)].flatten())
    return torch.cat(parts)


def _carry(source: Sketch, target: Sketch, index: Tensor) -> None:
    if not source.count:
        return
    if source.d == target.d and torch.equal(index, torch.arange(target.d)):
        target.load_state_dict(source.state_dict())
        return
    if not isinstance(source, Additive):
        raise ProtectionError(f"{source!r} cannot be carried over to longer rows; sketches that add up can")
    values, B = source.spectrum()
    kept = B * values.sqrt().to(B.dtype)[:, None]
    if isinstance(source, FlatTailSketch) and len(B) < source.d:  # whose estimate has its tail in the other directions
        tail = max(0.0, source.energy - float(values.sum())) / (source.d - len(B))
        kept = torch.cat([kept, tail**0.5 * (torch.eye(source.d, dtype=B.dtype, device=B.device) - B.T @ B)])
    rows = B.new_zeros(len(kept), target.d)
    rows[:, index.to(B.device)] = kept
    target.observe(rows)
    target.count, target.energy = source.count, source.energy


def carried_anchor(copies: Copies, old: ProtectedParameters, new: ProtectedParameters, anchor: Anchor) -> Copies:
    """The weights that are pulled back to: the old ones, and the present ones of what is new.

    In full where coordinates are to be kept: their directions are known with the new projector only.
    """
    kept = dict(zip(old.names, copies, strict=True))
    found = []
    for name, tensor in zip(new.names, new.tensors, strict=True):
        copy = kept.get(name)
        if copy is not None and copy.shape == tensor.shape and copy.span is None:
            found.append(copy)
            continue
        weights = tensor.detach().clone()
        if copy is not None:
            corner = weights[_corner(copy.shape)]
            moved = corner.clone()
            copy.subtract_from_(moved)
            corner -= moved
        found.append(Copy.of(weights, FULL if anchor.in_span else anchor))
    return Copies(found)
