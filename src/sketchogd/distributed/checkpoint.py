"""A memory's state in the form that torch.distributed.checkpoint needs, which loads into existing tensors only.

A state has a `factor` and `values` only while a basis is stored in place of a sketch, with sizes that depend on its
rank, and an anchor (the weights at the last refresh) only after a refresh. In a checkpoint these tensors always exist,
padded with zeros; `meta["padded"]` holds their real shapes. Tensors sharded by columns, and anchors of parameters that
are split by rows, become DTensors, so that a state saved by R processes can be loaded by any other number of processes.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard

from ..errors import ProtectionError, StorageError
from ..memory import Memory
from ..model.parameters import ProtectedParameters, local
from ..optimizer.reference import Copy
from ..sketch.columns import Whole
from ..storage.restore import ANCHOR
from .group import Group
from .shards import FlatShard, cut


def padded(
    memory: Memory, meta: dict[str, Any], tensors: dict[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the state with every tensor that it can have, padded to its largest shape.

    Raises ProtectionError for sketches that grow.
    """
    shapes: dict[str, list[int] | None] = {}
    filled = dict(tensors)
    for name, sketch in memory.sketches():
        if sketch.rank_limit is None:
            raise ProtectionError(
                f"{type(sketch).__name__} grows, and torch.distributed.checkpoint loads into tensors of known size; "
                "use protection.save(path), or a sketch of fixed size"
            )
        m = len(tensors.get(f"{name}.rows", tensors.get(f"{name}.matrix", ())))
        largest = {"factor": (m, m), "values": (m,)} if f"{name}.rows" in tensors else {"values": (m,)}
        for part, shape in largest.items():
            key = f"{name}.{part}"
            found = tensors.get(key)
            shapes[key] = None if found is None else list(found.shape)
            dtype = torch.float64 if part == "values" else sketch.dtype
            filled[key] = torch.zeros(shape, dtype=dtype, device=sketch.device)
            if found is not None:
                filled[key][tuple(slice(n) for n in found.shape)] = found
    anchor = memory.rule.anchor
    if anchor is not None:
        split, parameters = with_rows(memory.parameters), memory.parameters
        spans = memory.spans(parameters)
        for name, parameter, span in zip(parameters.names, parameters.tensors, spans, strict=True):
            for suffix, empty in Copy.like(local(parameter.detach()), anchor, span).parts():
                key = f"{ANCHOR}{name}{suffix}"
                found = tensors.get(key)
                filled[key] = torch.zeros_like(empty, memory_format=torch.contiguous_format)
                shapes[key] = None
                if found is not None:
                    filled[key][tuple(slice(n) for n in found.shape)] = found
                    rows = parameters.shapes[split[key]][:1] if key in split else found.shape[:1]
                    shapes[key] = [*rows, *found.shape[1:]]
    return {**meta, "padded": shapes}, filled


def has_columns(parameters: ProtectedParameters, name: str) -> bool:
    """Return whether a tensor of the state is sharded by columns: the sketch of all gradients."""
    return not isinstance(parameters.columns, Whole) and name == "sketch.rows"


def with_rows(parameters: ProtectedParameters) -> dict[str, int]:
    """Return the names of tensors of the state that are split as the rows of parameters are, with their indices."""
    found = {}
    for i, (name, shape) in enumerate(zip(parameters.names, parameters.shapes, strict=True)):
        if parameters.split:
            found[ANCHOR + name] = i
        if parameters.split and len(shape) > 1:  # a vector has one scale
            found[f"{ANCHOR}{name}.scales"] = i
    return found


def as_dtensors(parameters: ProtectedParameters, tensors: dict[str, Tensor], group: Group) -> dict[str, Tensor]:
    """Replace sharded rows (m, width) by DTensors: one (m, p), or one (m, n, …) per parameter if those are sharded."""
    out: dict[str, Tensor] = {}
    split = with_rows(parameters)
    for name, t in tensors.items():
        if name in split:
            own = parameters.tensors[split[name]]
            assert isinstance(own, DTensor)
            out[name] = _split(t.contiguous(), own, (own.shape[0], *t.shape[1:]), 0)
        elif not has_columns(parameters, name):
            out[name] = t
        elif isinstance(parameters.columns, FlatShard):
            mesh = DeviceMesh.from_group(group.process_group, t.device.type)
            out[name] = _placed(t, mesh, [Shard(1)], (len(t), parameters.p))
        else:
            for key, (parameter, place), shape in zip(
                parameters.names, parameters.slices(), parameters.shapes, strict=True
            ):
                assert isinstance(parameter, DTensor)
                piece = t[:, place].reshape(len(t), *local(parameter.detach()).shape)
                out[f"{name}/{key}"] = _split(piece, parameter, (len(t), *shape), 1)
    return out


def _split(t: Tensor, parameter: DTensor, shape: tuple[int, ...], dim: int) -> DTensor:
    """A tensor that is split along a dimension as a parameter is along its first one."""
    placements = [Shard(dim) if isinstance(each, Shard) else each for each in parameter.placements]
    return _placed(t, parameter.device_mesh, placements, shape)


def _placed(t: Tensor, mesh: DeviceMesh, placements: list[Placement], shape: tuple[int, ...]) -> DTensor:
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(t, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)


def as_local(parameters: ProtectedParameters, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo `as_dtensors`: reduce what is split in a state, DTensors or whole, to this process's part."""
    out: dict[str, Tensor] = {}
    pieces: dict[str, dict[str, Tensor]] = {}
    split = with_rows(parameters)
    for key, t in tensors.items():
        name, _, parameter = key.partition("/")
        if key in split and local(t) is t and t.shape[:1] == parameters.shapes[split[key]][:1]:
            out[key] = t[parameters.rows(split[key])]
        elif parameter and has_columns(parameters, name):
            pieces.setdefault(name, {})[parameter] = local(t).flatten(1)
        elif has_columns(parameters, name) and local(t) is t and t.shape[1:] == (parameters.p,):
            out[name] = cut(parameters.columns, t)
        else:
            out[name] = local(t)
    for name, parts in pieces.items():
        if parts.keys() != set(parameters.names):
            raise StorageError(f"the state is damaged: {name!r} has rows for other parameters than the model's")
        out[name] = torch.cat([parts[parameter] for parameter in parameters.names], dim=1)
    return out
