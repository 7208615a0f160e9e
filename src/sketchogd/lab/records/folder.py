"""A run is a folder, and a grid of runs knows what is still to do.

    run.json                 config, status, versions, device, timings, ledger, results
    accuracy.npz             matrix (T × T), NaN where not yet measured, and the initial row (T)
    events.jsonl             one JSON object a line, in the order in which things happened
    checkpoint.safetensors   what an interrupted run needs to go on; removed when it finishes

Every file is written whole or not at all, except events.jsonl, which grows by lines: a line cut off by a kill is
dropped when the run goes on. A process holds a lock on the run it works on; the system releases it however that ends.
"""

import contextlib
import hashlib
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sketchogd.lab.data.fileformats import DataError, read_npz
from sketchogd.lab.records import checkpoint
from sketchogd.storage import atomic

if sys.platform != "win32":
    import fcntl

FORMAT = 1


class RecordError(ValueError):
    """A run folder is damaged, of another format, or in use by another process."""


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
    """The record of one run: run.json, the accuracies if any have been written, and two readers of its larger files.

    `evaluations` gives the accuracies measured during training, one dict a measurement with task, epoch and accuracy;
    `spectra` the arrays of spectra.npz, empty without one. A run comes from a folder (`load`) or from a bundle
    (`bundles.read`); in the second case `path` is the bundle's, followed by the run's name.
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
    def complete(self) -> bool:
        """Whether the accuracy matrix is there, square, and known up to its diagonal."""
        A = self.accuracy
        if A is None or A.ndim != 2 or A.shape[0] != A.shape[1] or not len(A):
            return False
        return bool(np.isfinite(A[np.tril_indices(len(A))]).all())

    @property
    def diverged(self) -> bool:
        """Whether the run was ended by a loss that is not finite: its settings fail, and would fail again."""
        return self.status == "failed" and (self.record.get("error") or {}).get("type") == "FloatingPointError"


def environment(device: str | torch.device = "cpu") -> dict[str, Any]:
    """What a run's numbers may depend on beside its config: versions, machine, device and threads."""
    chosen = torch.device(device)
    try:
        own = metadata.version("sketchogd")
    except metadata.PackageNotFoundError:
        own = "not installed"
    name = torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else platform.processor() or platform.machine()
    return {
        "versions": {
            "sketchogd": own,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "platform": platform.platform(),
        },
        "device": {"kind": chosen.type, "name": name, "threads": torch.get_num_threads(), "cpus": os.cpu_count()},
    }


def config_digest(config: Mapping[str, Any]) -> str:
    """SHA-256 of the config as canonical JSON (sorted keys): equal configs have equal digests, in any order of keys."""
    text = json.dumps(dict(config), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class RunFolder:
    """Writes one run. Everything it returns can be read again with `load`; nothing is kept in memory."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the run while working on it; what a killed process left half-written is removed first.

        Raises:
            RecordError: another process holds it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / ".lock", "a") as lock:
            # Another process that only asks for the state has the lock for a moment: try a few times.
            if not _try_lock(lock.fileno(), attempts=5):
                raise RecordError(f"{self.path}: another process is working on this run")
            atomic.remove_leftovers(self.path)
            yield

    def start(self, config: Mapping[str, Any], device: str | torch.device = "cpu") -> None:
        """Begin the run anew: status "running", no accuracies, events or checkpoint from before."""
        self.path.mkdir(parents=True, exist_ok=True)
        for name in ("accuracy.npz", "events.jsonl", "checkpoint.safetensors"):
            (self.path / name).unlink(missing_ok=True)
        identity = {"format": FORMAT, "status": "running", "config": dict(config), "digest": config_digest(config)}
        self._write({**identity, **environment(device), "started": time.time()})

    def update(self, **fields: Any) -> None:
        """Add or replace fields of run.json, such as timings, ledger or results."""
        self._write({**_read_json(self.path), **fields})

    def finish(self, **fields: Any) -> None:
        """Mark the run finished, with its last fields, and remove its checkpoint."""
        self.update(status="finished", ended=time.time(), **fields)
        (self.path / "checkpoint.safetensors").unlink(missing_ok=True)

    def fail(self, error: BaseException) -> None:
        """Mark the run failed, and say why."""
        self.update(status="failed", ended=time.time(), error={"type": type(error).__name__, "message": str(error)})

    def save_accuracy(self, matrix: np.ndarray, initial: np.ndarray | None = None) -> None:
        """Write the accuracy matrix (T × T; NaN where not yet measured) and the accuracies before training (T)."""
        matrix = np.asarray(matrix, dtype=np.float64)
        start = np.full(len(matrix), np.nan) if initial is None else np.asarray(initial, dtype=np.float64)
        with atomic.replacing(self.path / "accuracy.npz") as temporary, open(temporary, "wb") as file:
            np.savez(file, matrix=matrix, initial=start)

    def append(self, event: Mapping[str, Any]) -> None:
        """Add one event, a line of JSON."""
        with open(self.path / "events.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(_standard(event), allow_nan=False) + "\n")

    def events(self) -> list[dict[str, Any]]:
        """All events, in order; a last line that was cut off by a kill is left out."""
        path = self.path / "events.jsonl"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def checkpoint(self, state: Any) -> None:
        """Write what resuming needs (a tree for `checkpoints`), with the number of events so far."""
        tree = {"events": len(self.events()), "state": state}
        checkpoint.save(self.path / "checkpoint.safetensors", tree)

    def resume(self) -> Any:
        """The state of the last checkpoint, or None; events after it are dropped, for they will happen again."""
        path = self.path / "checkpoint.safetensors"
        if not path.exists():
            return None
        tree = checkpoint.load(path)
        kept = self.events()[: tree["events"]]
        lines = "".join(json.dumps(event) + "\n" for event in kept)
        atomic.write_bytes(self.path / "events.jsonl", lines.encode())
        return tree["state"]

    def _write(self, record: Mapping[str, Any]) -> None:
        text = json.dumps(_standard(record), indent=2, allow_nan=False) + "\n"
        atomic.write_bytes(self.path / "run.json", text.encode())


def load(path: str | Path) -> Run:
    """The run in the folder `path`.

    Raises:
        RecordError: run.json is missing, damaged or of another format.
        DataError: accuracy.npz is damaged.
    """
    folder = Path(path)
    record = _read_json(folder)
    matrix = initial = None
    if (folder / "accuracy.npz").exists():
        arrays = read_npz(folder / "accuracy.npz", ("matrix", "initial"))
        matrix = arrays["matrix"]
        initial = None if np.isnan(arrays["initial"]).all() else arrays["initial"]
    return Run(
        folder,
        record["status"],
        record["config"],
        record,
        matrix,
        initial,
        lambda: [event for event in RunFolder(folder).events() if event.get("event") == "evaluation"],
        lambda: _read_spectra(folder / "spectra.npz"),
    )


def find(root: str | Path) -> list[Path]:
    """All run folders at or below `root`, sorted."""
    return sorted(path.parent for path in Path(root).rglob("run.json"))


def state(path: str | Path, config: Mapping[str, Any]) -> State:
    """Where the run in `path` stands, if it is to be a run of `config`.

    DIFFERENT: the folder holds a run of another config, which must not be taken for this one nor overwritten silently.
    A record that says "running" without a process holding the run was interrupted.
    """
    folder = Path(path)
    if not (folder / "run.json").exists():
        return State.RUNNING if _held(folder) else State.MISSING
    record = _read_json(folder)
    if record["digest"] != config_digest(config):
        return State.DIFFERENT
    if _held(folder):
        return State.RUNNING
    return State.INTERRUPTED if record["status"] == "running" else State(record["status"])


def plan(root: str | Path, configs: Mapping[str, Mapping[str, Any]]) -> dict[State, list[str]]:
    """The runs of a grid by state (all states are keys); `configs` maps a run's folder under `root` to its config."""
    result: dict[State, list[str]] = {each: [] for each in State}
    for name, config in configs.items():
        result[state(Path(root) / name, config)].append(name)
    return result


def _read_json(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(f"{folder}: no run here (run.json is missing)") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RecordError(f"{folder}: run.json is damaged: {error}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise RecordError(f"{folder}: run.json is not of format {FORMAT}")
    missing = {"status", "config", "digest"} - record.keys()
    if missing or record["status"] not in ("running", "finished", "failed"):
        raise RecordError(f"{folder}: run.json lacks {', '.join(sorted(missing)) or 'a known status'}")
    return record


def _read_spectra(path: Path) -> dict[str, np.ndarray]:
    with contextlib.suppress(DataError):  # no such file, or a damaged one
        return read_npz(path)
    return {}


def _standard(node: Any) -> Any:
    """The tree with NaN and infinities as null, since standard JSON, which a browser reads, has no word for them."""
    if isinstance(node, Mapping):
        return {key: _standard(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_standard(item) for item in node]
    return None if isinstance(node, float) and not math.isfinite(node) else node


def _try_lock(handle: int, attempts: int = 1) -> bool:
    """Lock an open file unless another process has; on Windows, where this lock does not exist, always True."""
    if sys.platform != "win32":
        for attempt in range(attempts):
            time.sleep(0.05 if attempt else 0)
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
        return False
    return True


def _held(folder: Path) -> bool:
    """Whether some process holds the run."""
    if not (folder / ".lock").exists():
        return False
    with open(folder / ".lock", "a") as lock:
        return not _try_lock(lock.fileno())
