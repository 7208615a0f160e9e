"""`sketchogd pack` and `sketchogd results`: from run folders to small files, and from these to the published page."""

from pathlib import Path
from typing import Annotated

import typer

from sketchogd.cli import show


@show.friendly
def pack(
    runs: Annotated[Path, typer.Argument(help="A folder with run folders, or bundles, at or below it.")],
    out: Annotated[Path, typer.Argument(help="Where the bundles are: OUT/PRESET/BENCHMARK.json.")] = Path("results"),
) -> None:
    """Add the finished runs below RUNS to small files that can be kept in a repository; what is there stays."""
    from sketchogd.lab import bundles

    if not runs.exists():
        raise ValueError(f"{runs}: no such folder")
    written = bundles.pack(runs, out)
    if not written:
        raise ValueError(f"{runs}: expected finished runs here or below, found none")
    for path, (packed, whole) in sorted(written.items()):
        show.err.print(f"{path}: {packed} packed, {whole} in all, {path.stat().st_size:,} bytes", soft_wrap=True)


@show.friendly
def results(
    folder: Annotated[Path, typer.Argument(help="The folder with the bundles.")] = Path("results"),
    write: Annotated[bool, typer.Option("--write", help="Write the page, its figures and the table.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only say whether they agree; exit code 1 if not.")] = False,
    repository: Annotated[Path, typer.Option(help="Where docs/results.md and README.md are.")] = Path("."),
) -> None:
    """Make docs/results.md and the README's tables from the records; without --write, print the page."""
    from sketchogd.lab import results_page, speed_table

    if write and check:
        raise ValueError("give one of --write and --check")
    if write:
        for path in [*results_page.write(folder, repository), *speed_table.write(repository)]:
            show.err.print(str(path), soft_wrap=True)
    elif check:
        wrong = results_page.check(folder, repository) + speed_table.check(repository)
        for line in wrong:
            show.err.print(line, soft_wrap=True)
        show.err.print("they do not agree: sketchogd results --write" if wrong else "they agree")
        raise typer.Exit(show.FAILED if wrong else 0)
    else:
        typer.echo(results_page.page(folder), nl=False)
