"""What the command line prints. Results go to standard output; progress, notes and errors to standard error.

* `console`: where lines go, and how wide they may be
* `cells`: numbers as text in a column
* `tables`: rows as a table, as one block per row where that is too wide, or in another form
* `forms`: CSV, Markdown, LaTeX and JSON
* `progress`: a bar on a terminal, lines elsewhere
* `run_table`: the table of a grid of runs
"""

from sketchogd.cli.show.cells import bytes_cell, signed, three_decimals
from sketchogd.cli.show.console import err, note, out, problem, say
from sketchogd.cli.show.forms import Columns, Form, as_json
from sketchogd.cli.show.progress import epochs_of, grid_bar, waiting
from sketchogd.cli.show.tables import table

__all__ = [
    "Columns",
    "Form",
    "as_json",
    "bytes_cell",
    "epochs_of",
    "err",
    "grid_bar",
    "note",
    "out",
    "problem",
    "say",
    "signed",
    "table",
    "three_decimals",
    "waiting",
]
