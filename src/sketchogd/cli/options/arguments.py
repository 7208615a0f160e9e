"""The types of options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

from sketchogd.cli.options import completion
from sketchogd.cli.show import Form

HERE, TRAINING, SHOWN = "Where and how it runs", "Training", "What is printed"
"""Headings in the help."""

Seeds = Annotated[
    int, typer.Option(min=1, metavar="N", help="How many seeds, counted from 0.", rich_help_panel=TRAINING)
]
Jobs = Annotated[
    int, typer.Option(min=1, metavar="N", help="Processes at a time, with one thread each.", rich_help_panel=HERE)
]
SideBySide = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Runs that share one vectorised loop. Default: 64 on a GPU, otherwise 1.",
        rich_help_panel=HERE,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Where to train: cpu, cuda, cuda:1; several with commas, used in turn.",
        autocompletion=completion.device,
        rich_help_panel=HERE,
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Folder with data sets. Default: what $SKETCHOGD_DATA names.", rich_help_panel=HERE
    ),
]
Out = Annotated[
    Path,
    typer.Option(
        metavar="FOLDER", help="Folder for the runs; finished ones in it are not repeated.", rich_help_panel=HERE
    ),
]
Plugin = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="A Python file (or module) that registers methods or streams of your own; may be repeated.",
        rich_help_panel=HERE,
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print JSON on standard output, as --format json does.", rich_help_panel=SHOWN),
]
Format = Annotated[
    Form,
    typer.Option(
        "--format",
        metavar="FORM",
        help="table, csv (full precision), markdown, latex or json.",
        rich_help_panel=SHOWN,
    ),
]
Every = Annotated[int | None, typer.Option(min=1, metavar="N", help="Optimizer steps between two projections.")]
Epochs = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Epochs per task. Default: the usual number.", rich_help_panel=TRAINING),
]
Budget = Annotated[str | None, typer.Option(metavar="BYTES", help='Bytes that may be kept, such as "2MB".')]


def form_of(form: Form, json_: bool) -> Form:
    """The form that `--format` and `--json` ask for.

    Raises:
        ValueError: they ask for two.
    """
    if json_ and form not in (Form.table, Form.json):
        raise ValueError(f"--json and --format {form.value} are two forms; give one of them")
    return Form.json if json_ else form
