"""`sketchogd merge`: several memory files of one model become one that protects what each of them remembers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor

from sketchogd import storage
from sketchogd.cli import show
from sketchogd.cli.inspect import sketches_of
from sketchogd.cli.options import Json, friendly
from sketchogd.errors import StorageError
from sketchogd.privacy import Guarantee
from sketchogd.storage import restore

_NUMBERS: dict[str, Callable[[int, int], int]] = {"tasks": int.__add__, "logits": max}  # one may be 0
"""Other numbers that a layer memory counts, and how two of them are merged."""

State = tuple[dict[str, Any], dict[str, Tensor]]


@friendly
def merge(
    files: Annotated[list[Path], typer.Argument(metavar="FILES", help="Two or more files that Protection.save wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")],
    json_: Json = False,
) -> None:
    """Merge memories of one model that were trained apart into one that protects what each remembers.

    Their settings must be equal, and their seeds too, except for SketchOGD-1, whose seeds must differ.
    """
    if len(files) < 2:
        raise ValueError("give at least two files to merge")
    meta, tensors = merged([(str(path), restore.read(path)) for path in files])
    storage.write(output, meta, tensors)
    if json_:
        show.as_json({"output": str(output), "memory": meta["memory"], "examples": meta["examples"]})
    else:
        show.say(f"{output}: memory of {meta['memory']}, {meta['examples']:,} examples of {len(files)} files")


def merged(named: Sequence[tuple[str, State]]) -> State:
    """The state of a memory that observed what all of these observed, computed without the model.

    Anchors (the weights of each at its last refresh) are left out: the anchor will be the weights it is loaded on.

    Raises:
        StorageError: memories cannot be merged; it names the files and the reason.
    """
    (first, (meta, tensors)), *others = named
    sketches = sketches_of(meta, tensors)
    examples, remembered, stale = meta["examples"], meta["remembered"], meta["stale"]
    counts = {name: t.clone() for name, t in tensors.items() if _is_counts(name, sketches)}
    for name, (other, held) in others:
        guarantee = _merged_guarantee(first, Guarantee.of(meta), name, Guarantee.of(other))
        _require_same(first, meta, name, other)
        theirs = sketches_of(other, held)
        try:
            for key, sketch in sketches.items():
                sketch.merge(theirs[key])
        except ValueError as error:
            raise StorageError(f"{name} cannot be merged with {first}: {error}") from error
        for key in counts:
            counts[key] += held[key]
        examples += other["examples"]
        for key, merge_two in _NUMBERS.items():
            if key in meta:
                meta = {**meta, key: merge_two(meta[key], other[key])}
        meta = meta if guarantee is None else {**meta, "privacy": guarantee.meta()}
        remembered, stale = remembered or other["remembered"], stale or other["stale"]
    states = {key: sketch.state_dict() for key, sketch in sketches.items()}
    found = {f"{key}.{part}": t for key, state in states.items() for part, t in state["tensors"].items()}
    of_sketches: dict[str, Any] = {key: state["meta"] for key, state in states.items()}
    whole = {**meta, "examples": examples, "remembered": remembered, "stale": stale}
    whole.pop("weights", None)  # each was saved beside weights of its own
    whole.pop("lost", None)  # and counts from an anchor of its own
    whole |= {"sketch": of_sketches["sketch"]} if "sketch" in meta else {"sketches": of_sketches}
    return whole, {**found, **counts}


def _merged_guarantee(first: str, mine: Guarantee | None, name: str, theirs: Guarantee | None) -> Guarantee | None:
    if mine is None and theirs is None:
        return None
    if mine is None or theirs is None:
        raise StorageError(
            f"{name} cannot be merged with {first}: {first if theirs is None else name} has a privacy guarantee, the "
            "other one has none, and together they would have none"
        )
    try:
        return mine.composed(theirs)
    except ValueError as error:
        raise StorageError(f"{name} cannot be merged with {first}: {error}") from error


def _is_counts(name: str, sketches: Mapping[str, Any]) -> bool:
    """Whether a tensor is one that is simply added up and belongs to no sketch, such as an embedding's token counts."""
    return name.rpartition(".")[2] in ("counts", "spread") and name.rpartition(".")[0] not in sketches


def _require_same(first: str, mine: Mapping[str, Any], name: str, theirs: Mapping[str, Any]) -> None:
    for key, what in (("memory", "kinds of memory"), ("parameters", "models"), ("settings", "settings")):
        if mine[key] != theirs[key]:
            shown = "" if key == "parameters" else f": {theirs[key]} and {mine[key]}"
            raise StorageError(f"{name} cannot be merged with {first}: they are of different {what}{shown}")
    if mine.get("logits") and theirs.get("logits") and mine["logits"] != theirs["logits"]:
        raise StorageError(
            f"{name} cannot be merged with {first} without the model: their examples have {theirs['logits']} and "
            f"{mine['logits']} logits. Load one of them in Python and call protection.merge(file)"
        )
