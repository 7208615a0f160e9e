"""The help of the app and of its commands: options under headings, and where lines are short each explanation below.

The headings are the `rich_help_panel` of each option. Typer's own panels need 80 columns, and fold words below.
"""

import os
import re
import shutil
from typing import Any

from typer.core import TyperCommand, TyperGroup

WIDEST, NARROW = 96, 64
"""Lines are no longer than this; below the second explanations go on lines of their own."""


def _fit(formatter: Any) -> None:
    said = os.environ.get("COLUMNS", "")
    formatter.width = min(int(said) if said.isdigit() and int(said) else shutil.get_terminal_size().columns, WIDEST)


def _write(formatter: Any, heading: str, rows: list[tuple[str, str]]) -> None:
    """A heading with names and their explanations below."""
    with formatter.section(heading):
        if formatter.width >= NARROW:
            formatter.write_dl(rows, col_max=26)
            return
        for name, said in rows:
            formatter.write_text(name)
            formatter.indent()
            formatter.indent()
            formatter.write_text(said)
            formatter.dedent()
            formatter.dedent()


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    """Arguments, without their types, then options under their headings; those without one come first."""
    found: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
        panel = getattr(parameter, "rich_help_panel", None) or ("Help" if parameter.name in _ABOUT else usual)
        name, said = record
        found.setdefault(panel, []).append((re.sub(r" <\S+>$", "", name), said.replace("\\[", "[")))
    found["Help"] = found.pop("Help", [])
    for heading, rows in found.items():
        if rows:
            _write(formatter, heading, rows)


_ABOUT = ("help", "version", "install_completion", "show_completion")


class Command(TyperCommand):
    """A command with this help."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What follows the name in the first line: BENCHMARK, not {BENCHMARK}."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, as wide as the terminal."""
        _fit(formatter)
        super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments and options."""
        _write_parameters(self, ctx, formatter)


class Group(TyperGroup):
    """An app with this help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, as wide as the terminal."""
        _fit(formatter)
        super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The commands, each with its first sentence, then the options of the app."""
        commands = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        rows = [(each.name or "", (each.help or "").split("\n\n")[0]) for each in commands if each is not None]
        _write(formatter, "Commands", rows)
        _write_parameters(self, ctx, formatter)
