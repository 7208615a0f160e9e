"""What a memory file says about its sketches without the model: shares, ranks, certificates, and advice in words."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sketchogd import theory
from sketchogd.errors import StorageError
from sketchogd.memory.state import left_out, load_sketch, sketch_diagnostics
from sketchogd.sketch import REGISTRY, Sketch


def sketches_of(meta: Mapping[str, Any], tensors: dict[str, Tensor]) -> dict[str, Sketch]:
    """The sketches of a file by name, on the CPU: "sketch" of a gradient memory, "LAYER.inputs", … of a layer memory.

    Raises StorageError for a kind of sketch that is not known here, or a state that does not fit it.
    """
    stored = {"sketch": meta["sketch"]} if "sketch" in meta else meta.get("sketches", {})
    found = {}
    for name, own in stored.items():
        if own["sketch"] not in REGISTRY:
            raise StorageError(f"{name} is of kind {own['sketch']!r}; known are {', '.join(sorted(REGISTRY))}")
        sketch = REGISTRY[own["sketch"]](**own["settings"])
        found[name] = sketch.bind(own["d"], getattr(torch, own["dtype"]))
        load_sketch(sketch, own, tensors, name)
    return found


def diagnoses(sketches: Mapping[str, Sketch]) -> dict[str, dict[str, Any]]:
    """`Protection.diagnostics` of each sketch."""
    return {name: sketch_diagnostics(sketch) for name, sketch in sketches.items()}


def in_words(found: Mapping[str, Any]) -> str:
    """One line on a sketch from its diagnostics.

    >>> in_words({"captured": 0.9, "left_out": 1.0, "energy": 10.0, "stable_rank": 2.5, "rank": 3, "capacity": 0.25})
    'holds 90 % of the energy; leaves out at most 10 %; stable rank 2.5; 3 directions, 25 % of the rank is free'
    """
    words = [f"holds {_percent(found['captured'])} of the energy"]
    if found["left_out"] is not None and found["energy"]:
        words.append(f"leaves out at most {_percent(found['left_out'] / found['energy'])}")
    words.append(f"stable rank {found['stable_rank']:.1f}")
    free = "it grows" if found["capacity"] is None else f"{_percent(found['capacity'])} of the rank is free"
    return "; ".join([*words, f"{found['rank']} directions, {free}"])


def advice(sketch: Sketch) -> theory.Recommendation | None:
    """The sketch to take at the same bytes for gradients like those remembered.

    From the stored values, what they lack being spread over the directions they do not show
    (`theory.completed_spectrum`). None where nothing is remembered, and for sketches without a certificate: the values
    of a gradient sketch add up to all the energy, and do not show what it lacks.
    """
    values, _ = sketch.spectrum()
    if left_out(sketch) is None or not len(values) or not float(values[0]):
        return None
    spectrum = theory.completed_spectrum(values, sketch.energy, min(sketch.count, sketch.d))
    return theory.recommend(spectrum, sketch.nbytes, d=sketch.d)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
