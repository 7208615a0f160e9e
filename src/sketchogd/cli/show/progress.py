"""How far a grid of runs is: a bar on a terminal, and lines where nothing can be overwritten, as in a log."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from sketchogd.cli.show.console import err, note, room
from sketchogd.lab.runs.config import RunConfig
from sketchogd.lab.runs.grid import Listener, Update
from sketchogd.lab.streams import BENCHMARKS

STEP, SECONDS = 0.1, 60.0
"""A line is due after this share of all epochs, or after so many seconds."""

WIDE = 72
"""From so many columns on the bar has a rate."""


class Tally:
    """How much of a grid is done, in epochs, and how long the rest will take at the rate so far.

    Args:
        weights: epochs of each run.
        clock: seconds.
    """

    def __init__(self, weights: dict[str, int], clock: Callable[[], float] = time.monotonic) -> None:
        self.weights = weights
        self.whole = max(sum(weights.values()), 1)
        self.clock = clock
        self.began = clock()
        self.shares: dict[str, float] = {}
        self.before = 0.0

    def add(self, update: Update) -> None:
        """Take note of how far a run is; what was finished before does not count for the rate."""
        self.shares[update.run] = update.share
        if update.doing == "skipped":
            self.before += self.weights.get(update.run, 0)

    @property
    def epochs(self) -> float:
        """Epochs that are done."""
        return sum(self.weights.get(name, 0) * share for name, share in self.shares.items())

    @property
    def share(self) -> float:
        """The share of all epochs that is done."""
        return min(self.epochs / self.whole, 1.0)

    @property
    def left(self) -> float | None:
        """Seconds that the rest will take; None while nothing is known."""
        done = self.epochs - self.before
        return (self.clock() - self.began) * (self.whole - self.epochs) / done if done > 0 else None


class Lines:
    """A line when a run begins or ends, and whenever `STEP` more is done or `SECONDS` have passed."""

    def __init__(self, tally: Tally, tell: Callable[[str], None]) -> None:
        self.tally, self.tell = tally, tell
        self.begun: set[str] = set()
        self.steps, self.at = 0, tally.clock()

    def listen(self, update: Update) -> None:
        """Take news of a run."""
        self.tally.add(update)
        if update.doing == "skipped":
            return
        ended, fresh = update.share >= 1.0, update.run not in self.begun
        if ended and update.doing not in ("finished", "failed", "busy"):
            return  # the last news of a run but one
        self.begun.add(update.run)
        share, now = self.tally.share, self.tally.clock()
        steps = int(share / STEP + 1e-9)
        if fresh or ended or steps > self.steps or now >= self.at + SECONDS:
            self.steps, self.at = steps, now
            left = self.tally.left
            rest = "" if left is None or share >= 1.0 else f", about {duration(left)} left"
            self.tell(f"{share:4.0%}  {update.run.replace('/', ' ')}: {update.doing}{rest}")


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(8.2), duration(150), duration(7300)
    ('8 s', '2 min', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


class _Rate(ProgressColumn):
    """Epochs per minute."""

    def render(self, task: Task) -> Text:
        """The rate, once there is one."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{60 * speed:.0f} epochs/min", style="progress.data.speed")


@contextmanager
def grid_bar(configs: Sequence[RunConfig], quiet: bool) -> Iterator[Listener]:
    """Progress over all epochs of a grid, on standard error; yields the listener for `run_grid`."""
    tally = Tally({config.name: epochs_of(config) for config in configs})
    if quiet:
        yield tally.add
    elif err.is_terminal:
        with _bar(tally) as listener:
            yield listener
    else:
        yield Lines(tally, note).listen


@contextmanager
def _bar(tally: Tally) -> Iterator[Listener]:
    width = room(err) or WIDE
    words = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    columns: list[ProgressColumn] = [TextColumn("{task.description}", table_column=words)]
    columns += [BarColumn(40 if width >= WIDE else 8), TextColumn("{task.percentage:>3.0f}%")]
    columns += [_Rate()] if width >= WIDE else []
    columns += [TimeRemainingColumn(compact=width < WIDE, elapsed_when_finished=True)]
    with Progress(*columns, console=err, speed_estimate_period=120, expand=True) as progress:
        bar = progress.add_task("starting", total=tally.whole)

        def listen(update: Update) -> None:
            tally.add(update)
            name = update.run.split("/")[1] if width >= WIDE else update.run.split("/")[1].split(",")[0]
            progress.update(bar, completed=tally.epochs, description=f"{name}: {update.doing}")

        yield listen


@contextmanager
def waiting(words: str) -> Iterator[Callable[[str], None]]:
    """Say what is going on while there is nothing else to see; yields a function that changes the words."""
    if err.is_terminal:
        with err.status(words) as status:
            yield status.update
    else:
        note(words)
        yield note


def epochs_of(config: RunConfig) -> int:
    """Epochs of a run over all of its tasks; an unknown benchmark counts as one task."""
    known = BENCHMARKS[config.benchmark].tasks if config.benchmark in BENCHMARKS else 1
    return config.training.epochs * (config.tasks or known)
