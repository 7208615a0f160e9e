"""Which runs belong together: those of one benchmark, method and setting, which differ in their seed only.

Every number that a report shows is a mean over the seeds of a `Group`. `T` tasks.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sketchogd.budget import format_bytes
from sketchogd.lab.methods import registry
from sketchogd.lab.records import RecordError, Run, bundles
from sketchogd.lab.streams import BENCHMARKS

DAMAGED = "damaged: "
"""How the reason begins for which a run that cannot be read is left out."""


@dataclass(frozen=True)
class Group:
    """The finished runs of one method with one setting on one benchmark, one per seed.

    Args:
        benchmark: the benchmark's name.
        method: the method's name.
        variant: what distinguishes the setting from others of the same method on that benchmark; empty if it is alone.
        runs: sorted by seed.
    """

    benchmark: str
    method: str
    variant: str
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        """The method's title, with the variant."""
        title = registry.title(self.method)
        return f"{title} ({self.variant})" if self.variant else title

    @property
    def matrices(self) -> np.ndarray:
        """Accuracy matrices of the runs that have a complete one, (seeds, T, T)."""
        return np.array([run.accuracy for run in self.runs if run.complete])


def title_of(benchmark: str) -> str:
    """The title of a benchmark; for one that the lab does not have, such as a user's own stream, its name."""
    return BENCHMARKS[benchmark].title if benchmark in BENCHMARKS else benchmark


def curves_of(benchmark: str) -> tuple[int, ...]:
    """The tasks of a benchmark, counted from 1, that are drawn along training by default; empty for an unknown one."""
    return BENCHMARKS[benchmark].curves if benchmark in BENCHMARKS else ()


def collect(runs_folder: str | Path) -> tuple[list[Group], list[dict[str, str]]]:
    """All groups at or below a folder, in the order of the tables, and the runs left out with the reason.

    The reason of a run that cannot be read begins with "damaged: ".

    Raises:
        RecordError: there are no run folders and no bundles.
    """
    root = Path(runs_folder)
    kept: dict[tuple[str, str], Run] = {}
    left_out = []
    for name, found in bundles.everything(root):
        if isinstance(found, str):
            left_out.append({"run": name, "reason": DAMAGED + found})
            continue
        run = found
        reason = _why_not(run)
        if not reason and run.identity in kept:
            reason = "the same config as another run"
        if reason:
            left_out.append({"run": name, "reason": reason})
        else:
            kept[run.identity] = run
    if not kept and not left_out:
        raise RecordError(f"{root}: expected run folders (each with a run.json) or bundles here or below, found none")
    return _grouped(list(kept.values())), left_out


def damaged(runs_folder: str | Path) -> list[str]:
    """A line for each run folder and bundle at or below a folder that cannot be read: its name and the reason."""
    return [f"{name}: {found}" for name, found in bundles.everything(runs_folder) if isinstance(found, str)]


def styles_of(groups: Sequence[Group]) -> list[int]:
    """A style per group: the method's own for its first setting on a benchmark, otherwise one that is free."""
    own = [registry.style(group.method) for group in groups]
    free = [style for style in range(2 * len(groups)) if style not in own]
    styles: list[int] = []
    for i, group in enumerate(groups):
        taken = {style for style, other in zip(styles, groups[:i], strict=True) if other.benchmark == group.benchmark}
        first = own[i]
        wanted = free[0] if first is None else first
        styles.append(wanted if wanted not in taken else next(style for style in free if style not in taken))
    return styles


def kept_bytes(group: Group) -> int | None:
    """Bytes that the method keeps between tasks, by the ledger: the largest of any seed; None without a ledger."""
    sizes = [size for run in group.runs if (size := (run.record.get("ledger") or {}).get("nbytes")) is not None]
    return max(sizes, default=None)


def host_bytes(group: Group) -> int:
    """Those of the kept bytes that are on the host instead of the device that trains: the largest of any seed."""
    return max((bundles.totals(run.record).get("host", 0) for run in group.runs), default=0)


def flattened(config: Any, prefix: str = "") -> dict[str, Any]:
    """A config flattened to dotted keys, without seeds and device, which do not make another setting."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= flattened(value, f"{prefix}{key}.")
        elif key != "device" and not key.endswith("seed"):
            flat[prefix + key] = value
    return flat


def _why_not(run: Run) -> str:
    """Why a run that could be read is not shown; empty if it is."""
    if run.status == "failed":
        error = run.record.get("error") or {}
        return f"failed: {error.get('type', 'error')}: {error.get('message', '')}"
    if run.status != "finished":
        return "not finished"
    if not run.complete and not run.spectra():
        return "finished without a complete accuracy matrix"
    return ""


def _grouped(runs: Sequence[Run]) -> list[Group]:
    settings: dict[tuple[str, str], dict[str, list[Run]]] = {}
    for run in runs:
        key = (str(run.config.get("benchmark", "unnamed")), str(run.config.get("method", "unnamed")))
        setting = flattened(run.config)
        if run.accuracy is not None:
            setting.setdefault("tasks", len(run.accuracy))
        identity = json.dumps(setting, sort_keys=True)
        settings.setdefault(key, {}).setdefault(identity, []).append(run)
    groups = []
    for (benchmark, method), variants in settings.items():
        flat = [{key: json.dumps(value) for key, value in json.loads(identity).items()} for identity in variants]
        differing = sorted({key for each in flat for key in each if len({other.get(key) for other in flat}) > 1})
        for each, members in zip(flat, variants.values(), strict=True):
            told = [key for key in differing if each.get(key, "null") != "null"]
            variant = ", ".join(f"{key.removeprefix('options.')} {_shown(key, each[key])}" for key in told)
            members.sort(key=_seed)
            groups.append(Group(benchmark, method, variant, tuple(members)))
    benchmarks, methods = list(BENCHMARKS), registry.listed()
    return sorted(groups, key=lambda g: (*_place(benchmarks, g.benchmark), *_place(methods, g.method), g.variant))


def _seed(run: Run) -> tuple[str, Any]:
    """By what runs of a group are sorted: seeds of one type by value."""
    seed = run.config.get("seed")
    return type(seed).__name__, 0 if seed is None else seed


def _shown(key: str, value: str) -> str:
    """A setting in the name of a variant; budgets are in MB with up to six digits, so that different ones look so."""
    return format_bytes(int(value), digits=6, unit="MB") if key == "budget" and value.isdigit() else value.strip('"')


def _place(order: Sequence[str], name: str) -> tuple[int, str]:
    """The place of a name in an order; names that are not in it come last, alphabetically."""
    return order.index(name) if name in order else len(order), name
