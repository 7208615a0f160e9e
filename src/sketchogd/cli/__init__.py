"""The command line: `sketchogd`, or `python -m sketchogd.cli`. Needs the extra `sketchogd[lab]`."""

from typing import Any

try:
    from sketchogd.cli.commands import app
except ModuleNotFoundError as missing:
    if missing.name not in ("typer", "rich", "click"):
        raise
    needed = missing.name

    def app(*_: Any, **__: Any) -> None:  # type: ignore[misc]
        """Say what is missing."""
        raise SystemExit(f"the command line needs {needed}: pip install 'sketchogd[lab]'")


__all__ = ["app"]
