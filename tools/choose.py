"""Which settings the comparison of networks uses: of each method's tries, the best on held-out training data.

python -m tools.choose            # print them
python -m tools.choose --write    # write src/sketchogd/paper/networks/chosen.json
python -m tools.choose --check    # only say whether that file agrees; exit code 1 if not
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sketchogd.paper.networks import tries
from sketchogd.paper.networks.experiments import held_out
from sketchogd.storage import atomic
from tools.evidence import Evidence


def choices(found: Evidence) -> dict[str, dict[str, dict[str, Any]]]:
    """By benchmark and method: the number of the best try, its held-out accuracy, and how many were run.

    A try that diverged counts as run. Equal ones: the first. Methods of which not all tries were run are left out.
    """
    chosen: dict[str, dict[str, dict[str, Any]]] = {}
    for benchmark in tries.compared():
        for name in tries.OPTIONS:
            runs = [held_out(benchmark, each) for each in tries.tried(name, benchmark)]
            scores = [None if (cell := found.cell(run)) is None else cell.accuracy.mean for run in runs]
            if not all(s is not None or found.diverged(run) for s, run in zip(scores, runs, strict=True)):
                continue
            if all(score is None for score in scores):
                continue
            best = max(range(len(scores)), key=lambda i: -1.0 if scores[i] is None else scores[i])  # type: ignore[arg-type,return-value]
            entry = {"try": best, "held_out": round(float(scores[best] or 0.0), 4), "tries": len(scores)}
            chosen.setdefault(benchmark, {})[name] = entry
    return chosen


def text(found: Evidence) -> str:
    """The text of chosen.json."""
    return json.dumps(choices(found), indent=1) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print, write or check, as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.choose", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path("results"), help="the folder with the bundles")
    parser.add_argument("--out", type=Path, default=tries.CHOSEN, help="the file")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true")
    what.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    made = text(Evidence.load(options.folder))
    if options.write:
        atomic.write_bytes(options.out, made.encode())
        print(options.out)
    elif options.check:
        same = (options.out.read_text() if options.out.exists() else "{}\n") == made
        print("they agree" if same else "they do not agree: python -m tools.choose --write")
        return int(not same)
    else:
        print(made, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
