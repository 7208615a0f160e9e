"""Run the campaign, or parts of it, and write the counts as JSON."""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tools.campaign import faults, files, inputs, kills, page, pickles, processes
from tools.campaign.children import BAD, Attempt, attempts

Making = Callable[[Path, int], Attempt]

PARTS: dict[str, tuple[str, float, Making]] = {
    "files damaged": ("files", 0.5, lambda folder, seed: files.fuzzing(folder, seed, forged=False)),
    "files forged": ("files", 0.5, lambda folder, seed: files.fuzzing(folder, seed, forged=True)),
    "kills while saving": ("kills", 0.8, kills.saving),
    "kills while training": ("kills", 0.02, kills.training),
    "kills while reporting": ("kills", 0.09, kills.reporting),
    "kills while packing": ("kills", 0.09, kills.packing),
    "pickles": ("pickles", 1.0, pickles.unpickling),
    "faults of files": ("faults", 1.0, faults.disks),
    "wrong batches": ("faults", 1.0, inputs.batches),
    "processes": ("faults", 0.09, processes.disagreeing),
}
"""Each part: the option that says how many attempts, its share of them, and what makes the attempts."""

QUICK = {"files": 240, "kills": 40, "pickles": 0, "faults": 34}


def campaign(numbers: dict[str, int], seed: int, only: Sequence[str] = ()) -> dict[str, Any]:
    """Do every part so many times; returns the counts by part."""
    torch.set_num_threads(1)
    found = {}
    for name, (option, share, make) in PARTS.items():
        n = round(numbers[option] * share)
        if n and (not only or name in only):
            start = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                outcomes = attempts(lambda folder=Path(folder), make=make: make(folder, seed), n)  # type: ignore[misc]
            found[name] = {**outcomes.plain(), "seconds": round(time.monotonic() - start)}
    return {"seed": seed, "parts": found}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code is 1 if there was anything that must not be."""
    parser = argparse.ArgumentParser(prog="python -m tools.campaign", description=__doc__)
    for name, n in {"files": 10_000, "kills": 1_000, "pickles": 10_000, "faults": 100}.items():
        parser.add_argument(f"--{name}", type=int, default=n, help=f"how many; default {n:,}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a small part, in about half a minute")
    parser.add_argument(
        "--only", action="append", default=[], choices=list(PARTS), help="only this part; may be repeated"
    )
    parser.add_argument(
        "--out", type=Path, help=f"where the counts go, for the docs {page.COUNTS.name}; other parts in it are kept"
    )
    options = parser.parse_args(arguments)
    numbers = QUICK if options.quick else {name: getattr(options, name) for name in QUICK}
    found = campaign(numbers, options.seed, options.only)
    if options.out is not None and options.out.exists():
        before = json.loads(options.out.read_text(encoding="utf-8"))
        found["parts"] = {**before["parts"], **found["parts"]}
        found["parts"] = {name: found["parts"][name] for name in PARTS if name in found["parts"]}
    text = json.dumps(found, indent=1) + "\n"
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
        if options.out.resolve() == page.COUNTS:
            page.write(found)
    return int(any(part[kind] for part in found["parts"].values() for kind in BAD))


if __name__ == "__main__":
    raise SystemExit(main())
