"""Examples in docstrings as blocks of code: Markdown would take `>>>` for quotations."""

import re

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
