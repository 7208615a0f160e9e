"""Many runs: finished ones are skipped, interrupted ones resume, a failure is recorded and the rest continue.

With `jobs` > 1 each piece of work has a process of its own with one thread, so that one that is killed takes no other
with it. With `together` > 1 runs that differ in seed and method only are trained side by side (`sidebyside`), as one
piece: many times faster for small networks, above all on a GPU, where a single run gains too; but a piece that is
killed begins again.
"""

import gc
import multiprocessing
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from sketchogd.lab import records
from sketchogd.lab.records import State
from sketchogd.lab.runs import train
from sketchogd.lab.runs.config import RunConfig
from sketchogd.lab.runs.plugins import load
from sketchogd.lab.runs.sidebyside import group, partition

SECONDS_BETWEEN_LOOKS = 0.2

TOGETHER = {"cuda": 64}
"""The default of `together` by kind of device; elsewhere 1."""


class TimeUp(BaseException):
    """Raised out of a grid by a listener at a limit; not an Exception, so that no run is marked as failed by it."""


@dataclass(frozen=True)
class Update:
    """Progress of a run: the share of it that is done (0 to 1) and what it is doing."""

    run: str
    share: float
    doing: str


@dataclass(frozen=True)
class Outcome:
    """How a run ended: "finished", "skipped" (finished before), "failed", or "busy" (another process works on it)."""

    run: str
    status: str
    message: str = ""


Listener = Callable[[Update], None]


def run_grid(
    configs: Sequence[RunConfig],
    root: str | Path,
    *,
    jobs: int = 1,
    together: int | None = None,
    devices: Sequence[str] = ("cpu",),
    data_folder: str | Path | None = None,
    listener: Listener | None = None,
    plugins: Sequence[str] = (),
) -> list[Outcome]:
    """Do all runs, each in its folder below `root`; the outcomes are in the order of the configs.

    Ctrl-C stops the grid; the same call takes it up again.

    Args:
        configs: the runs.
        root: the folder of the grid.
        jobs: processes at a time; with 1 everything is done in this one.
        together: the most runs that are trained side by side, by default `TOGETHER`; a run with a checkpoint
            resumes alone.
        devices: where to train, used in turn.
        data_folder: where data sets are that are not part of the package.
        listener: told of progress.
        plugins: names of modules, or paths of Python files, that every process imports before its runs, because
            importing them registers methods, streams or measurements.

    Raises:
        ImportError: a plugin cannot be imported; nothing is started.
        RecordError: a folder holds a run of another config, which must not be overwritten; nothing is started.
        ValueError: two configs have the same folder, or `jobs` is less than 1.
    """
    load(plugins)
    folder = Path(root)
    by_name = {config.name: config for config in configs}
    if len(by_name) < len(configs) or jobs < 1:
        raise ValueError(f"{len(configs)} runs need as many different names, and at least one job; got {jobs} jobs")
    plan = records.plan(folder, {name: config.record() for name, config in by_name.items()})
    if plan[State.DIFFERENT]:
        raise records.RecordError(
            f"{folder / plan[State.DIFFERENT][0]}: holds a run with other settings; use another folder or delete it"
        )
    outcomes = {name: Outcome(name, "skipped") for name in plan[State.FINISHED]}
    outcomes |= {name: Outcome(name, "busy", "another process works on it") for name in plan[State.RUNNING]}
    todo = [name for name in by_name if name not in outcomes]
    tell = listener or (lambda update: None)
    for name in outcomes:
        tell(Update(name, 1.0, outcomes[name].status))
    most = TOGETHER.get(torch.device(devices[0]).type, 1) if together is None else together
    begun = [by_name[name] for name in todo if (folder / name / "checkpoint.safetensors").exists()]
    fresh = [by_name[name] for name in todo if by_name[name] not in begun]
    pieces = [(False, [config]) for config in begun]
    for runs in partition.groups(fresh, most, _room(devices[0])):
        pieces.append((most > 1 and partition.joins(runs[0]), runs))
    work = [
        Work(tuple(runs), folder, devices[i % len(devices)], data_folder, stacked)
        for i, (stacked, runs) in enumerate(pieces)
    ]
    done = _one_by_one(work, tell) if jobs == 1 else _in_processes(work, jobs, plugins, tell)
    outcomes |= {outcome.run: outcome for outcome in done}
    return [outcomes[name] for name in by_name]


@dataclass(frozen=True)
class Work:
    """One piece of work.

    Args:
        configs: its runs.
        root: the folder of the grid.
        device: where to train.
        data_folder: where data sets are.
        stacked: whether the runs are trained by `sidebyside`; on a GPU a single run may be as well, and replays graphs.
    """

    configs: tuple[RunConfig, ...]
    root: Path
    device: str
    data_folder: str | Path | None
    stacked: bool


def _room(device: str) -> int | None:
    """Bytes that the methods of one piece may keep: a share of the free memory of a GPU; elsewhere unlimited."""
    chosen = torch.device(device)
    return int(0.6 * torch.cuda.mem_get_info(chosen)[0]) if chosen.type == "cuda" else None


def _do(work: Work, tell: Listener) -> list[Outcome]:
    """Do one piece; errors become outcomes. Runs that do not fit into memory together begin again in two halves.

    A single run that another process has finished or begun since the grid was planned is left to it.
    """
    if len(work.configs) == 1:
        (config,) = work.configs
        status = {State.FINISHED: "skipped", State.RUNNING: "busy"}
        now = records.state(work.root / config.name, config.record())
        if now in status:
            tell(Update(config.name, 1.0, status[now]))
            said = "another process works on it" if now is State.RUNNING else ""
            return [Outcome(config.name, status[now], said)]
    gc.collect()  # reference cycles of the last piece could keep its sketches in memory
    if torch.device(work.device).type == "cuda":
        torch.cuda.empty_cache()
    outcomes, too_much = _attempt(work, tell)
    if not too_much:
        return outcomes
    half = len(work.configs) // 2
    parts = work.configs[:half], work.configs[half:]
    return [outcome for part in parts for outcome in _do(replace(work, configs=part), tell)]


def _attempt(work: Work, tell: Listener) -> tuple[list[Outcome], bool]:
    """The outcomes; or none and True, if memory was too small for several runs."""
    configs = work.configs
    folders = [work.root / config.name for config in configs]

    def progress(done: float, whole: float, doing: str) -> None:
        for config in configs:
            tell(Update(config.name, done / whole, doing))

    options: dict[str, Any] = {"data_folder": work.data_folder, "device": work.device, "progress": progress}
    problems: list[Exception | None] = [None] * len(configs)
    try:
        if work.stacked:
            ended = group.run(configs, folders, **options)
            problems = [end if isinstance(end, Exception) else None for end in ended]
        else:
            train.run(configs[0], folders[0], **options)
    except Exception as error:
        for config, folder in zip(configs, folders, strict=True):
            if not (folder / "run.json").exists():
                # The run failed before it was started, for example because data is missing: record that as well.
                place = records.RunFolder(folder)
                place.start(config.record(), "cpu")
                place.fail(error)
        if isinstance(error, torch.OutOfMemoryError) and len(configs) > 1:
            return [], True
        problems = [error] * len(configs)
    outcomes = []
    for config, problem in zip(configs, problems, strict=True):
        message = "" if problem is None else f"{type(problem).__name__}: {problem}"
        outcomes.append(Outcome(config.name, "finished" if problem is None else "failed", message))
        tell(Update(config.name, 1.0, outcomes[-1].status))
    return outcomes, False


def _one_by_one(work: Sequence[Work], tell: Listener) -> list[Outcome]:
    return [outcome for each in work for outcome in _do(each, tell)]


def _in_process(work: Work, names: Sequence[str], plugins: Sequence[str], news: Any) -> None:
    torch.set_num_threads(1)
    try:
        load(plugins)
        outcomes = _do(work, news.put)
    except KeyboardInterrupt:
        outcomes = [Outcome(name, "failed", "interrupted") for name in names]
    except Exception as error:  # such as a method that is registered only in the process that started this one
        outcomes = [Outcome(name, "failed", f"{type(error).__name__}: {error}") for name in names]
    for outcome in outcomes:
        news.put(outcome)


def _in_processes(work: Sequence[Work], jobs: int, plugins: Sequence[str], tell: Listener) -> list[Outcome]:
    context = multiprocessing.get_context("spawn")
    news = context.Queue()
    waiting = list(work)
    running: dict[str, tuple[Any, Work]] = {}
    outcomes: dict[str, Outcome] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                each = waiting.pop(0)
                names = [config.name for config in each.configs]
                process = context.Process(target=_in_process, args=(each, names, plugins, news), daemon=True)
                process.start()
                running[names[0]] = (process, each)
            wait([process.sentinel for process, _ in running.values()], timeout=SECONDS_BETWEEN_LOOKS)
            ended = [name for name, (process, _) in running.items() if not process.is_alive()]
            _read(news, tell, outcomes, patient=bool(ended))
            for name in ended:
                process, each = running.pop(name)
                process.join()
                for config in each.configs:
                    if config.name not in outcomes:
                        outcomes[config.name] = _lost(config, process.exitcode)
                        tell(Update(config.name, 1.0, "failed"))
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.join()
    return list(outcomes.values())


def _read(news: Any, tell: Listener, outcomes: dict[str, Outcome], patient: bool) -> None:
    """Take what has arrived; with `patient`, wait a moment for what a process sent before it ended."""
    deadline = time.monotonic() + (0.5 if patient else 0.0)
    while True:
        try:
            item = news.get(timeout=0.05 if time.monotonic() < deadline else 0.0)
        except queue.Empty:
            if time.monotonic() >= deadline:
                return
            continue
        if isinstance(item, Outcome):
            outcomes[item.run] = item
        else:
            tell(item)


def _lost(config: RunConfig, code: int | None) -> Outcome:
    """The outcome of a run whose process ended without one. Its checkpoint stays, so it can be resumed later."""
    return Outcome(config.name, "failed", f"the process ended with code {code} (killed, or out of memory?)")
