"""What the command line prints: tables (or JSON), their cells, and progress bars.

Results go to standard output; bars, notes and errors to standard error, so that `--json` can be piped.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from sketchogd.budget import format_bytes
from sketchogd.lab.runs.config import RunConfig
from sketchogd.lab.runs.grid import Update
from sketchogd.lab.streams import BENCHMARKS

out = Console()
out.width = max(out.width, 130)  # a narrower terminal wraps lines, which reads better than folded words
err = Console(stderr=True)


def bytes_cell(count: float | None) -> str:
    """Bytes in a column of a table: as many decimals for every number of a unit, so that they line up.

    >>> bytes_cell(1_601_312), bytes_cell(7.7e9), bytes_cell(0), bytes_cell(None)
    ('1.6 MB', '7.70 GB', '0 B', '')
    """
    return "" if count is None else format_bytes(count, decimals=2 if count >= 10**9 else 1)


def three_decimals(value: float | None) -> str:
    """An accuracy in a column of a table."""
    return "" if value is None else f"{value:.3f}"


def signed(value: float | None) -> str:
    """A difference of accuracies in a column of a table."""
    return "" if value is None else f"{value:+.3f}"


def table(title: str, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Callable[[Any], str]]) -> None:
    """Print rows as a table; `columns` maps each heading, also the key in a row, to how its values are written."""
    grid = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in columns:
        words = heading in ("benchmark", "method", "name", "note", "variant")
        grid.add_column(heading.replace("_", " "), justify="left" if words else "right", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(write(row.get(key))) for key, write in columns.items()))
    out.print(grid)


def as_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


class _Rate(ProgressColumn):
    """Epochs per minute."""

    def render(self, task: Task) -> Text:
        """The rate, once there is one."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{60 * speed:.0f} epochs/min", style="progress.data.speed")


@contextmanager
def grid_bar(configs: Sequence[RunConfig], quiet: bool) -> Iterator[Callable[[Update], None]]:
    """A bar over all epochs of a grid, with rate and time left; yields the listener for `run_grid`."""
    weights = {config.name: epochs_of(config) for config in configs}
    shares: dict[str, float] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        _Rate(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=err, disable=quiet, speed_estimate_period=120) as progress:
        bar = progress.add_task("starting", total=sum(weights.values()))

        def listen(update: Update) -> None:
            shares[update.run] = update.share
            done = sum(weights[name] * share for name, share in shares.items())
            progress.update(bar, completed=done, description=f"{update.run.split('/')[1]}: {update.doing}")

        yield listen


def epochs_of(config: RunConfig) -> int:
    """Epochs of a run over all of its tasks; an unknown benchmark counts as one task."""
    known = BENCHMARKS[config.benchmark].tasks if config.benchmark in BENCHMARKS else 1
    return config.training.epochs * (config.tasks or known)
