"""Runs that look for the cause where ours and the published numbers differ: the same methods, closer to the letter.

The tables project the joint displacement of 50 steps; here every step is projected, as the paper has it. And A-GEM on
Split CIFAR-100 does what the released code does with several heads (`published_agem`).
"""

from dataclasses import replace

from sketchogd.lab.configs import RunConfig
from sketchogd.lab.methods import Method, method
from sketchogd.lab.settings import SIZES, Names, Preset, checked, table1_method, table2_method, training_for

EVERY_STEP: dict[str, dict[str, tuple[str, ...]]] = {
    "split-mnist": {
        "table1": ("sketchogd-1", "sketchogd-2", "sketchogd-3", "pca-ogd", "random-ogd"),
        "table2": ("sketchogd-2", "ogd"),
    },
    "permuted-mnist": {"table1": ("sketchogd-1", "sketchogd-2", "random-ogd")},
}
"""By benchmark and table, the methods that are run again with a projection after every step."""


def suspects(benchmark: str) -> list[tuple[str, Method, Method]]:
    """What is run on a benchmark: (table, the method as it stands in the table, and as it is run here)."""
    found = []
    for table, choose in (("table1", table1_method), ("table2", table2_method)):
        for name in EVERY_STEP.get(benchmark, {}).get(table, ()):
            usual = choose(name, benchmark)
            found.append((table, usual, replace(usual, every=1)))
    if benchmark == "split-cifar100":
        kept, batch = SIZES[benchmark].agem
        found.append(
            ("table1", table1_method("a-gem", benchmark), method("a-gem-published", per_task=kept, batch=batch))
        )
    return found


def causes(benchmarks: Names = None, methods: Names = None, seeds: int = 3) -> Preset:
    """Differences from the published tables, looked into; `methods` are names of the tables' rows."""
    runs = [
        RunConfig(benchmark, changed, training_for(benchmark), seed, "causes")
        for seed in range(seeds)
        for benchmark in checked(benchmarks, seeds)
        for _, usual, changed in suspects(benchmark)
        if methods is None or usual.name in methods
    ]
    if not runs:
        raise ValueError("no difference from the published tables is looked into there")
    return Preset("causes", "closer to the published runs, where numbers differ", tuple(runs))
