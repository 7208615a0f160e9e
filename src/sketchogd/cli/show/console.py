"""Where lines go, and how wide they may be: as wide as the terminal, or as COLUMNS says, otherwise as wide as they are.

An error stays one line wherever it is not read on a terminal, so that it can be searched for.
"""

import os

from rich.console import Console
from rich.text import Text

out = Console()
err = Console(stderr=True)


def room(console: Console = out) -> int | None:
    """Columns that a line may take; None where nothing limits it, as in a pipe or a file."""
    if console.stderr and not console.is_terminal:
        return None
    said = os.environ.get("COLUMNS", "")
    if said.isdigit() and int(said) > 0:
        return int(said)
    return console.size.width if console.is_terminal else None


def say(words: str, console: Console = out, style: str = "") -> None:
    """Print a line of prose, wrapped only where the width is limited."""
    width = room(console)
    console.print(Text(words, style=style), soft_wrap=width is None, width=width, highlight=False)


def note(words: str) -> None:
    """Print a line on standard error."""
    say(words, err)


def problem(words: str) -> None:
    """Print what went wrong on standard error."""
    say(words, err, "red")
