"""Forms of a table for other programs: CSV, Markdown, LaTeX and JSON.

CSV has the values as they are, in full precision; Markdown and LaTeX have them as the table on a terminal shows them.
"""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import typer

Rows = Sequence[Mapping[str, Any]]
Columns = Mapping[str, Callable[[Any], str]]
"""Each heading, also the key in a row, with how its values are written."""

WORDS = frozenset(
    {"benchmark", "method", "name", "note", "variant", "parameter", "tensor", "protected", "purpose", "memory", "shape"}
)
"""Columns of words, on the left; numbers are on the right."""

_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"±": r"$\pm$", "×": r"$\times$", "≥": r"$\geq$", "≤": r"$\leq$", "–": "--", "°": r"$^\circ$", "−": "$-$"},
}


class Form(str, Enum):
    """How a table is printed."""

    table = "table"
    csv = "csv"
    latex = "latex"
    markdown = "markdown"
    json = "json"


_SHORT = {"accuracy_std": "std", "nbytes": "bytes", "host_nbytes": "host"}


def heading(key: str) -> str:
    """The heading of a column for people: "std" beside accuracy for accuracy_std."""
    return _SHORT.get(key, key.replace("_", " "))


def as_csv(rows: Rows, columns: Columns) -> str:
    """The shown columns with their raw values; what is missing is empty.

    >>> as_csv([{"method": "a,b", "accuracy": 0.5}, {"method": "c"}], {"method": str, "accuracy": str})
    'method,accuracy\\n"a,b",0.5\\nc,\\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row.get(key) for key in columns] for row in rows)
    return text.getvalue()


def as_markdown(rows: Rows, columns: Columns) -> str:
    """A table of GitHub's Markdown.

    >>> print(as_markdown([{"method": "a|b", "accuracy": 0.5}], {"method": str, "accuracy": str}), end="")
    | method | accuracy |
    |---|---:|
    | a\\|b | 0.5 |
    """
    lines = [[heading(key) for key in columns]]
    lines += [[write(row.get(key)).replace("|", "\\|") for key, write in columns.items()] for row in rows]
    text = ["| " + " | ".join(line) + " |\n" for line in lines]
    text.insert(1, "|" + "|".join("---" if key in WORDS else "---:" for key in columns) + "|\n")
    return "".join(text)


def as_latex(title: str, rows: Rows, columns: Columns) -> str:
    """A tabular with the rules of booktabs.

    >>> print(as_latex("50 %", [{"method": "a_b", "accuracy": 0.5}], {"method": str, "accuracy": str}), end="")
    % 50 % (needs \\usepackage{booktabs})
    \\begin{tabular}{lr}
    \\toprule
    method & accuracy \\\\
    \\midrule
    a\\_b & 0.5 \\\\
    \\bottomrule
    \\end{tabular}
    """

    def line(cells: Sequence[str]) -> str:
        return " & ".join("".join(_LATEX.get(letter, letter) for letter in cell) for cell in cells) + r" \\"

    lines = [f"% {title} (needs \\usepackage{{booktabs}})".replace("\n", " ")]
    lines += [rf"\begin{{tabular}}{{{''.join('l' if key in WORDS else 'r' for key in columns)}}}", r"\toprule"]
    lines += [line([heading(key) for key in columns]), r"\midrule"]
    lines += [line([write(row.get(key)) for key, write in columns.items()]) for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def as_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))
