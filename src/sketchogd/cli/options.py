"""What the commands share: option types, and a guard that turns a user's mistakes into one line."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.text import Text

from sketchogd.cli.show import err
from sketchogd.errors import ProtectionError
from sketchogd.lab.names import unknown

FAILED, WRONG, UNFINISHED, INTERRUPTED = 1, 2, 3, 130
"""Exit codes: a run failed; the command cannot be carried out as given; the time was up; Ctrl-C."""

Seeds = Annotated[int, typer.Option(min=1, help="How many seeds, counted from 0.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes at a time, with one thread each.")]
SideBySide = Annotated[
    int | None, typer.Option(min=1, help="Runs that share one vectorised loop. Default: 64 on a GPU, otherwise 1.")
]
Device = Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:1; several with commas, used in turn.")]
Data = Annotated[Path | None, typer.Option(help="Folder with data sets; by default $SKETCHOGD_DATA.")]
Out = Annotated[Path, typer.Option(help="Folder for the runs; finished ones in it are not repeated.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Every = Annotated[int | None, typer.Option(min=1, help="Optimizer steps between two projections.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Epochs per task. Default: the usual number.")]


def devices(names: str) -> list[str]:
    """The devices in a list with commas.

    Raises:
        ValueError: one of them has a name that torch does not know, or is not in this machine.
    """
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if not chosen:
        raise ValueError("--device names no device; give cpu, cuda, cuda:1, or several with commas")
    for name in chosen:
        try:
            usable = torch.empty(1, device=name).fill_(1.0).tolist() == [1.0]
        except (RuntimeError, AssertionError, NotImplementedError, ValueError):
            usable = False
        if not usable:
            here = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
            raise ValueError(f"{unknown('device', name, here)}; cuda alone is the first GPU, where there is one")
    return chosen


def friendly(command: Callable[..., None]) -> Callable[..., None]:
    """Turn a user's mistakes into one line on standard error, and Ctrl-C into a hint."""

    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (ValueError, OSError, ImportError, ProtectionError) as error:
            err.print(Text(f"error: {error}", style="red"))
            raise typer.Exit(WRONG) from None
        except KeyboardInterrupt:
            err.print("stopped; what is done is kept, and the same command continues from there")
            raise typer.Exit(INTERRUPTED) from None

    return guarded
