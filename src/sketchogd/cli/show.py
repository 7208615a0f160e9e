"""What the command line prints: tables (or JSON), progress bars, and errors without tracebacks.

Results go to standard output; bars, notes and errors to standard error, so that `--json` can be piped.
"""

import functools
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

from sketchogd.errors import ProtectionError
from sketchogd.lab.runs.config import RunConfig
from sketchogd.lab.runs.grid import Outcome, Update
from sketchogd.paper.published import TASKS

FAILED, WRONG, INTERRUPTED = 1, 2, 130
"""Exit codes: a run failed; the command cannot be carried out as given; Ctrl-C."""

out = Console()
out.width = max(out.width, 130)  # a narrower terminal wraps lines, which reads better than folded words
err = Console(stderr=True)


def friendly(command: Callable[..., None]) -> Callable[..., None]:
    """Turn a user's mistakes into one line on standard error, and Ctrl-C into a hint."""

    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (ValueError, OSError, ProtectionError) as error:
            err.print(Text(f"error: {error}", style="red"))
            raise typer.Exit(WRONG) from None
        except KeyboardInterrupt:
            err.print("stopped; what is done is kept, and the same command goes on from there")
            raise typer.Exit(INTERRUPTED) from None

    return guarded


def human_bytes(count: float | None) -> str:
    """Bytes in decimal units.

    >>> human_bytes(1_601_312), human_bytes(0), human_bytes(None)
    ('1.6 MB', '0 B', '')
    """
    if count is None:
        return ""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"


def table(title: str, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Callable[[Any], str]]) -> None:
    """Print rows; `columns` gives the heading (also the key) and how a value is written."""
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
    """Epochs a minute."""

    def render(self, task: Task) -> Text:
        """The rate, once there is one."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{60 * speed:.0f} epochs/min", style="progress.data.speed")


@contextmanager
def grid_bar(configs: Sequence[RunConfig], quiet: bool) -> Iterator[Callable[[Update], None]]:
    """A bar over all epochs of a grid, with rate and time left; gives the listener for `run_grid`."""
    weights = {c.name: c.training.epochs * (c.tasks or TASKS.get(c.benchmark, 1)) for c in configs}
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


def finish(outcomes: Sequence[Outcome]) -> None:
    """Say which runs failed, and leave with the code for it if any did."""
    failed = [outcome for outcome in outcomes if outcome.status in ("failed", "busy")]
    for outcome in failed:
        err.print(Text(f"{outcome.run}: {outcome.status}: {outcome.message}", style="red"))
    if failed:
        raise typer.Exit(FAILED)
