"""The blocks of Python on a page, and running them as they stand."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def blocks(page):
    """The blocks of Python on a page of docs/."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)


def run(page, names):
    """Run a page's blocks, one after the other, given these names; the names that they left."""
    for block in blocks(page):
        exec(compile(block, page, "exec"), names)
    return names
