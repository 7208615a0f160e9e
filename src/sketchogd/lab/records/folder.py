"""A run is a folder; `plan` says which runs of a grid are still to do.

    run.json                 config, status, versions, device, timings, ledger, results
    accuracy.npz             matrix (T × T), NaN where not yet measured, and the initial row (T)
    events.jsonl             one JSON object per line, in the order in which things happened
    checkpoint.safetensors   state from which an interrupted run is resumed; removed when it finishes

Every file is written whole or not at all, except events.jsonl, which is appended to: a line cut off by a kill is
dropped when the run is resumed. A process holds a lock on the run it works on.
"""

import contextlib
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sketchogd import __version__
from sketchogd.lab.data.fileformats import DataError, read_npz
from sketchogd.lab.records import checkpoint, schema
from sketchogd.lab.records.digests import config_digest, identity, intact
from sketchogd.lab.records.lock import is_locked, try_lock
from sketchogd.lab.records.schema import RecordError
from sketchogd.storage import atomic

FORMAT = 1
LOCK = ".lock"


class State(Enum):
    """Where a run of a grid stands."""

    MISSING = "missing"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    FINISHED = "finished"
    DIFFERENT = "different"


@dataclass(frozen=True)
class Run:
    """The record of one run, from a folder (`load`) or from a bundle (`bundles.read`).

    Args:
        path: the folder; for a run of a bundle, the bundle's path followed by the run's name.
        status: "running", "finished" or "failed".
        config: the config as `RunConfig.record` gives it.
        record: everything in run.json.
        accuracy: the accuracy matrix (T × T), None if none was written.
        initial: accuracies before training (T,), None if they were not measured.
        evaluations: reads the accuracies measured during training, one dict each with task, epoch and accuracy.
        spectra: reads the arrays of spectra.npz, empty without one.
    """

    path: Path
    status: str
    config: dict[str, Any]
    record: dict[str, Any]
    accuracy: np.ndarray | None
    initial: np.ndarray | None
    evaluations: Callable[[], list[dict[str, Any]]]
    spectra: Callable[[], dict[str, np.ndarray]]

    @property
    def identity(self) -> tuple[str, str]:
        """See `identity`."""
        return identity(self.config)

    @property
    def complete(self) -> bool:
        """Whether the accuracy matrix is there, square, and known up to its diagonal."""
        A = self.accuracy
        if A is None or A.ndim != 2 or A.shape[0] != A.shape[1] or not len(A):
            return False
        return bool(np.isfinite(A[np.tril_indices(len(A))]).all())

    @property
    def diverged(self) -> bool:
        """Whether the run ended with a loss that is not finite; repeating it would end the same way."""
        return self.status == "failed" and (self.record.get("error") or {}).get("type") == "FloatingPointError"


def environment(device: str | torch.device = "cpu") -> dict[str, Any]:
    """What a run's numbers may depend on besides its config: versions, machine, device and threads."""
    chosen = torch.device(device)
    name = torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else platform.processor() or platform.machine()
    return {
        "versions": {
            "sketchogd": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "platform": platform.platform(),
        },
        "device": {"kind": chosen.type, "name": name, "threads": torch.get_num_threads(), "cpus": os.cpu_count()},
    }


class RunFolder:
    """Writes one run, which `load` reads again; nothing is kept in memory."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Lock the run while working on it; files that a killed process left half-written are removed first.

        Raises:
            RecordError: another process holds it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / LOCK, "a") as lock:
            # Another process that only asks for the state holds the lock for a moment: try a few times.
            if not try_lock(lock.fileno(), attempts=5):
                raise RecordError(f"{self.path}: another process is working on this run")
            atomic.remove_leftovers(self.path)
            yield

    def start(self, config: Mapping[str, Any], device: str | torch.device = "cpu") -> None:
        """Start the run afresh: status "running"; earlier accuracies, events and checkpoints are removed."""
        self.path.mkdir(parents=True, exist_ok=True)
        for name in ("accuracy.npz", "events.jsonl", "checkpoint.safetensors"):
            (self.path / name).unlink(missing_ok=True)
        begun = {"format": FORMAT, "status": "running", "config": dict(config), "digest": config_digest(config)}
        self._write({**begun, **environment(device), "started": time.time()})

    def update(self, **fields: Any) -> None:
        """Add or replace fields of run.json, such as timings, ledger or results."""
        self._write({**_read_json(self.path), **fields})

    def finish(self, **fields: Any) -> None:
        """Mark the run finished, with its last fields, and remove its checkpoint."""
        self.update(status="finished", ended=time.time(), **fields)
        (self.path / "checkpoint.safetensors").unlink(missing_ok=True)

    def fail(self, error: BaseException) -> None:
        """Mark the run failed, with the error."""
        self.update(status="failed", ended=time.time(), error={"type": type(error).__name__, "message": str(error)})

    def save_accuracy(self, matrix: np.ndarray, initial: np.ndarray | None = None) -> None:
        """Write the accuracy matrix (T × T; NaN where not yet measured) and the accuracies before training (T)."""
        matrix = np.asarray(matrix, dtype=np.float64)
        start = np.full(len(matrix), np.nan) if initial is None else np.asarray(initial, dtype=np.float64)
        with atomic.replacing(self.path / "accuracy.npz") as temporary, open(temporary, "wb") as file:
            np.savez(file, matrix=matrix, initial=start)

    def append(self, event: Mapping[str, Any]) -> None:
        """Append one event as a line of JSON."""
        with open(self.path / "events.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(_standard(event), allow_nan=False) + "\n")

    def events(self) -> list[dict[str, Any]]:
        """All events, in order; a last line that was cut off by a kill is left out. RecordError if they are damaged."""
        path = self.path / "events.jsonl"
        with _of(self.path, path.name):
            text = schema.read_text(path) if path.exists() else ""
            events = [schema.parse(line) for line in text[: text.rfind("\n") + 1].splitlines()]
            if not all(isinstance(event, dict) for event in events):
                raise RecordError("an event must be an object")
        return events

    def checkpoint(self, state: Any) -> None:
        """Write the state to resume from (a tree for `checkpoint.save`), with the number of events so far."""
        tree = {"events": len(self.events()), "state": state}
        checkpoint.save(self.path / "checkpoint.safetensors", tree)

    def resume(self) -> Any:
        """The state of the last checkpoint, or None; later events are dropped, as they will happen again."""
        path = self.path / "checkpoint.safetensors"
        if not path.exists():
            return None
        tree = checkpoint.load(path)
        kept = self.events()[: tree["events"]]
        lines = "".join(json.dumps(event) + "\n" for event in kept)
        atomic.write_bytes(self.path / "events.jsonl", lines.encode())
        return tree["state"]

    def _write(self, record: Mapping[str, Any]) -> None:
        plain = _standard(record)
        try:
            schema.check_config(plain["config"])
            schema.check_fields(plain)
        except RecordError as error:
            raise RecordError(f"{self.path}: this cannot be recorded: {error}") from error
        text = json.dumps(plain, indent=2, allow_nan=False) + "\n"
        atomic.write_bytes(self.path / "run.json", text.encode())


def load(path: str | Path) -> Run:
    """The run in the folder `path`.

    Raises:
        RecordError: run.json is missing, damaged (`schema`) or of another format, or accuracies are not numbers.
        DataError: accuracy.npz is damaged.
    """
    folder = Path(path)
    record = _read_json(folder)
    matrix = initial = None
    if (folder / "accuracy.npz").exists():
        arrays = read_npz(folder / "accuracy.npz", ("matrix", "initial"), limit=schema.FILE_BYTES)
        matrix, initial = (arrays[key].astype(np.float64) for key in ("matrix", "initial"))
        with _of(folder, "accuracy.npz"):
            schema.check_accuracy(matrix, initial)
        initial = None if np.isnan(initial).all() else initial
    return Run(
        folder,
        record["status"],
        record["config"],
        record,
        matrix,
        initial,
        lambda: _evaluations(folder, 0 if matrix is None else len(matrix)),
        lambda: _read_spectra(folder / "spectra.npz"),
    )


def find(root: str | Path) -> list[Path]:
    """The run folders at or below `root`, sorted."""
    return sorted(path.parent for path in Path(root).rglob("run.json"))


def state(path: str | Path, config: Mapping[str, Any]) -> State:
    """State of the run of `config` in the folder `path`; the preset does not matter.

    DIFFERENT: the folder holds a run of another config, which must neither be used as this one nor be overwritten.
    INTERRUPTED: the record says "running", but no process holds the run.

    Raises:
        RecordError: run.json is damaged or of another format.
    """
    folder = Path(path)
    if not (folder / "run.json").exists():
        return State.RUNNING if is_locked(folder / LOCK) else State.MISSING
    record = _read_json(folder)
    if config_digest(record["config"]) != config_digest(config):
        return State.DIFFERENT
    if is_locked(folder / LOCK):
        return State.RUNNING
    return State.INTERRUPTED if record["status"] == "running" else State(record["status"])


def plan(root: str | Path, configs: Mapping[str, Mapping[str, Any]]) -> dict[State, list[str]]:
    """The runs of a grid by state (every state is a key); `configs` maps folders below `root` to configs."""
    result: dict[State, list[str]] = {each: [] for each in State}
    for name, config in configs.items():
        result[state(Path(root) / name, config)].append(name)
    return result


@contextlib.contextmanager
def _of(folder: Path, name: str) -> Iterator[None]:
    """Let a RecordError say which file of the run is damaged."""
    try:
        yield
    except RecordError as error:
        raise RecordError(f"{folder}: {name} is damaged: {error}") from error


def _read_json(folder: Path) -> dict[str, Any]:
    try:
        with _of(folder, "run.json"):
            record = schema.parse(schema.read_text(folder / "run.json"))
    except FileNotFoundError:
        raise RecordError(f"{folder}: no run here (run.json is missing)") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise RecordError(f"{folder}: run.json is not of format {FORMAT}")
    missing = {"status", "config", "digest"} - record.keys()
    if missing or record["status"] not in ("running", "finished", "failed"):
        raise RecordError(f"{folder}: run.json lacks {', '.join(sorted(missing)) or 'a known status'}")
    with _of(folder, "run.json"):
        schema.check_config(record["config"])
        schema.check_fields(record)
        if not intact(record):
            raise RecordError("its digest is not that of its config")
    return record


def _evaluations(folder: Path, tasks: int) -> list[dict[str, Any]]:
    """The evaluations among the events of a run.

    Raises:
        RecordError: events.jsonl is damaged.
    """
    found = [event for event in RunFolder(folder).events() if event.get("event") == "evaluation"]
    with _of(folder, "events.jsonl"):
        schema.check_evaluations(found, tasks)
    return found


def _read_spectra(path: Path) -> dict[str, np.ndarray]:
    with contextlib.suppress(DataError):  # missing or damaged
        return read_npz(path)
    return {}


def _standard(node: Any) -> Any:
    """The tree with null for NaN and infinities, which standard JSON, and so a browser, does not know."""
    if isinstance(node, Mapping):
        return {key: _standard(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_standard(item) for item in node]
    return None if isinstance(node, float) and not math.isfinite(node) else node
