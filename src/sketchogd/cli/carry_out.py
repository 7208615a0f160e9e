"""Runs from the command line: what cannot be done is said first, then they are done, then their table is printed.

With `torchrun --nproc-per-node N -m sketchogd run …` N processes do each run together, and the first one prints.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from sketchogd.cli import show
from sketchogd.cli.options import FAILED, devices
from sketchogd.cli.show import Form
from sketchogd.cli.show.run_table import columns, rows_of
from sketchogd.lab.runs import grid, possible, torchrun, train
from sketchogd.lab.runs.config import RunConfig
from sketchogd.lab.runs.grid import Outcome, TimeUp, Update
from sketchogd.lab.runs.plugins import load
from sketchogd.paper.published import PAPER


@dataclass(frozen=True)
class Place:
    """Where and how runs are done, and in which form their table is printed.

    Args:
        out: folder for the runs.
        data: folder with data sets.
        jobs: processes at a time.
        device: devices with commas.
        side_by_side: runs that share one loop.
        plugins: modules or files that every process imports.
        form: of the table.
        time_limit: seconds after which runs are interrupted, None for no limit.
    """

    out: Path
    data: Path | None = None
    jobs: int = 1
    device: str = "cpu"
    side_by_side: int | None = None
    plugins: Sequence[str] = ()
    form: Form = Form.table
    time_limit: float | None = None

    def __post_init__(self) -> None:
        load(self.plugins)


def carry_out(runs: tuple[RunConfig, ...], title: str, place: Place, build: bool) -> list[Outcome]:
    """Do the runs, show progress, and print their table.

    Args:
        runs: what to do.
        title: of the table.
        place: where and how.
        build: whether to build each method first, to see that its settings and its budget are possible.

    Raises:
        ValueError: a run cannot be carried out as it is; nothing was started.
        TimeUp: at the time limit; runs go on from their last checkpoints.
    """
    begun, chosen = time.monotonic(), devices(place.device)
    todo = possible.unfinished(runs, place.out)
    if len(todo) < len(runs):
        show.note(f"{len(runs) - len(todo)} of {len(runs)} runs are finished in {place.out} and not repeated")
    _require_data(todo, runs, place.data)
    if build:
        possible.require_possible(todo, place.data)
    if _launched():
        outcomes = _with_torchrun(runs, place)
    else:
        with show.grid_bar(runs, quiet=False) as listener:

            def watched(update: Update) -> None:
                listener(update)
                if place.time_limit is not None and time.monotonic() - begun > place.time_limit:
                    raise TimeUp

            shared: dict[str, Any] = {"jobs": place.jobs, "together": place.side_by_side, "devices": chosen}
            shared["plugins"] = ("sketchogd.paper", *place.plugins)
            outcomes = grid.run_grid(runs, place.out, **shared, data_folder=place.data, listener=watched)
    rows = rows_of(runs, place.out, PAPER)
    names = {config.benchmark for config in runs}
    said = f"{title}, {names.pop()}" if len(names) == 1 else title
    if rows or place.form is not Form.table:
        show.table(said, rows, columns(rows), place.form)
    return outcomes


def finish(outcomes: Sequence[Outcome]) -> None:
    """Say which runs failed, and leave with the exit code for it if any did."""
    failed = [outcome for outcome in outcomes if outcome.status in ("failed", "busy")]
    for outcome in failed:
        show.problem(f"{outcome.run}: {outcome.status}: {outcome.message}")
    if failed:
        raise typer.Exit(FAILED)


def _require_data(todo: Sequence[RunConfig], runs: Sequence[RunConfig], data: Path | None) -> None:
    """Raise ValueError where data sets are not here, with how to get them, or how to do without them."""
    lacking = possible.without_data(todo, data)
    if not lacking:
        return
    names = list(dict.fromkeys(lacking.values()))
    rest = [name for name in dict.fromkeys(run.benchmark for run in runs) if name not in lacking]
    where = f" is not in {data}" if data is not None else " is not here"
    without = f"; or leave {', '.join(lacking)} out: --benchmarks {','.join(rest)}" if rest else ""
    raise ValueError(
        f"{' and '.join(names)}{where}: get it with `sketchogd data --download {names[0]} --folder FOLDER` and add "
        f"--data FOLDER{without}"
    )


def _launched() -> bool:
    """Whether torchrun started this process together with others."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def _with_torchrun(runs: tuple[RunConfig, ...], place: Place) -> list[Outcome]:
    """Do the runs with all processes of torchrun. The first process returns their outcomes, the others exit here."""
    from sketchogd.distributed import start  # takes a while, and one process does not need it

    device = start(device=torch.device(place.device.split(",")[0]).type)
    outcomes: list[Outcome] = []
    with show.grid_bar(runs, quiet=torch.distributed.get_rank() > 0) as listener:

        def run(config: RunConfig, folder: Path | None, all_of_them: torchrun.Processes) -> Any:
            def progress(done: float, whole: float, doing: str) -> None:
                listener(Update(config.name, done / whole, doing))

            options: dict[str, Any] = {"data_folder": place.data, "device": device, "processes": all_of_them}
            if folder is None:
                return train.follow(config, **options)
            return train.run(config, folder, progress=progress, **options)

        def tell(name: str, status: str, message: str) -> None:
            outcomes.append(Outcome(name, status, message))
            listener(Update(name, 1.0, status))

        torchrun.run_all(runs, place.out, run, tell)
    follower = torch.distributed.get_rank() > 0
    torch.distributed.destroy_process_group()
    if follower:
        raise typer.Exit
    return outcomes
