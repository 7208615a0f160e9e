"""docs/results.md, and the tables of README.md and docs/speed.md, from `results/` and `benchmarks/results/`.

python -m tools.results            # print the page
python -m tools.results --write    # write the page, its figures and the tables
python -m tools.results --check    # only say whether they agree; exit code 1 if not
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools import results_page, speed_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Print, write or check, as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.results", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path("results"), help="the folder with the bundles")
    parser.add_argument("--repository", type=Path, default=Path("."), help="where docs/results.md and README.md are")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true")
    what.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    if options.write:
        for path in [*results_page.write(options.folder, options.repository), *speed_table.write(options.repository)]:
            print(path)
    elif options.check:
        wrong = results_page.check(options.folder, options.repository) + speed_table.check(options.repository)
        for line in wrong:
            print(line)
        print("they do not agree: python -m tools.results --write" if wrong else "they agree")
        return int(bool(wrong))
    else:
        print(results_page.page(options.folder), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
