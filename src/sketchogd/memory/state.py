"""What memories do with sketches beside giving them rows: check and load states, certify, describe in numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import schema
from ..errors import StorageError
from ..model.parameters import ProtectedParameters
from ..sketch import REGISTRY, AllRows, ProductSketch, SecondMoment, Sketch
from ..sketch.columns import Columns
from ..theory.bounds import nystrom_error
from .metadata import SKETCH


@dataclass(frozen=True)
class Planned:
    """A sketch that a memory will have: its name in files, the unbound sketch, and the columns of its rows."""

    name: str
    sketch: Sketch
    columns: Columns


def stored_sketch(meta: Any, where: str) -> Sketch:
    """The unbound sketch that a file describes.

    Raises:
        StorageError: it is of an unknown kind, or its settings are none that it can have.
    """
    SKETCH(meta, where)
    kind = REGISTRY.get(meta["sketch"])
    if kind is None:
        raise StorageError(f"{where} is of kind {meta['sketch']!a}; known are {', '.join(sorted(REGISTRY))}")
    settings = kind.stored_settings
    (schema.table(schema.anything) if settings is None else schema.record(settings))(
        meta["settings"], f"{where}.settings"
    )
    try:
        return kind(**meta["settings"])
    except (TypeError, ValueError) as error:
        raise StorageError(f"{where}.settings: {error}") from error


def own_tensors(names: Iterable[str], tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The tensors of each sketch by their names in it, in one pass over all tensors; others are left out.

    A sketch's name is the longest one that a tensor's name begins with.
    """
    found: dict[str, dict[str, Tensor]] = {name: {} for name in names}
    for key, t in tensors.items():
        name = key.rpartition(".")[0]
        while name and name not in found:
            name = name.rpartition(".")[0]
        if name:
            found[name][key[len(name) + 1 :]] = t
    return found


def require_sketches(
    planned: Sequence[Planned], metas: Mapping[str, Any], tensors: Mapping[str, Tensor], dtype: torch.dtype
) -> set[str]:
    """Raise StorageError unless a state has exactly these sketches; returns the names of their tensors.

    Nothing is allocated, so that a file cannot ask for more memory than its own tensors take.

    Args:
        planned: the sketches that the memory will have.
        metas: what the state says of each.
        tensors: all tensors of the state.
        dtype: that of the sketches.
    """
    names = [each.name for each in planned]
    schema.table(SKETCH)(metas, "sketches")
    if list(metas) != names:
        differing = [*(set(names) - set(metas)), *(set(metas) - set(names))]
        what = f"sketch {differing[0]!a} is in one of them only" if differing else "their order differs"
        raise StorageError(
            f"the state has {len(metas)} sketches and a memory with these settings of this model {len(names)}: {what}. "
            "Build the model as it was when the memory was saved"
        )
    own = own_tensors(names, tensors)
    for each in planned:
        try:
            each.sketch.require_state({"meta": metas[each.name], "tensors": own[each.name]}, each.columns, dtype)
        except ValueError as error:
            raise StorageError(f"{each.name}: {error}") from error
    return {f"{name}.{part}" for name, parts in own.items() for part in parts}


def load_sketches(
    sketches: Iterable[tuple[str, Sketch]], metas: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Give each sketch the part of a memory's state that is its own."""
    sketches = list(sketches)
    own = own_tensors([name for name, _ in sketches], tensors)
    for name, sketch in sketches:
        try:
            sketch.load_state_dict({"meta": metas[name], "tensors": own[name]})
        except ValueError as error:
            raise StorageError(f"{name}: {error}") from error


def seen_in(sketches: Sequence[Sketch], parameters: ProtectedParameters) -> list[bool]:
    """For each parameter whether anything observed depends on it: whether it has columns that are not zero.

    Where sketches do not tell, because they are split over processes or keep no rows, all count as seen.

    Args:
        sketches: of the gradients' columns, one after the other.
        parameters: whose gradients they are.
    """
    columns = [found for sketch in sketches if (found := _seen_columns(sketch)) is not None]
    if len(columns) < len(sketches) or sum(map(len, columns)) != parameters.p:
        return [any(sketch.count > 0 for sketch in sketches)] * len(parameters)
    seen = torch.cat([found.to(parameters.device) for found in columns])
    return [bool(seen[place].any()) for place in parameters.places]


def _seen_columns(sketch: Sketch) -> Tensor | None:
    held = sketch.tensors()
    rows = held.get("rows", held.get("matrix"))
    if rows is None or rows.ndim != 2 or not sketch.count:
        return None
    values = held.get("values")
    norms = torch.linalg.vector_norm(rows if values is None else rows[: len(values)], dim=0)
    return norms > 1e-10 * norms.max()  # eigenvectors are zero but for rounding


def left_out(sketch: Sketch) -> float | None:
    """Tr(M − M̂), by `theory.nystrom_error`, for sketches whose estimate has M̂ <= M; None for others.

    It bounds E_G(B), what the basis leaves out of the rows. Product sketches have it (Nyström), and moments and all
    rows, which leave out rounding only. The values of other sketches may overrate a direction.
    """
    if not isinstance(sketch, (ProductSketch, SecondMoment, AllRows)):
        return None
    return nystrom_error(sketch.spectrum()[0], sketch.energy)


def sketch_diagnostics(sketch: Sketch) -> dict[str, Any]:
    """Rank, captured energy, leading values and stable rank, estimated from the sketch itself.

    `capacity`: 1 − rank / the most the sketch can have, 0 when new directions must share the place of old ones; None
    for sketches that grow. `left_out`: at most so much energy lies outside the basis; None where nothing is certain.
    """
    values, _ = sketch.spectrum()
    total, top = float(values.sum()), float(values[0]) if len(values) else 0.0
    return {
        "sketch": repr(sketch),
        "rows": sketch.count,
        "rank": len(values),
        "capacity": None if sketch.rank_limit is None else 1.0 - len(values) / sketch.rank_limit,
        "energy": sketch.energy,
        "captured": min(1.0, total / sketch.energy) if sketch.energy else 0.0,
        "left_out": left_out(sketch),
        "stable_rank": sketch.energy / top if top else 0.0,
        "values": [float(value) for value in values[:64]],
    }
