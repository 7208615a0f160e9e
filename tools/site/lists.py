"""Lists as repository browsers read them.

There a list may follow a paragraph at once, and its marks may be indented by a blank. Python-Markdown wants a blank
line before it and would take the list as more of the paragraph.
"""

import re

MARK = re.compile(r"^ {0,3}([*+-]|\d+\.) +\S")
FENCE = re.compile(r"^ *(```|~~~)")


def spaced(text: str) -> str:
    r"""The text with a blank line before every list that follows a paragraph.

    >>> spaced("Two things:\n - one,\n   in two lines\n - two\n\nThe end.")
    'Two things:\n\n- one,\n  in two lines\n- two\n\nThe end.'
    """
    lines: list[str] = []
    code, indent = False, 0  # the blanks before the marks of the list that this is in; they are taken away
    inside = False
    for line in text.split("\n"):
        fence = FENCE.match(line) is not None
        if not (code or fence):
            mark = MARK.match(line)
            blank = not line.strip()
            if mark and not inside:
                if lines and lines[-1].strip():
                    lines.append("")
                inside, indent = True, len(line) - len(line.lstrip())
            elif blank or line.startswith("#"):
                inside = inside and blank
            elif lines and not lines[-1].strip() and not line.startswith(" " * (indent + 1)) and not mark:
                inside = False
            if inside and line.startswith(" " * indent):
                line = line[indent:]
        code ^= fence
        lines.append(line)
    return "\n".join(lines)
