"""Rows as a table on a terminal; where it is too narrow for that, a block of lines per row.

Numbers are never folded. Words are, after commas and spaces, down to `NARROWEST` columns each.
"""

from typing import Any

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from sketchogd.cli.show import forms
from sketchogd.cli.show.console import room, say
from sketchogd.cli.show.forms import WORDS, Columns, Form, Rows, heading

NARROWEST = 14
"""A column of words may be folded to so many characters."""

GAP = 2
"""Characters between two columns."""


def table(title: str, rows: Rows, columns: Columns, form: Form = Form.table, value: Any = None) -> None:
    """Print rows.

    Args:
        title: above the table.
        rows: plain values by column; what is missing is empty.
        columns: each heading, also the key in a row, with how its values are written.
        form: a table for people, or one of `forms`.
        value: what JSON says in place of the rows.
    """
    if form is Form.json:
        forms.as_json(rows if value is None else value)
    elif form is Form.csv:
        typer.echo(forms.as_csv(rows, columns), nl=False)
    elif form is Form.markdown:
        typer.echo(forms.as_markdown(rows, columns), nl=False)
    elif form is Form.latex:
        typer.echo(forms.as_latex(title, rows, columns), nl=False)
    else:
        cells = [[_spaced(key, write(row.get(key))) for key, write in columns.items()] for row in rows]
        width = room()
        if width is None or _least(list(columns), cells) <= width:
            _print_grid(title, list(columns), cells, width)
        else:
            _print_blocks(title, list(columns), cells, width)


def _spaced(key: str, cell: str) -> str:
    """A cell; settings such as rank=10,every=5 get spaces, at which they can be folded."""
    return cell.replace(",", ", ").replace(",  ", ", ") if key in ("method", "variant") else cell


def _least(keys: list[str], cells: list[list[str]]) -> int:
    """Columns of a terminal that a table needs at least."""
    total = GAP * (len(keys) - 1)
    for i, key in enumerate(keys):
        widest = max(cell_len(line[i]) for line in [[heading(key) for key in keys], *cells])
        words = max(cell_len(word) for line in [[heading(key) for key in keys], *cells] for word in line[i].split(" "))
        total += min(widest, max(NARROWEST, words)) if key in WORDS else widest
    return total


def _print_grid(title: str, keys: list[str], cells: list[list[str]], width: int | None) -> None:
    # Beside its padding a column has the blank that parts it from the next one.
    grid = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False, padding=(0, GAP - 1, 0, 0))
    for key in keys:
        words = key in WORDS
        grid.add_column(heading(key), justify="left" if words else "right", overflow="fold", no_wrap=not words)
    for line in cells:
        grid.add_row(*map(Text, line))
    say(title, style="italic")
    say("")
    natural = sum(max(cell_len(line[i]) for line in [list(map(heading, keys)), *cells]) + GAP for i in range(len(keys)))
    _print(grid, natural if width is None else width)


def _print_blocks(title: str, keys: list[str], cells: list[list[str]], width: int) -> None:
    """Each row as its first cell, and below it a line for every other one that is not empty."""
    say(title, style="italic")
    names = max((cell_len(heading(key)) for key in keys[1:]), default=0)
    for line in cells:
        say("")
        say(line[0], style="bold")
        block = Table.grid(padding=(0, GAP, 0, 0))
        block.add_column(width=names + 2)
        block.add_column(overflow="fold")
        for key, cell in zip(keys[1:], line[1:], strict=True):
            if cell:
                block.add_row(f"  {heading(key)}", Text(cell))
        _print(block, width)


def _print(grid: RenderableType, width: int) -> None:
    """Print something of a width, also a larger one than the console's, without blanks at the ends of lines."""
    console = Console(width=width)
    with console.capture() as captured:
        console.print(grid)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
