"""The command line: `sketchogd`, or `python -m sketchogd`. The report's figures need the extra `sketchogd[lab]`.

* `show/`: tables in several forms, and progress
* `options/`: option types, what shells complete, the help, and the guard that commands share
* `carry_out`: what can be done is checked, then done, then printed
* `run`: demo, run and reproduce
* `protect_check`: what protects a user's model, before training
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
        raise SystemExit(f"the command line needs {needed}: pip install {needed}")


__all__ = ["app"]
