"""The paper's experiments and ours, each a function that returns a `Preset`: a name and the runs it consists of.

Memory settings are in `settings`, the paper's numbers in `published`, our own experiments in `equal_bytes`, `goals`,
`tuning`, `ablations` and `differences`. The paper projects every step; these presets project the joint displacement of
50, which meets the same constraint with a fiftieth of the projections. With `--every 1` every step is projected.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sketchogd.lab.methods import KINDS, Method, method
from sketchogd.lab.runs.config import RunConfig, Training
from sketchogd.lab.streams.benchmarks.rotated_mnist import ROTATED_MNIST
from sketchogd.paper import published
from sketchogd.paper.ablations import ablations
from sketchogd.paper.differences import causes
from sketchogd.paper.equal_bytes import equal_bytes
from sketchogd.paper.goals import goals
from sketchogd.paper.networks import (
    class_incremental,
    long_streams,
    networks,
    networks_ablations,
    networks_tuning,
    one_pass,
)
from sketchogd.paper.settings import SIZES, Names, Preset, default_method, grid, table1_method, table2_method
from sketchogd.paper.tuning import ridges

__all__ = [
    "PRESETS",
    "Preset",
    "ablations",
    "causes",
    "changed",
    "class_incremental",
    "curves",
    "default_method",
    "demo",
    "equal_bytes",
    "goals",
    "long_streams",
    "networks",
    "networks_ablations",
    "networks_tuning",
    "one_pass",
    "ridges",
    "spectra",
    "table1",
    "table2",
]


def table1(benchmarks: Names = None, methods: Names = None, seeds: int = 5) -> Preset:
    """Table 1: the paper's methods where sketches see every training gradient."""
    runs = grid("table1", benchmarks, methods or tuple(published.TABLE_1), seeds, table1_method)
    return Preset("table1", "experiment 1: every training gradient", runs)


def table2(benchmarks: Names = None, methods: Names = None, seeds: int = 5) -> Preset:
    """Table 2: the paper's methods on the same 4,800 gradients."""
    runs = grid("table2", benchmarks, methods or tuple(published.TABLE_2), seeds, table2_method)
    return Preset("table2", "experiment 2: the same 4,800 gradients for all", runs)


def spectra(benchmarks: Names = None, methods: Names = None, seeds: int = 1) -> Preset:
    """The figure of singular values: 4,800 gradients of each benchmark, as OGD keeps them."""

    def kept(name: str, benchmark: str) -> Method:
        return method(name, examples=SIZES[benchmark].compressed)

    runs = grid("spectra", benchmarks, methods or ("ogd",), seeds, kept)
    return Preset("spectra", "singular values of 4,800 gradients", runs)


def curves(benchmarks: Names = None, methods: Names = None, seeds: int = 1) -> Preset:
    """The figures of accuracy along training: the runs of table 1, evaluated after every epoch."""
    runs = grid("curves", benchmarks, methods or tuple(published.TABLE_1), seeds, table1_method)
    return Preset("curves", "accuracy of chosen tasks along training", runs)


def demo(seeds: int = 1) -> Preset:
    """Two minutes on two cores: five rotations of the embedded MNIST, 15 degrees apart, and five methods."""
    chosen = [
        method("sgd"),
        method("ogd", examples=60),
        method("sketchogd", rank=150, examples=400),
        method("layer-sketch"),
        method("a-gem", per_task=120, batch=30),
    ]
    training = Training(epochs=5, lr=0.01)
    size: dict[str, Any] = {"tasks": 5, "n_train": 2000, "n_test": 2000, "degrees": 15.0}
    runs = [
        RunConfig(ROTATED_MNIST.name, settings, training, seed, "demo", **size)
        for seed in range(seeds)
        for settings in chosen
    ]
    return Preset("demo", "Rotated MNIST in two minutes", tuple(runs))


PRESETS: dict[str, Callable[..., Preset]] = {
    "table1": table1,
    "table2": table2,
    "spectra": spectra,
    "curves": curves,
    "equal-bytes": equal_bytes,
    "goals": goals,
    "ridges": ridges,
    "ablations": ablations,
    "causes": causes,
    "networks-tuning": networks_tuning,
    "networks": networks,
    "class-incremental": class_incremental,
    "long-streams": long_streams,
    "one-pass": one_pass,
    "networks-ablations": networks_ablations,
}
"""Every experiment of `sketchogd reproduce`."""


def changed(preset: Preset, *, every: int | None = None, epochs: int | None = None) -> Preset:
    """The preset with another number of steps between projections, or of epochs."""
    runs = []
    for run in preset.runs:
        settings = run.method
        if every is not None and KINDS[settings.name].every != 1:  # methods without a projection stay
            settings = replace(settings, every=every)
        training = run.training if epochs is None else replace(run.training, epochs=epochs)
        runs.append(replace(run, method=settings, training=training))
    return replace(preset, runs=tuple(runs))
