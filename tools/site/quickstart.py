"""Run the program of docs/quickstart.md as it stands, and take pictures of the page that it writes.

    python -m tools.site.quickstart docs/images      # quickstart-1400.png and quickstart-390.png

The program runs in a folder of its own, which is deleted afterwards.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.site import screenshots

PAGE = Path("docs/quickstart.md")


def program(page: Path = PAGE) -> str:
    """The program, the one block of Python on the page."""
    (found,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return str(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and take the pictures; 1 if the page has a problem."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for the pictures")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "quickstart.py").write_text(program(), encoding="utf-8")
        subprocess.run([sys.executable, "quickstart.py"], cwd=folder, check=True)
        page = Path(folder) / "quickstart.html"
        return screenshots.main([str(page), "--out", str(options.out), "--light", "--tall", "1600"])


if __name__ == "__main__":
    sys.exit(main())
