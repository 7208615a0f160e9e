"""The app: every command of `sketchogd`, in the order in which the help lists them."""

from typing import Annotated

import typer

from sketchogd import __version__
from sketchogd.cli.bench import bench
from sketchogd.cli.data import data
from sketchogd.cli.inspect import inspect
from sketchogd.cli.merge import merge
from sketchogd.cli.options.help import Command, Group
from sketchogd.cli.protect_check import protect_check
from sketchogd.cli.report import report
from sketchogd.cli.run import METHODS, demo, reproduce, run

app = typer.Typer(
    name="sketchogd",
    cls=Group,
    help="Continual learning within a fixed number of bytes: run, compare and reproduce.",
    epilog="Exit codes: 0 done, 1 a run failed or something is unprotected, 2 it cannot be done as given, "
    "3 the time was up, 130 Ctrl-C.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command(cls=Command)(demo)
app.command(cls=Command, epilog=METHODS)(run)
app.command(cls=Command, epilog=METHODS)(reproduce)
app.command(cls=Command)(report)
app.command("protect-check", cls=Command)(protect_check)
app.command(cls=Command)(inspect)
app.command(cls=Command)(merge)
app.command(cls=Command)(data)
app.command(cls=Command)(bench)
