"""`sketchogd demo`, `run` and `reproduce`: name an experiment, override a few of its fields, do it and print a table.

With `torchrun --nproc-per-node N -m sketchogd.cli run …` N processes do each run together, and the first one prints.
"""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.text import Text

from sketchogd.budget import parse_bytes
from sketchogd.cli import show
from sketchogd.cli.options import (
    FAILED,
    UNFINISHED,
    Data,
    Device,
    Epochs,
    Every,
    Jobs,
    Json,
    Out,
    Seeds,
    SideBySide,
    devices,
    friendly,
)
from sketchogd.cli.report import write_page
from sketchogd.cli.run_table import columns, rows_of
from sketchogd.lab.data import datasets
from sketchogd.lab.methods import KINDS
from sketchogd.lab.names import unknown
from sketchogd.lab.runs import config, grid, torchrun, train
from sketchogd.lab.runs.config import RunConfig, Training, default_method
from sketchogd.lab.runs.grid import Outcome, TimeUp, Update
from sketchogd.lab.streams import BENCHMARKS, record
from sketchogd.paper import presets
from sketchogd.paper.ablations import ABLATIONS
from sketchogd.paper.published import PAPER

METHODS = "Methods: " + ", ".join(KINDS)
"""The last line of the help of `run` and `reproduce`."""


@friendly
def demo(
    out: Out = Path("sketchogd-demo"), seeds: Seeds = 1, jobs: Jobs = 2, device: Device = "cpu", json_: Json = False
) -> None:
    """Two minutes, no files needed: five methods on Rotated MNIST, a table, and a report page."""
    preset = presets.demo(seeds)
    outcomes = _carry_out(preset.runs, "after the last of five tasks", out, jobs, device, None, json_)
    _finish(outcomes)
    write_page(out, out / "report.html")


@friendly
def run(
    benchmark: Annotated[str, typer.Argument(help=", ".join(BENCHMARKS))],
    method: Annotated[str, typer.Argument(help="A method's name; they are listed below.")],
    seeds: Seeds = 1,
    budget: Annotated[str | None, typer.Option(help='Bytes the method may keep, such as "2MB".')] = None,
    every: Every = None,
    examples: Annotated[int | None, typer.Option(min=1, help="Examples of a task that are remembered.")] = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="A method's option: rank=600.")] = None,
    epochs: Epochs = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Examples per step.")] = None,
    optimizer: Annotated[str | None, typer.Option(help=", ".join(config.OPTIMIZERS))] = None,
    tasks: Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")] = None,
    n_train: Annotated[int | None, typer.Option(min=1, help="Training examples of one task.")] = None,
    n_test: Annotated[int | None, typer.Option(min=1, help="Test examples of one task.")] = None,
    validation: Annotated[float, typer.Option(help="Score on this share of the training data, held out.")] = 0.0,
    out: Out = Path("runs"),
    data: Data = None,
    jobs: Jobs = 1,
    side_by_side: SideBySide = None,
    device: Device = "cpu",
    json_: Json = False,
) -> None:
    """Train one method on one benchmark, for one or more seeds."""
    settings: dict[str, Any] = {"budget": None if budget is None else parse_bytes(budget)}
    chosen = default_method(method, benchmark, every=every, examples=examples, **settings, **_options(option or []))
    asked = {"epochs": epochs, "lr": lr, "batch": batch, "optimizer": optimizer}
    training = Training(**{key: value for key, value in asked.items() if value is not None})  # type: ignore[arg-type]
    runs = tuple(
        RunConfig(benchmark, chosen, training, seed, tasks=tasks, n_train=n_train, n_test=n_test, validation=validation)
        for seed in range(seeds)
    )
    _finish(_carry_out(runs, "after the last task", out, jobs, device, data, json_, side_by_side))


def _options(words: list[str]) -> dict[str, Any]:
    """{"rank": 600} from ["rank=600"]: values are read as JSON, and what is not JSON is a string."""
    found = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key:
            raise ValueError(f"an option is written name=value, such as rank=600; got {word!r}")
        try:
            found[key.replace("-", "_")] = json.loads(value)
        except json.JSONDecodeError:
            found[key.replace("-", "_")] = value
    return found


def _list(text: str | None) -> list[str] | None:
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


@friendly
def reproduce(
    what: Annotated[str, typer.Argument(help=", ".join(presets.PRESETS))],
    benchmarks: Annotated[
        str | None, typer.Option(help="Only these, with commas. Default: those of the experiment.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Only these, with commas. Default: those of the experiment.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds. Default: the experiment's own.")] = None,
    budget: Annotated[str | None, typer.Option(help="For equal-bytes: one budget for every method.")] = None,
    groups: Annotated[str | None, typer.Option(help="For ablations: " + ", ".join(ABLATIONS))] = None,
    every: Every = None,
    epochs: Epochs = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the runs. Default: runs/WHAT.")] = None,
    data: Data = None,
    jobs: Jobs = 1,
    side_by_side: SideBySide = None,
    device: Device = "cpu",
    time_limit: Annotated[
        float | None, typer.Option(min=1, help="Stop after so many seconds; the same command goes on from there.")
    ] = None,
    json_: Json = False,
) -> None:
    """Repeat an experiment of the paper, compare all methods at equal bytes, or on networks people use.

    The report page is written too. What is interrupted goes on from its last checkpoint, and several processes may be
    given the same command.
    """
    if what not in presets.PRESETS:
        raise ValueError(unknown("experiment", what, presets.PRESETS))
    asked: dict[str, Any] = {"benchmarks": _list(benchmarks), "methods": _list(methods), "seeds": seeds}
    if budget is not None:
        if what != "equal-bytes":
            raise ValueError("--budget is for equal-bytes; the memory sizes of the paper's experiments are fixed")
        asked["budget"] = budget
    if groups is not None:
        if what not in ("ablations", "networks-ablations"):
            raise ValueError("--groups is for ablations and networks-ablations; the other experiments have none")
        asked["groups"] = _list(groups)
    preset = presets.PRESETS[what](**{key: value for key, value in asked.items() if value is not None})
    preset = presets.changed(preset, every=every, epochs=epochs)
    folder = out or Path("runs") / what
    title = f"{what}: {preset.summary}"
    try:
        outcomes = _carry_out(preset.runs, title, folder, jobs, device, data, json_, side_by_side, time_limit)
    except TimeUp:
        show.err.print(f"the time is up after {time_limit:g} s; the same command goes on from here")
        raise typer.Exit(UNFINISHED) from None
    if any(outcome.status in ("finished", "skipped") for outcome in outcomes):
        write_page(folder, folder / "report.html")
    _finish(outcomes)


def _carry_out(
    runs: tuple[RunConfig, ...],
    title: str,
    out: Path,
    jobs: int,
    device: str,
    data: Path | None,
    as_json: bool,
    side_by_side: int | None = None,
    time_limit: float | None = None,
) -> list[Outcome]:
    """Do the runs under a progress bar and print their table. Raises TimeUp at the limit."""
    begun = time.monotonic()
    chosen = devices(device)
    _note_missing_data(runs, data)
    if _launched():
        outcomes = _with_torchrun(runs, out, device, data, quiet=as_json)
    else:
        with show.grid_bar(runs, quiet=as_json) as listener:

            def watched(update: Update) -> None:
                listener(update)
                if time_limit is not None and time.monotonic() - begun > time_limit:
                    raise TimeUp

            shared: dict[str, Any] = {"jobs": jobs, "together": side_by_side, "devices": chosen}
            shared["plugins"] = ("sketchogd.paper",)
            outcomes = grid.run_grid(runs, out, **shared, data_folder=data, listener=watched)
    rows = rows_of(runs, out, PAPER)
    if as_json:
        show.as_json(rows)
    else:
        names = {config.benchmark for config in runs}
        show.table(f"{title}, {names.pop()}" if len(names) == 1 else title, rows, columns(rows))
    return outcomes


def _note_missing_data(runs: Sequence[RunConfig], data: Path | None) -> None:
    """Say which data sets the runs need that are not here, and how to get them."""
    for name in dict.fromkeys(run.benchmark for run in runs):
        for needed in filter(None, (record(name).dataset, record(name).weights)):
            if why := datasets.missing(needed, data):
                show.err.print(
                    f"note: {why} Or: sketchogd data --download {needed} --folder FOLDER, then --data FOLDER"
                )
                show.err.print(f"note: without it runs of {name} fail; all others are done")


def _launched() -> bool:
    """Whether torchrun started this process together with others."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def _with_torchrun(
    runs: tuple[RunConfig, ...], out: Path, device: str, data: Path | None, quiet: bool
) -> list[Outcome]:
    """Do the runs with all processes of torchrun. The first process returns their outcomes, the others exit here."""
    from sketchogd.distributed import start  # takes a while, and one process does not need it

    place = start(device=torch.device(device.split(",")[0]).type)
    outcomes: list[Outcome] = []
    with show.grid_bar(runs, quiet=quiet or torch.distributed.get_rank() > 0) as listener:

        def run(config: RunConfig, folder: Path | None, all_of_them: torchrun.Processes) -> Any:
            def progress(done: float, whole: float, doing: str) -> None:
                listener(Update(config.name, done / whole, doing))

            options: dict[str, Any] = {"data_folder": data, "device": place, "processes": all_of_them}
            if folder is None:
                return train.follow(config, **options)
            return train.run(config, folder, progress=progress, **options)

        def tell(name: str, status: str, message: str) -> None:
            outcomes.append(Outcome(name, status, message))
            listener(Update(name, 1.0, status))

        torchrun.run_all(runs, out, run, tell)
    follower = torch.distributed.get_rank() > 0
    torch.distributed.destroy_process_group()
    if follower:
        raise typer.Exit
    return outcomes


def _finish(outcomes: Sequence[Outcome]) -> None:
    """Say which runs failed, and leave with the exit code for it if any did."""
    failed = [outcome for outcome in outcomes if outcome.status in ("failed", "busy")]
    for outcome in failed:
        show.err.print(Text(f"{outcome.run}: {outcome.status}: {outcome.message}", style="red"))
    if failed:
        raise typer.Exit(FAILED)
