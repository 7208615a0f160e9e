"""Runs that look for the cause where ours and the published numbers differ: the same methods, closer to the letter.

The tables project the joint displacement of 50 steps; here every step is projected, as the paper has it. And A-GEM on
Split CIFAR-100 does what the released code does with several heads (`published_agem`). Permuted MNIST is run with the
permutations of the released code, which it draws with Python's own generator, so that they can be drawn again.
"""

from dataclasses import dataclass, replace

from sketchogd.lab.methods import Method, method
from sketchogd.lab.runs.config import RunConfig
from sketchogd.paper.settings import SIZES, Names, Preset, checked, table1_method, table2_method, training_for

EVERY_STEP: dict[str, dict[str, tuple[str, ...]]] = {
    "split-mnist": {
        "table1": ("sketchogd-1", "sketchogd-2", "sketchogd-3", "pca-ogd", "random-ogd"),
        "table2": ("sketchogd-2", "ogd"),
    },
    "permuted-mnist": {"table1": ("sketchogd-1", "sketchogd-2", "random-ogd")},
}
"""By benchmark and table, the methods that are run again with a projection after every step."""


SEEDS, FEW_SEEDS = 5, 3

RELEASED_PERMUTATIONS = ("sgd", "sketchogd-1", "sketchogd-2", "random-ogd")
"""Methods of table 1 that are run again on Permuted MNIST with the permutations of the released code."""


@dataclass(frozen=True)
class Suspect:
    """A row of a table as it stands there, the same closer to the published runs (its first seed), and in what."""

    table: str
    usual: Method
    closer: RunConfig
    words: str


def suspects(benchmark: str) -> list[Suspect]:
    """What is run on a benchmark."""
    training = training_for(benchmark)
    found = []
    for table, choose in (("table1", table1_method), ("table2", table2_method)):
        for name in EVERY_STEP.get(benchmark, {}).get(table, ()):
            usual = choose(name, benchmark)
            closer = RunConfig(benchmark, replace(usual, every=1), training, 0, "causes")
            found.append(Suspect(table, usual, closer, "every step projected"))
    if benchmark == "permuted-mnist":
        for name in RELEASED_PERMUTATIONS:
            usual = table1_method(name, benchmark)
            closer = RunConfig(benchmark, usual, training, 0, "causes", released=True)
            found.append(Suspect("table1", usual, closer, "permutations of the released code"))
    if benchmark == "split-cifar100":
        kept, batch = SIZES[benchmark].agem
        mixed_up = method("a-gem-published", per_task=kept, batch=batch)
        closer = RunConfig(benchmark, mixed_up, training, 0, "causes")
        found.append(Suspect("table1", table1_method("a-gem", benchmark), closer, "heads as in the released code"))
    return found


def causes(benchmarks: Names = None, methods: Names = None, seeds: int | None = None) -> Preset:
    """Differences from the published tables, looked into; `methods` are names of the tables' rows.

    Three seeds each, and five where the permutations are the published ones, unless said otherwise.
    """
    most = SEEDS if seeds is None else seeds
    runs = [
        replace(suspect.closer, seed=seed)
        for benchmark in checked(benchmarks, most)
        for seed in range(most)
        for suspect in suspects(benchmark)
        if methods is None or suspect.usual.name in methods
        if seeds is not None or suspect.closer.released or seed < FEW_SEEDS
    ]
    if not runs:
        raise ValueError("no difference from the published tables is looked into there")
    return Preset("causes", "closer to the published runs, where numbers differ", tuple(runs))
