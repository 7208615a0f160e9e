"""What a shell completes: `sketchogd --install-completion` once, then TAB.

Each function gets the word so far and returns the candidates that begin with it; in a list with commas the last name is
completed.
"""

from collections.abc import Callable, Iterable

import typer

from sketchogd.cli.options.devices import here
from sketchogd.lab import speed
from sketchogd.lab.data import datasets
from sketchogd.lab.methods import KINDS, listed
from sketchogd.lab.runs.config import OPTIMIZERS
from sketchogd.lab.runs.plugins import load
from sketchogd.lab.streams import BENCHMARKS
from sketchogd.paper import presets
from sketchogd.paper.ablations import ABLATIONS

Names = Callable[[], Iterable[str]]
Completion = Callable[[typer.Context, str], list[str]]


def one_of(names: Names) -> Completion:
    """Complete one name."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        _load_plugins(ctx)
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def several_of(names: Names) -> Completion:
    """Complete the last of several names with commas; those that are there already are not offered again."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        _load_plugins(ctx)
        before, comma, last = incomplete.rpartition(",")
        there = before.split(",")
        return [before + comma + name for name in names() if name.startswith(last) and name not in there]

    return complete


def _load_plugins(ctx: typer.Context) -> None:
    """Register what plugins on the same line have; those that cannot be loaded have no names."""
    try:
        load([str(path) for path in ctx.params.get("plugin") or ()])
    except ImportError:
        return


def method_option(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete `rank=` after `--option`, for the method on the same line."""
    _load_plugins(ctx)
    # Where the option is last and has no value yet, positional words are left over.
    kind = next((KINDS[word] for word in [ctx.params.get("method"), *ctx.args] if word in KINDS), None)
    known = {} if kind is None else {**kind.options, **kind.later}
    return [f"{name}=" for name in known if name.startswith(incomplete)]


benchmark = one_of(lambda: BENCHMARKS)
benchmarks = several_of(lambda: BENCHMARKS)
method = one_of(listed)
methods = several_of(listed)
experiment = one_of(lambda: presets.PRESETS)
groups = several_of(lambda: ABLATIONS)
optimizer = one_of(lambda: OPTIMIZERS)
device = several_of(here)
dataset = one_of(lambda: datasets.NAMES)
speeds = one_of(speed.groups)
