"""`sketchogd demo`, `run` and `reproduce`: name an experiment, override some fields, do it, print a table."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sketchogd.budget import parse_bytes
from sketchogd.cli import show
from sketchogd.cli.carry_out import Place, carry_out, finish
from sketchogd.cli.options import (
    UNFINISHED,
    Budget,
    Data,
    Device,
    Epochs,
    Every,
    Format,
    Jobs,
    Json,
    Out,
    Plugin,
    Seeds,
    SideBySide,
    completion,
    form_of,
    friendly,
)
from sketchogd.cli.options.arguments import TRAINING
from sketchogd.cli.report import write_page
from sketchogd.cli.show import Form
from sketchogd.lab.methods import listed
from sketchogd.lab.names import unknown
from sketchogd.lab.runs import config
from sketchogd.lab.runs.config import RunConfig, Training, default_method
from sketchogd.lab.runs.grid import TimeUp
from sketchogd.lab.streams import BENCHMARKS
from sketchogd.paper import presets
from sketchogd.paper.ablations import ABLATIONS

METHODS = "Methods: " + ", ".join(listed())
"""The last line of the help of `run` and `reproduce`."""


@friendly
def demo(
    out: Out = Path("sketchogd-demo"),
    seeds: Seeds = 1,
    jobs: Jobs = 2,
    device: Device = "cpu",
    format: Format = Form.table,
    json_: Json = False,
) -> None:
    """Two minutes, no files needed: five methods on Rotated MNIST, a table, and a report page."""
    place = Place(out, jobs=jobs, device=device, form=form_of(format, json_))
    outcomes = carry_out(presets.demo(seeds).runs, "after the last of five tasks", place, build=False)
    finish(outcomes)
    write_page(out, out / "report.html")


@friendly
def run(
    benchmark: Annotated[
        str,
        typer.Argument(
            metavar="BENCHMARK",
            help=", ".join(BENCHMARKS) + ", or a stream of a plugin.",
            autocompletion=completion.benchmark,
        ),
    ],
    method: Annotated[
        str,
        typer.Argument(
            metavar="METHOD", help="A method's name; they are listed below.", autocompletion=completion.method
        ),
    ],
    budget: Budget = None,
    every: Every = None,
    examples: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Examples of a task that are remembered.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            metavar="NAME=VALUE",
            help="An option of the method, such as rank=600; may be repeated.",
            autocompletion=completion.method_option,
        ),
    ] = None,
    tuned: Annotated[
        bool,
        typer.Option(
            "--tuned",
            help="The options that were best on held-out training data of this benchmark, in place of the usual ones.",
        ),
    ] = False,
    epochs: Epochs = None,
    lr: Annotated[float | None, typer.Option(metavar="X", help="Learning rate.", rich_help_panel=TRAINING)] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Examples per step.", rich_help_panel=TRAINING)
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=", ".join(config.OPTIMIZERS),
            autocompletion=completion.optimizer,
            rich_help_panel=TRAINING,
        ),
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first so many tasks.", rich_help_panel=TRAINING)
    ] = None,
    n_train: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Training examples per task.", rich_help_panel=TRAINING)
    ] = None,
    n_test: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Test examples per task.", rich_help_panel=TRAINING)
    ] = None,
    validation: Annotated[
        float,
        typer.Option(
            metavar="SHARE", help="Score on this share of the training data, held out.", rich_help_panel=TRAINING
        ),
    ] = 0.0,
    seeds: Seeds = 1,
    out: Out = Path("runs"),
    data: Data = None,
    jobs: Jobs = 1,
    side_by_side: SideBySide = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    format: Format = Form.table,
    json_: Json = False,
) -> None:
    """Train one method on one benchmark, for one or more seeds.

    A method has the same settings as in Python, `sketchogd.lab.method(METHOD)`, unless they are given here.
    """
    place = Place(out, data, jobs, device, side_by_side, plugin or (), form_of(format, json_))
    settings: dict[str, Any] = {"budget": None if budget is None else parse_bytes(budget), "every": every}
    settings |= {"examples": examples, **_options(option or [])}
    chosen = default_method(method, benchmark, tuned=tuned, **settings)
    asked = {"epochs": epochs, "lr": lr, "batch": batch, "optimizer": optimizer}
    training = Training(**{key: value for key, value in asked.items() if value is not None})  # type: ignore[arg-type]
    runs = tuple(
        RunConfig(benchmark, chosen, training, seed, tasks=tasks, n_train=n_train, n_test=n_test, validation=validation)
        for seed in range(seeds)
    )
    finish(carry_out(runs, "after the last task", place, build=True))


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
    what: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT", help=", ".join(presets.PRESETS) + ".", autocompletion=completion.experiment
        ),
    ],
    benchmarks: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Only these, with commas. Default: those of the experiment.",
            autocompletion=completion.benchmarks,
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Only these, with commas. Default: those of the experiment.",
            autocompletion=completion.methods,
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many seeds. Default: the experiment's own.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="BYTES", help="For equal-bytes: one budget for every method.")
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="For ablations: " + ", ".join(ABLATIONS) + ".", autocompletion=completion.groups
        ),
    ] = None,
    every: Every = None,
    epochs: Epochs = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for the runs. Default: runs/EXPERIMENT.")
    ] = None,
    data: Data = None,
    jobs: Jobs = 1,
    side_by_side: SideBySide = None,
    device: Device = "cpu",
    time_limit: Annotated[
        float | None,
        typer.Option(min=1, metavar="SECONDS", help="Stop after so long; the same command goes on from there."),
    ] = None,
    plugin: Plugin = None,
    format: Format = Form.table,
    json_: Json = False,
) -> None:
    """Repeat an experiment of the paper, compare all methods at equal bytes, or on networks people use.

    The report page is written too. What is interrupted goes on from its last checkpoint, and several processes may be
    given the same command.
    """
    if what not in presets.PRESETS:
        raise ValueError(unknown("experiment", what, presets.PRESETS))
    folder = out or Path("runs") / what
    place = Place(folder, data, jobs, device, side_by_side, plugin or (), form_of(format, json_), time_limit)
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
    title = f"{what}: {preset.summary}"
    try:
        outcomes = carry_out(preset.runs, title, place, build=budget is not None)
    except TimeUp:
        show.note(f"the time is up after {time_limit:g} s; the same command goes on from here")
        raise typer.Exit(UNFINISHED) from None
    if any(outcome.status in ("finished", "skipped") for outcome in outcomes):
        write_page(folder, folder / "report.html")
    finish(outcomes)
