"""The lab's acceptance runs, side by side on one machine with a GPU; prints accuracies beside the published ones.

Runs that are mostly projections go to the GPU, runs that are mostly tiny steps to CPU cores. Interrupted runs resume.
"""

import argparse
import threading
from pathlib import Path

from sketchogd.lab import grid, presets, published, report
from sketchogd.lab.configs import RunConfig
from sketchogd.lab.methods import method


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/acceptance"))
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    table = presets.table1(["split-mnist"], seeds=1).runs
    paper = presets.PAPER_TRAINING
    heavy = [run for run in table if run.method.name not in ("sgd", "a-gem")]
    heavy.append(RunConfig("rotated-mnist", method("sketchogd", every=100, rank=1200), paper, 0, "acceptance"))
    light = [run for run in table if run.method.name in ("sgd", "a-gem")]
    for benchmark in ("permuted-mnist", "rotated-mnist", "split-mnist"):
        light.append(RunConfig(benchmark, method("layer-sketch", budget=2_000_000), paper, 0, "acceptance"))

    def work(configs: list[RunConfig], device: str) -> None:
        for outcome in grid.run_grid(configs, options.out, jobs=len(configs), devices=(device,)):
            print(outcome.run, outcome.status, outcome.message, flush=True)

    threads = [threading.Thread(target=work, args=pair) for pair in ((heavy, options.device), (light, "cpu"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for row in report.summary_table(options.out):
        print({key: row[key] for key in row if key in ("benchmark", "method", "mean", "published", "difference", "nbytes", "bytes")})
    print(len(published.TABLE_1), "methods in table 1")


if __name__ == "__main__":
    main()
