"""Bundles: the runs of one preset on one benchmark as one small JSON file, a line a run.

A run folder is some 50 kB to several MB; in a bundle it takes 1 to 3 kB: config, digest, versions, device, timings,
bytes by kind, results, the accuracy matrix up to its diagonal, and what the figures need: for the first seed of table 1
the accuracies of the paper's chosen tasks after each epoch, for `spectra` a few hundred singular values. A bundle is
read as runs again, so whatever takes a folder of runs takes bundles too. Of a run that diverged a bundle has the error,
so that nobody tries again; what failed for other reasons is not in bundles. `T` tasks.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sketchogd.lab import records
from sketchogd.lab.records import RecordError, Run, spectra
from sketchogd.paper import published
from sketchogd.paper.rank_errors import KEYS
from sketchogd.storage import atomic

FORMAT = 1
HEAD = '{"bundle":'
CURVED = ("table1", "curves")
"""Presets whose first seed keeps its curves."""


# ---------------------------------------------------------------- packing


def pack(source: str | Path, out: str | Path) -> dict[Path, tuple[int, int]]:
    """Add the runs below `source` (folders or bundles) that finished or diverged to bundles OUT/PRESET/BENCHMARK.json.

    A finished run replaces one of the same config that is in the bundle already; all others stay. Runs without a preset
    go to OUT/runs. One process at a time.

    Returns:
        For each bundle written, the number of runs packed into it and the number it now has.

    Raises:
        RecordError: a bundle that would be written to is damaged.
    """
    packed: dict[Path, dict[tuple[str, str], dict[str, Any]]] = {}
    for _, run in everything(source):
        if isinstance(run, Run) and ((run.status == "finished" and run.complete) or run.diverged):
            preset, benchmark = run.config.get("preset") or "runs", run.config.get("benchmark", "unnamed")
            packed.setdefault(Path(out) / preset / f"{benchmark}.json", {})[run.identity] = entry_of(run)
    written = {}
    for path, entries in packed.items():
        before = {records.identity(entry["config"]): entry for entry in _read_entries(path)} if path.exists() else {}
        new = {name: entry for name, entry in entries.items() if name not in before or "error" not in entry}
        after = {**before, **new}
        write(path, list(after.values()))
        written[path] = (len(entries), len(after))
    return written


def write(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Write a bundle whole or not at all, its runs sorted by name."""
    ordered = sorted(entries, key=lambda entry: (entry["name"], entry["digest"]))
    lines = ",\n".join(json.dumps(entry, separators=(",", ":"), allow_nan=False) for entry in ordered)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(path, f'{HEAD}{FORMAT},"runs":[\n{lines}\n]}}\n'.encode())


def entry_of(run: Run) -> dict[str, Any]:
    """A run as a line of a bundle."""
    record = run.record
    place = run.path.parts[-2:] if run.path.name.startswith("seed-") else run.path.parts[-1:]
    entry: dict[str, Any] = {
        "name": "/".join(place),
        "digest": record["digest"],
        "config": run.config,
        "versions": {key: value for key, value in (record.get("versions") or {}).items() if key != "platform"},
        "device": record.get("device"),
        "ended": None if record.get("ended") is None else round(record["ended"]),
    }
    if run.diverged:
        return {key: value for key, value in entry.items() if value not in (None, {})} | {"error": record["error"]}
    assert run.accuracy is not None
    entry |= {
        "timings": {key: round(value, 2) for key, value in (record.get("timings") or {}).items()},
        "steps": record.get("steps"),
        "parameters": record.get("parameters"),
        "ledger": totals(record),
        "results": {key: _rounded(value, 6) for key, value in (record.get("results") or {}).items()},
        "accuracy": [[_rounded(value, 4) for value in row[: i + 1]] for i, row in enumerate(run.accuracy)],
    }
    if run.initial is not None:
        entry["initial"] = [_rounded(value, 4) for value in run.initial]
    preset, seed = run.config.get("preset"), run.config.get("seed")
    if preset in CURVED and seed == 0 and (curve := _curve_of(run)):
        entry["curve"] = curve
    if preset == "spectra" and (arrays := run.spectra()):
        entry["spectra"] = _spectra_entry(arrays)
    return {key: value for key, value in entry.items() if value not in (None, {})}


def totals(record: Mapping[str, Any]) -> dict[str, Any]:
    """A run's ledger in short: all bytes, those of them on the host, and bytes by kind.

    The host has the sketch of a method that offloads it; everything else is where the model is.
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
    """What a tensor of a ledger is: sketch, basis, test matrix, weights (a copy), examples or importance."""
    parts = name.split(".")
    if method in published.KEEPS_EXAMPLES:
        return "examples"
    if method in ("ewc", "si"):
        return "importance"
    if parts[0] == "reference":
        return "weights"
    if parts[0] in ("basis", "gram_inverse"):
        return "basis"
    return "test matrix" if any(part in ("omega", "psi") for part in parts) else "sketch"


def _curve_of(run: Run) -> dict[str, list[float | None]]:
    """The chosen tasks' accuracies after each epoch from the first on which they were trained, by task from 1."""
    tasks = [task for task in published.CURVES.get(run.config.get("benchmark", ""), ()) if task <= len(run.accuracy)]  # type: ignore[arg-type]
    curves: dict[str, list[float | None]] = {str(task): [] for task in tasks}
    for event in run.evaluations():
        for task in tasks:
            if event["task"] + 1 >= task:
                curves[str(task)].append(_rounded(event["accuracy"][task - 1], 3))
    return {task: values for task, values in curves.items() if values}


def _spectra_entry(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    if (found := spectra.read(arrays)) is not None:
        few = spectra.thinned(found)
        entry = {"index": few.index.tolist(), "singular_values": [float(f"{value:.5g}") for value in few.values]}
        entry["stable_rank"] = float(f"{few.stable_rank:.6g}")
    errors = {key: [float(f"{value:.5g}") for value in np.ravel(arrays[key])] for key in KEYS if key in arrays}
    return entry | errors


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), digits)


# ---------------------------------------------------------------- reading


def everything(root: str | Path) -> Iterator[tuple[str, Run | str]]:
    """All runs at or below `root` in folders and bundles, with their names; for what cannot be read, the reason."""
    root = Path(root)
    for path in records.find(root):
        name = path.relative_to(root).as_posix()
        try:
            yield name, records.load(path)
        except ValueError as error:
            yield name, str(error).removeprefix(f"{path}: ")
    for path in find(root):
        name = path.relative_to(root).as_posix() if path != root else path.name
        try:
            yield from ((f"{name}/{run.path.relative_to(path).as_posix()}", run) for run in read(path))
        except ValueError as error:
            yield name, str(error).removeprefix(f"{path}: ")


def find(root: str | Path) -> list[Path]:
    """All bundles at or below `root`, sorted; other JSON files are passed over."""
    root = Path(root)
    candidates = [root] if root.is_file() else sorted(root.rglob("*.json"))
    found = []
    for path in candidates:
        with open(path, "rb") as file:
            if file.read(len(HEAD)) == HEAD.encode():
                found.append(path)
    return found


def read(path: str | Path) -> list[Run]:
    """The runs of a bundle.

    Raises:
        RecordError: the file is damaged or of another format.
    """
    return [_run(Path(path), entry) for entry in _read_entries(Path(path))]


def digests(root: str | Path) -> set[str]:
    """The config digests, without presets, of all runs in bundles at or below `root`."""
    if not Path(root).exists():
        return set()
    return {records.config_digest(entry["config"]) for path in find(root) for entry in _read_entries(path)}


def _read_entries(path: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["bundle"] != FORMAT:
            raise RecordError(f"{path}: a bundle of format {content['bundle']}; this version reads {FORMAT}")
        entries: list[dict[str, Any]] = content["runs"]
        for entry in entries:
            if {"name", "digest", "config"} - entry.keys() or not {"accuracy", "error"} & entry.keys():
                raise RecordError(f"{path}: a run lacks its name, digest, config or accuracy")
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path}: the bundle is damaged: {error}") from error
    return entries


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
    """The evaluations that the curves of an entry come from; tasks without a curve have the ends of tasks only."""
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
