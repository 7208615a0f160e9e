"""Would the paper's released code have finished our A-GEM runs? It stops where a projection is not exact enough.

After each projection g − (gᵀr / rᵀr) r on the half-space of the memory's gradient r, `algos/gem.py` of
github.com/azizanlab/sketchogd (2023) asserts |gᵀr| < 1e-4 in float32, whatever the lengths of g and r are. Here table
1's A-GEM runs are done again, side by side, and what is left of gᵀr is measured:

    python benchmarks/agem_assertion.py --benchmark split-mnist

prints for each seed the accuracy, the largest |gᵀr| that was left and the first step at which it was 1e-4 or more.
"""

import argparse
import tempfile
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

from sketchogd.lab import presets, recalling, sidebyside
from sketchogd.lab.metrics import Summary

ALLOWED = 1e-4


class Watched:
    """`project_on_half_spaces_` that looks at what it leaves: the worst so far (S,), and the steps that have it."""

    def __init__(self, runs: int) -> None:
        self.project = recalling.project_on_half_spaces_
        self.worst = torch.zeros(runs)
        self.first: list[int | None] = [None] * runs
        self.steps = 0

    def __call__(self, found: dict[str, Tensor], which: Tensor, recalled: dict[str, Tensor]) -> None:
        """Project, and measure the runs whose gradients were changed; others are not asserted anything of."""
        before = self._products(found, which, recalled)
        self.project(found, which, recalled)
        left = self._products(found, which, recalled).abs() * (before < 0)
        self.steps += 1
        self.worst[which] = torch.maximum(self.worst[which], left)
        for run in which[left >= ALLOWED].tolist():
            if self.first[run] is None:
                self.first[run] = self.steps

    @staticmethod
    def _products(found: dict[str, Tensor], which: Tensor, recalled: dict[str, Tensor]) -> Tensor:
        """gᵀr as float32 gives it, from vectors of all parameters."""
        g = torch.cat([found[name][which].flatten(1) for name in recalled], 1)
        r = torch.cat([t.flatten(1) for t in recalled.values()], 1)
        return torch.stack([torch.dot(*pair) for pair in zip(g, r, strict=True)])


def main() -> None:
    """Do the runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--benchmark", default="split-mnist", help="one with a single head")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    runs = presets.table1([given.benchmark], ["a-gem"], given.seeds).runs
    watched = Watched(len(runs))
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(recalling, "project_on_half_spaces_", watched):
        summaries = sidebyside.run(runs, [Path(folder) / run.name for run in runs])
    print("| seed | accuracy | largest left | first step at 1e-4 or more |\n|---|---:|---:|---:|")
    for run, summary, worst, first in zip(runs, summaries, watched.worst.tolist(), watched.first, strict=True):
        accuracy = f"{summary.average_accuracy:.3f}" if isinstance(summary, Summary) else "diverged"
        print(f"| {run.seed} | {accuracy} | {worst:.1e} | {first or 'none'} of {watched.steps:,} |")


if __name__ == "__main__":
    main()
