"""The app: every command of `sketchogd`, in the order in which the help lists them."""

from typing import Annotated

import typer

from sketchogd import __version__
from sketchogd.cli.bench import bench
from sketchogd.cli.data import data
from sketchogd.cli.inspect import inspect
from sketchogd.cli.merge import merge
from sketchogd.cli.report import report
from sketchogd.cli.run import METHODS, demo, reproduce, run

app = typer.Typer(
    name="sketchogd",
    help="Continual learning within a fixed number of bytes: run, compare and reproduce.",
    no_args_is_help=True,
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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which one.")
    ] = False,
) -> None:
    pass


app.command()(demo)
app.command(epilog=METHODS)(run)
app.command(epilog=METHODS)(reproduce)
app.command()(report)
app.command()(inspect)
app.command()(bench)
app.command()(data)
app.command()(merge)
