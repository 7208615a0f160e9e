"""The command line: `sketchogd`, or `python -m sketchogd.cli`. Needs the extra `sketchogd[lab]`.

* `show`: tables, JSON and progress bars
* `options`: option types and the guard that commands share
* `run`: demo, run and reproduce; `run_table`: the table that they print
* `report`, `inspect`, `bench`, `data`, `merge`: one command each
* `app`: all of them, in the order of the help
"""

from typing import Any

try:
    from sketchogd.cli.app import app
except ModuleNotFoundError as missing:
    if missing.name not in ("typer", "rich", "click"):
        raise
    needed = missing.name

    def app(*_: Any, **__: Any) -> None:  # type: ignore[misc]
        """Say what is missing."""
        raise SystemExit(f"the command line needs {needed}: pip install 'sketchogd[lab]'")


__all__ = ["app"]
