"""Restore a memory from the state of a protection, as in a file or `state_dict`, checked against the model.

A state consists of plain data, `meta`, and tensors: those of the memory and, if its projector has an anchor, those of
the anchor. Everything is checked before anything is allocated, and everything is built before anything is replaced.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import schema
from ..errors import StorageError
from ..memory import REGISTRY, Memory
from ..model.batches import Output
from ..model.parameters import ProtectedParameters, local
from ..optimizer.reference import Copies, Copy
from ..privacy.guarantee import FORM as GUARANTEE
from ..projector.base import Projector
from . import file

ANCHOR = "anchor."
"""Prefix of the names of an anchor's tensors; it is followed by the parameter's name and the suffix of the part."""

TRAVELLED = (1.0, 1000.0)
"""Distances at which the projector of a file is tried: step sizes of one step, and of many."""

FAR = 1e8
"""How many times as large as the weights an anchor may be."""

LARGEST_SHARE = 2.0
"""How much of an update a projector may take: no more than all of it, which a product of two can exceed a little."""


def _pair(value: Any, where: str) -> None:
    schema.many(schema.text)(value, where)
    if len(value) != 2:
        raise schema.wrong(value, where, "two texts")


_BUFFERS = schema.record(
    {
        "steps": schema.whole(),
        "handover": schema.whole(),
        "ended": schema.flag,
        "held": schema.many(schema.text),
        "digests": schema.many(_pair),
        "moved": schema.many(schema.text),
    }
)

_METER = schema.record(
    {
        "leak": schema.number(0.0),
        "moved": schema.number(0.0),
        "projections": schema.whole(1),
        "twice": schema.flag,
    }
)

_META = schema.record(
    {
        "format": schema.whole(1),
        "parameters": schema.many(schema.record({"name": schema.text, "shape": schema.many(schema.whole())})),
        "stale": schema.flag,
        "remembered": schema.flag,
        "memory": schema.text,
        "examples": schema.whole(),
    },
    {
        "padded": schema.table(schema.maybe(schema.many(schema.whole()))),
        "buffers": _BUFFERS,
        "meter": _METER,
        "weights": schema.many(schema.number()),
        "privacy": GUARANTEE,
        "lost": schema.number(0.0),
    },
    more=True,
)


@dataclass(frozen=True)
class Restored:
    """What a state holds, ready to be used.

    Args:
        memory: the memory, bound to the parameters.
        projector: its projector; None where nothing was remembered, or more observed since.
        anchor: the weights that are pulled back to; empty where there are none.
        stale: whether more was observed than any projector knows.
    """

    memory: Memory
    projector: Projector | None
    anchor: Copies
    stale: bool


def require_meta(meta: Any) -> None:
    """Raise StorageError unless the plain data of a state has the form that all memories have."""
    _META(meta, schema.TOP)
    if meta["examples"] and not (meta["stale"] or meta["remembered"]):
        raise StorageError("the metadata says that examples were observed but neither remembered nor still to be")
    if meta["memory"] not in REGISTRY:
        raise StorageError(f"the memory is of kind {meta['memory']!a}; known are {', '.join(sorted(REGISTRY))}")


def unpadded(meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Undo `distributed.checkpoint.padded`; other states are returned unchanged."""
    kept = dict(tensors)
    for key, shape in meta.get("padded", {}).items():
        t = kept.get(key)
        if t is None or (shape is not None and (len(shape) != t.ndim or any(map(int.__gt__, shape, t.shape)))):
            raise StorageError(f"the state is damaged: its padded tensor {key!r} is missing or smaller than it says")
        if shape is None:
            del kept[key]
        else:
            kept[key] = t[tuple(slice(n) for n in shape)].clone()
    return {key: value for key, value in meta.items() if key != "padded"}, kept


def contents(
    meta: Mapping[str, Any], tensors: Mapping[str, Tensor], parameters: ProtectedParameters, output: Output | None
) -> Restored:
    """Return what a state holds, bound to the given parameters. Nothing else is changed.

    Args:
        meta: Plain data of the state.
        tensors: Tensors of the state.
        parameters: Protected parameters of the model.
        output: The scalar of an example, or None for the memory's default.

    Raises:
        StorageError: the state belongs to another model, is damaged, or has an unknown kind of memory.
    """
    require_meta(meta)
    _require_same_parameters(parameters.describe(), meta["parameters"])
    planned = REGISTRY[meta["memory"]].from_meta(dict(meta))
    own = planned.require_state(parameters, meta, tensors)

    def built() -> Memory:
        memory = REGISTRY[meta["memory"]].from_meta(dict(meta))
        memory.bind(parameters, output)
        memory.load_state_dict({"meta": dict(meta), "tensors": dict(tensors)})
        return memory

    memory = built()
    projector = tried(memory) if meta["examples"] or meta["remembered"] else None
    anchor = _anchor({name: t for name, t in tensors.items() if name not in own}, parameters, memory, projector)
    if projector is None or meta["remembered"]:
        return Restored(memory, projector, anchor, stale=False)
    del memory, projector  # it was made to see that it can be made; the sketches go on from how they were stored
    return Restored(built(), None, anchor, stale=True)


def copied(memory: Memory, parameters: ProtectedParameters, output: Output | None) -> Memory:
    """A copy of a bound memory, to be changed in its place until nothing can fail any more."""
    state = memory.state_dict()
    copy = type(memory).from_meta(state["meta"])
    copy.bind(parameters, output)
    copy.load_state_dict(state)
    return copy


def tried(memory: Memory) -> Projector:
    """The projector of a memory, tried on a random update, of which it may remove all but add nothing.

    Raises:
        StorageError: there is none, or it would add to updates or make them infinite.
    """
    parameters = memory.parameters
    generator = torch.Generator().manual_seed(0)
    try:
        projector = memory.projector()
        if not projector.empty:
            v = torch.randn(parameters.width, generator=generator).to(parameters.device, parameters.dtype)
            shares = [projector.leak(v, travelled) for travelled in TRAVELLED]
            if not all(share < LARGEST_SHARE for share in shares):
                raise StorageError(
                    f"with the contents of this memory updates of norm 1 would change by {max(shares):g}: its numbers "
                    "are damaged. Restore it from a backup"
                )
    except (torch.linalg.LinAlgError, ArithmeticError) as error:
        raise StorageError(
            f"no basis can be computed from the contents of this memory ({error}): its numbers are damaged. Restore "
            "it from a backup"
        ) from error
    return projector


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return (metadata, tensors) of a file of one of the registered memories, whose form is checked without a model.

    Raises:
        StorageError: as `file.read`, or the metadata has another form.
    """
    meta, tensors = file.read(path)
    require_meta(meta)
    REGISTRY[meta["memory"]].from_meta(meta)
    return meta, tensors


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the metadata of a memory file and the shape and bytes of its tensors; needs no model."""
    meta, tensors = read(path)
    sizes = {n: {"shape": list(t.shape), "nbytes": t.numel() * t.element_size()} for n, t in tensors.items()}
    return {**meta, "tensors": sizes, "nbytes": sum(size["nbytes"] for size in sizes.values())}


def _anchor(
    tensors: Mapping[str, Tensor], parameters: ProtectedParameters, memory: Memory, projector: Projector | None
) -> Copies:
    """Return the anchor of the state as copies of the parameters; an empty list if the state has none.

    `tensors` are those that do not belong to the memory; the projector has the directions of coordinates.
    """
    if not tensors:
        return Copies([])
    anchor, weights = memory.rule.anchor, [local(t.detach()) for t in parameters.tensors]
    spans = [None if projector is None else projector.span(i) for i in range(len(weights))]
    pairs = zip(weights, spans, strict=True)
    copies = Copies([] if anchor is None else [Copy.like(t, anchor, span) for t, span in pairs], parameters)
    parts = {
        ANCHOR + name + suffix: part
        for name, copy in zip(parameters.names, copies, strict=False)
        for suffix, part in copy.parts()
    }
    if parts.keys() != tensors.keys():
        odd = sorted(parts.keys() ^ tensors.keys())[0]
        what = "is missing" if odd in parts else "does not belong to such a memory"
        raise StorageError(f"the anchor in the state is not one of these parameters: tensor {odd!a} {what}")
    for name, part in parts.items():
        found = tensors[name]
        if found.shape != part.shape or found.is_floating_point() != part.is_floating_point() or found.is_complex():
            raise StorageError(
                f"the anchor in the state is not one of these parameters: {name} has shape {tuple(found.shape)} of "
                f"{found.dtype}, expected {tuple(part.shape)} of {part.dtype}"
            )
        part.copy_(found)
        if not bool(part.isfinite().all()):
            raise StorageError(f"tensor {name!r} of the anchor contains NaN or infinity")
    _require_near(copies, weights, parameters.names)
    return copies


def _require_near(copies: Sequence[Copy], weights: Sequence[Tensor], names: Sequence[str]) -> None:
    """Raise StorageError for an anchor that no weights can have been: being pulled there would overflow."""
    for copy, t, name in zip(copies, weights, names, strict=True):
        if not t.numel():
            continue
        largest, usual = float(copy.tensor().abs().max()), max(1.0, float(t.abs().max()))
        if largest > FAR * usual:
            raise StorageError(
                f"the anchor of {name!r} has a weight of {largest:g}, where those of the model are at most {usual:g}: "
                "the file is damaged, or the model has not been trained yet. Load the weights before the memory"
            )


def _require_same_parameters(mine: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    if mine == theirs:
        return
    a = {entry["name"]: tuple(entry["shape"]) for entry in mine}
    b = {entry["name"]: tuple(entry["shape"]) for entry in theirs}
    differences = [f"{name} is missing in the file" for name in a if name not in b]
    differences += [f"{_shown(name)} is not in the model" for name in b if name not in a]
    differences += [
        f"{name} is {a[name]} in the model, {b[name]} in the file" for name in a if b.get(name, a[name]) != a[name]
    ]
    differences = differences or ["the parameters are the same, but in another order"]
    more = f" (and {len(differences) - 5} more)" if len(differences) > 5 else ""
    raise StorageError(
        "the memory is of another model: " + "; ".join(differences[:5]) + more + ". Build the model as it was when the "
        "memory was saved, and select the same parameters"
    )


def _shown(name: str) -> str:
    """A name from a file, which may be any text."""
    return name if name.isprintable() and len(name) <= 200 else ascii(name)[:200]
