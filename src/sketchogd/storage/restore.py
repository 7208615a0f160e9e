"""Restore a memory from the state of a protection, as in a file or `state_dict`, checked against the model.

A state consists of plain data, `meta`, and tensors: those of the memory and, if its projector has an anchor, those of
the anchor.
"""

import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..errors import StorageError
from ..memory import REGISTRY, Memory
from ..model.batches import Output
from ..model.parameters import ProtectedParameters, local
from ..optimizer.reference import Copy
from ..projector.base import Anchor
from . import file

ANCHOR = "anchor."
"""Prefix of the names of an anchor's tensors; it is followed by the parameter's name and the suffix of the part."""


def contents(
    meta: Mapping[str, Any], tensors: Mapping[str, Tensor], parameters: ProtectedParameters, output: Output | None
) -> tuple[Memory, list[Copy]]:
    """Return the memory of a state, bound to the given parameters, and its anchor, which may be empty.

    Args:
        meta: Plain data of the state.
        tensors: Tensors of the state.
        parameters: Protected parameters of the model.
        output: The scalar of an example, or None for the memory's default.

    Raises:
        StorageError: the state belongs to another model, is damaged, or has an unknown kind of memory.
    """
    _require_same_parameters(parameters.describe(), meta["parameters"])
    for name, t in tensors.items():
        if not bool(t.isfinite().all()):
            raise StorageError(f"tensor {name!r} of the memory contains NaN or infinity")
    kind = REGISTRY.get(meta["memory"])
    if kind is None:
        raise StorageError(f"the memory is of kind {meta['memory']!r}; known are {', '.join(sorted(REGISTRY))}")
    loaded = kind.from_meta(dict(meta))
    kept = loaded.rule.anchor
    anchor = [] if kept is None else _anchor(tensors, parameters, kept)
    loaded.bind(parameters, output)
    loaded.load_state_dict({"meta": meta, "tensors": tensors})
    return loaded, anchor


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the metadata of a memory file and the shape and bytes of its tensors; needs no model."""
    meta, tensors = file.read(path)
    sizes = {n: {"shape": list(t.shape), "nbytes": t.numel() * t.element_size()} for n, t in tensors.items()}
    return {**meta, "tensors": sizes, "nbytes": sum(size["nbytes"] for size in sizes.values())}


def _anchor(tensors: Mapping[str, Tensor], parameters: ProtectedParameters, anchor: Anchor) -> list[Copy]:
    """Return the anchor of the state as copies of the parameters; an empty list if the state has none."""
    copies = [Copy.like(local(t.detach()), anchor) for t in parameters.tensors]
    parts = [
        (tensors.get(ANCHOR + name + suffix), part)
        for name, copy in zip(parameters.names, copies, strict=True)
        for suffix, part in copy.parts()
    ]
    if all(found is None for found, _ in parts):
        return []
    for found, part in parts:
        if found is None or found.shape != part.shape or found.is_floating_point() != part.is_floating_point():
            raise StorageError("the anchor in the state is not one of these parameters: tensors are missing or differ")
        part.copy_(found)
    return copies


def _require_same_parameters(mine: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    if mine == theirs:
        return
    a = {entry["name"]: tuple(entry["shape"]) for entry in mine}
    b = {entry["name"]: tuple(entry["shape"]) for entry in theirs}
    differences = [f"{name} is missing in the file" for name in a if name not in b]
    differences += [f"{name} is not in the model" for name in b if name not in a]
    differences += [
        f"{name} is {a[name]} in the model, {b[name]} in the file" for name in a if b.get(name, a[name]) != a[name]
    ]
    differences = differences or ["the parameters are the same, but in another order"]
    more = f" (and {len(differences) - 5} more)" if len(differences) > 5 else ""
    raise StorageError(
        "the memory is of another model: " + "; ".join(differences[:5]) + more + ". Build the model as it was when the "
        "memory was saved, and select the same parameters"
    )
