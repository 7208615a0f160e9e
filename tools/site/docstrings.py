"""Examples in docstrings as blocks of code: Markdown would take `>>>` for quotations."""

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"^(?P<indent> *)>>> ")


def fenced(text: str) -> str:
    r"""The text with a fence around every example, which ends at a blank line.

    >>> fenced("Add.\n\n>>> 1 + 1\n2\n")
    'Add.\n\n```pycon\n>>> 1 + 1\n2\n```\n'
    """
    lines: list[str] = []
    indent: str | None = None
    for line in [*text.split("\n"), ""]:
        example = EXAMPLE.match(line)
        if indent is None and example:
            indent = example["indent"]
            lines += [""] * bool(lines and lines[-1].strip()) + [indent + "```pycon"]
        elif indent is not None and not line.strip():
            lines.append(indent + "```")
            indent = None
        lines.append(line)
    return "\n".join(lines[:-1])


class Examples(Extension):
    """Fences the examples of every docstring that griffe reads."""

    def on_instance(self, *, obj: Object, **kwargs: Any) -> None:
        """Change the docstring of an object before it is parsed."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)
