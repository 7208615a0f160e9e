"""Bundles: the runs of one preset on one benchmark as one small JSON file, one line per run.

A run folder takes from 50 kB to several MB, a run in a bundle 1 to 3 kB: config, digest, versions, device, timings,
bytes by kind, results, the accuracy matrix up to its diagonal, and some of the curves and singular values that figures
draw (`python -m tools.pack` in the repository chooses which). A bundle is read as a list of `Run`, so whatever takes a
folder of runs takes bundles too. Of a run that diverged a bundle has the error; runs that failed for other reasons are
not in bundles. `T` tasks.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sketchogd.lab import records
from sketchogd.lab.methods import registry
from sketchogd.lab.records import RecordError, Run, schema
from sketchogd.storage import atomic

FORMAT = 1
HEAD = '{"bundle":'
"""How the file of a bundle begins, by which it is told from other JSON files."""


KEPT_BY = {
    **dict.fromkeys(("ewc", "si", "laplace"), "importance"),
    **dict.fromkeys(("l2", "averaging", "lwf"), "weights"),
    **dict.fromkeys(("gpm-published", "sgp", "owm", "orfit"), "basis"),
}
"""What a baseline keeps, where it is all of one kind."""


def everything(root: str | Path) -> Iterator[tuple[str, Run | str]]:
    """All runs at or below `root`, in folders and in bundles, as (name, run); for what is damaged, the reason."""
    root = Path(root)
    for path in records.find(root):
        name = path.relative_to(root).as_posix()
        try:
            run = records.load(path)
            run.evaluations()
            yield name, run
        except ValueError as error:
            yield name, _reason(error, path)
    for path in find(root):
        name = path.relative_to(root).as_posix() if path != root else path.name
        try:
            found = read(path)
        except ValueError as error:
            yield name, _reason(error, path)
        else:
            yield from ((f"{name}/{run.path.relative_to(path).as_posix()}", run) for run in found)


def _reason(error: ValueError, path: Path) -> str:
    """What an error says, without the folder that the reader gave."""
    return str(error).removeprefix(f"{path}: ").replace(f"{path}/", "")


def find(root: str | Path) -> list[Path]:
    """The paths of all bundles at or below `root`, sorted; other JSON files are ignored."""
    root = Path(root)
    candidates = [root] if root.is_file() else sorted(root.rglob("*.json"))
    found = []
    for path in candidates:
        if path.is_file():
            with contextlib.suppress(OSError), open(path, "rb") as file:
                if file.read(len(HEAD)) == HEAD.encode():
                    found.append(path)
    return found


def read(path: str | Path) -> list[Run]:
    """The runs of a bundle.

    Raises:
        RecordError: the file is damaged or of another format.
    """
    return [_run(Path(path), entry) for entry in read_entries(Path(path))]


def digests(root: str | Path) -> set[str]:
    """The config digests of all runs in bundles at or below `root`; none if there is no such folder."""
    if not Path(root).exists():
        return set()
    return {records.config_digest(entry["config"]) for path in find(root) for entry in read_entries(path)}


def read_entries(path: Path) -> list[dict[str, Any]]:
    """The runs of a bundle as its lines have them, plain values.

    Raises:
        RecordError: the file is damaged or of another format.
    """
    try:
        content = schema.parse(schema.read_text(path))
        if not isinstance(content, dict) or not isinstance(content.get("runs"), list):
            raise RecordError("it must have runs")
        if content.get("bundle") == FORMAT:
            for entry in content["runs"]:
                schema.check_entry(entry)
                if not records.intact(entry):
                    raise RecordError(f"the digest of {entry['name']} is not that of its config")
    except RecordError as error:
        raise RecordError(f"{path}: the bundle is damaged: {error}") from error
    if content.get("bundle") != FORMAT:
        raise RecordError(f"{path}: a bundle of format {content.get('bundle')}; this version reads {FORMAT}")
    entries: list[dict[str, Any]] = content["runs"]
    return entries


def write_entries(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Write a bundle, its runs sorted by name; the file is written whole or not at all."""
    ordered = sorted(entries, key=lambda entry: (entry["name"], entry["digest"]))
    lines = ",\n".join(json.dumps(entry, separators=(",", ":"), allow_nan=False) for entry in ordered)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(path, f'{HEAD}{FORMAT},"runs":[\n{lines}\n]}}\n'.encode())


def totals(record: Mapping[str, Any]) -> dict[str, Any]:
    """The ledger of a run in short: `nbytes`, those of them on the host (`host`), and bytes by kind (`kinds`).

    On the host is the sketch of a method that offloads it; everything else is where the model is.
    """
    ledger = record.get("ledger") or {}
    if "entries" not in ledger:
        return dict(ledger)
    options = (record.get("config") or {}).get("options") or {}
    method = (record.get("config") or {}).get("method", "")
    kinds: dict[str, int] = {}
    host = 0
    for item in ledger["entries"]:
        kind = _kind(item["name"], method)
        kinds[kind] = kinds.get(kind, 0) + item["nbytes"]
        host += item["nbytes"] if options.get("offload") and item["name"].startswith("sketch.") else 0
    return {"nbytes": ledger["nbytes"], "host": host, "kinds": kinds}


def _kind(name: str, method: str) -> str:
    """What a tensor in a ledger is: sketch, basis, test matrix, weights (a copy), examples or importance."""
    parts = name.split(".")
    if registry.keeps_examples(method):
        return "examples"
    if method in KEPT_BY:
        return KEPT_BY[method]
    if parts[0] == "reference":
        return "weights"
    if parts[0] in ("basis", "gram_inverse"):
        return "basis"
    return "test matrix" if any(part in ("omega", "psi") for part in parts) else "sketch"


def _run(path: Path, entry: dict[str, Any]) -> Run:
    if "error" in entry:
        record = {"format": records.FORMAT, "status": "failed", **entry}
        return Run(path / entry["name"], "failed", entry["config"], record, None, None, list, dict)
    T = len(entry["accuracy"])
    matrix = np.full((T, T), np.nan)
    for i, row in enumerate(entry["accuracy"]):
        matrix[i, : len(row)] = [np.nan if value is None else value for value in row]
    initial = np.array(entry["initial"], dtype=float) if "initial" in entry else None
    kept = {key: value for key, value in entry.items() if key not in ("accuracy", "initial", "curve", "spectra")}
    return Run(
        path / entry["name"],
        "finished",
        entry["config"],
        {"format": records.FORMAT, "status": "finished", **kept},
        matrix,
        initial,
        lambda: _evaluations(entry, matrix),
        lambda: {key: np.array(value) for key, value in entry.get("spectra", {}).items()},
    )


def _evaluations(entry: Mapping[str, Any], matrix: np.ndarray) -> list[dict[str, Any]]:
    """The evaluations that the curves of an entry come from; a task without a curve has accuracies after tasks only."""
    curves: dict[str, list[float | None]] = entry.get("curve", {})
    T = len(matrix)
    found = []
    lengths = [len(values) // (T - int(task) + 1) for task, values in curves.items()]
    epochs = min(lengths, default=0)
    for position in range(T * epochs):
        t, epoch = divmod(position, epochs)
        last = epoch + 1 == epochs
        row: list[float | None] = [float(v) if last else None for v in matrix[t, : t + 1]]
        for task, values in curves.items():
            if int(task) <= t + 1:
                row[int(task) - 1] = values[position - (int(task) - 1) * epochs]
        found.append({"event": "evaluation", "task": t, "epoch": epoch + 1, "accuracy": row})
    return found
