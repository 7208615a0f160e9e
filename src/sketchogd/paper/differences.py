"""Runs that look for the cause where our numbers and the published ones differ: the same methods, closer to the paper.

The tables project the joint displacement of 50 steps; here every step is projected, as in the paper. A-GEM on Split
CIFAR-100 treats several heads as the released code does (`published_agem`). Permuted MNIST is run with the permutations
of the released code, which draws them with Python's own generator, so that they can be drawn again.
"""

from dataclasses import dataclass, replace

from sketchogd.lab.methods import Method, method
from sketchogd.lab.runs.config import RunConfig
from sketchogd.paper.settings import PAPER, Names, Preset, checked, table1_method, table2_method, training_for

SEEDS, FEW_SEEDS = 5, 3


@dataclass(frozen=True)
class Suspect:
    """A method as in a table, the first seed of the same run closer to the published ones, and what is closer."""

    table: str
    usual: Method
    closer: RunConfig
    words: str


def suspects(benchmark: str) -> list[Suspect]:
    """The suspected causes that are run on a benchmark."""
    training, own = training_for(benchmark), PAPER[benchmark]
    found = []
    for table, choose in (("table1", table1_method), ("table2", table2_method)):
        for name in own.every_step.get(table, ()):
            usual = choose(name, benchmark)
            closer = RunConfig(benchmark, replace(usual, every=1), training, 0, "causes")
            found.append(Suspect(table, usual, closer, "every step projected"))
    for name in own.released:
        usual = table1_method(name, benchmark)
        closer = RunConfig(benchmark, usual, training, 0, "causes", released=True)
        found.append(Suspect("table1", usual, closer, "permutations of the released code"))
    if own.mixed_heads:
        kept, batch = own.sizes.agem
        mixed_up = method("a-gem-published", per_task=kept, batch=batch)
        closer = RunConfig(benchmark, mixed_up, training, 0, "causes")
        found.append(Suspect("table1", table1_method("a-gem", benchmark), closer, "heads as in the released code"))
    return found


def causes(benchmarks: Names = None, methods: Names = None, seeds: int | None = None) -> Preset:
    """The runs that look for causes; `methods` are names of rows of the tables.

    By default three seeds each, and five where the permutations are the published ones.

    Raises:
        ValueError: unknown benchmark, no seeds, or nothing to look into there.
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
