"""Exit codes, and a guard that turns a user's mistakes into one line that says what to do."""

import functools
from collections.abc import Callable
from typing import Any

import typer

from sketchogd.cli.show import note, problem
from sketchogd.errors import ProtectionError

FAILED, WRONG, UNFINISHED, INTERRUPTED = 1, 2, 3, 130
"""Exit codes: a run failed; the command cannot be carried out as given; the time was up; Ctrl-C."""


def friendly(command: Callable[..., None]) -> Callable[..., None]:
    """Turn a user's mistakes into one line on standard error, and Ctrl-C into a hint."""

    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (ValueError, OSError, ImportError, ProtectionError) as error:
            problem("error: " + " ".join(str(error).split("\n")))
            raise typer.Exit(WRONG) from None
        except KeyboardInterrupt:
            note("stopped; what is done is kept, and the same command continues from there")
            raise typer.Exit(INTERRUPTED) from None

    return guarded
