"""What memories do with a sketch beside giving it rows: load its state, certify it, and describe it in numbers."""

from typing import Any

from torch import Tensor

from ..errors import StorageError
from ..sketch import AllRows, ProductSketch, SecondMoment, Sketch
from ..theory.bounds import nystrom_error


def load_sketch(sketch: Sketch, meta: dict[str, Any], tensors: dict[str, Tensor], prefix: str) -> None:
    """Give a sketch the part of a memory's state that is its own."""
    own = {k.removeprefix(prefix + "."): t for k, t in tensors.items() if k.startswith(prefix + ".")}
    try:
        sketch.load_state_dict({"meta": meta, "tensors": own})
    except (ValueError, KeyError) as error:
        raise StorageError(f"{prefix}: {error}") from error


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
