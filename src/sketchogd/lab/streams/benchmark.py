"""What the lab knows of each of its benchmarks, one record each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: its name, its title, how many tasks and parameters it has, and the tasks drawn along training."""

    name: str
    title: str
    tasks: int
    parameters: int
    curves: tuple[int, ...]


_ALL = (
    Benchmark("rotated-mnist", "Rotated MNIST", 10, 113_610, (1, 5, 9)),
    Benchmark("permuted-mnist", "Permuted MNIST", 10, 113_610, (1, 5, 9)),
    Benchmark("split-mnist", "Split MNIST", 5, 112_802, (1, 3, 5)),
    Benchmark("split-cifar100", "Split CIFAR-100", 20, 1_601_500, (2, 9, 18)),
)

BENCHMARKS: dict[str, Benchmark] = {each.name: each for each in _ALL}
"""Every benchmark by its name, in the order in which tables list them."""


def record(name: str) -> Benchmark:
    """The record of a benchmark; KeyError for an unknown name."""
    return BENCHMARKS[name]
