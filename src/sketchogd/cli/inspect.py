"""`sketchogd inspect`: what a memory file says without the model: bytes, shares, ranks, certificates, and advice."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from sketchogd import schema, theory
from sketchogd.cli import show
from sketchogd.cli.options import Format, Json, form_of, friendly
from sketchogd.cli.show import Form
from sketchogd.errors import StorageError
from sketchogd.memory.metadata import SKETCH
from sketchogd.memory.state import left_out, load_sketches, own_tensors, sketch_diagnostics, stored_sketch
from sketchogd.privacy.guarantee import described
from sketchogd.sketch import Sketch
from sketchogd.sketch.columns import Whole
from sketchogd.storage import restore


@friendly
def inspect(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A file that Protection.save wrote.")],
    format: Format = Form.table,
    json_: Json = False,
) -> None:
    """What is in a memory file: what it remembers, how well, where the bytes are, and which sketch would be best."""
    form = form_of(format, json_)
    found = restore.describe(path)
    meta, tensors = restore.read(path)
    leading = {
        name: [float(value) for value in tensor[:5]]
        for name, tensor in tensors.items()
        if name.rpartition(".")[2] == "values"
    }
    sketches = sketches_of(meta, tensors)
    diagnoses = {name: sketch_diagnostics(sketch) for name, sketch in sketches.items()}
    recommended = advice(sketches["sketch"]) if "sketch" in meta else None
    plain = None if recommended is None else {k: v for k, v in asdict(recommended).items() if k != "test_matrix"}
    whole = {**found, "leading_values": leading, "diagnostics": diagnoses, "advice": plain}
    if form is Form.table:
        protected = sum(math.prod(entry["shape"]) for entry in found["parameters"])
        show.say(f"memory of {found['memory']}: {found['examples']:,} examples, {protected:,} protected parameters")
        guarantee = described(found)
        if guarantee is not None:
            show.say(f"privacy: {guarantee}")
        show.say(f"settings: {json.dumps(found.get('settings', {}))}")
    rows = [
        {
            "name": name,
            "shape": " × ".join(map(str, entry["shape"])),
            "bytes": entry["nbytes"],
            "leading values": "  ".join(f"{value:.3g}" for value in leading.get(name, [])),
        }
        for name, entry in found["tensors"].items()
    ]
    rows.append({"name": "total", "shape": "", "bytes": found["nbytes"], "leading values": ""})
    columns: show.Columns = {"name": str, "shape": str, "bytes": show.bytes_cell, "leading values": str}
    show.table(str(path), rows, columns, form, whole)
    if form is not Form.table:
        return
    for name, diagnosis in diagnoses.items():
        show.say(f"{name}: {in_words(diagnosis)}")
    if recommended is not None:
        show.say(f"at the same bytes: {recommended.reason}")


def sketches_of(meta: Mapping[str, Any], tensors: dict[str, Tensor]) -> dict[str, Sketch]:
    """The sketches in a file by name, on the CPU: "sketch" of a gradient memory, "LAYER.inputs", … of a layer memory.

    Raises:
        StorageError: A sketch is of an unknown class, or its state does not fit it.
    """
    stored = {"sketch": meta["sketch"]} if "sketch" in meta else meta.get("sketches", {})
    schema.table(SKETCH)(stored, "sketches")
    own = own_tensors(stored, tensors)
    found = {}
    for name, said in stored.items():
        sketch, dtype = stored_sketch(said, name), getattr(torch, said["dtype"])
        try:
            sketch.require_state({"meta": said, "tensors": own[name]}, Whole(said["d"]), dtype)
        except ValueError as error:
            raise StorageError(f"{name}: {error}") from error
        found[name] = sketch.bind(said["d"], dtype)
    load_sketches(found.items(), stored, tensors)
    return found


def in_words(found: Mapping[str, Any]) -> str:
    """One line about a sketch, from its diagnostics.

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
    """The best sketch of the same size for gradients like those remembered.

    Chosen for the spectrum of the stored values, with the energy that they lack spread over the other directions
    (`theory.completed_spectrum`). None if nothing is remembered, and for sketches without a certificate: the values of
    a gradient sketch add up to all the energy, and do not show what it lacks.
    """
    values, _ = sketch.spectrum()
    if left_out(sketch) is None or not len(values) or not float(values[0]):
        return None
    spectrum = theory.completed_spectrum(values, sketch.energy, min(sketch.count, sketch.d))
    return theory.recommend(spectrum, sketch.nbytes, d=sketch.d)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
