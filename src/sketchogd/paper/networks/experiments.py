"""The experiments on networks, each a function that returns a `Preset`. First `networks_tuning`, then the others."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sketchogd.lab.methods import Method, method
from sketchogd.lab.names import unknown
from sketchogd.lab.runs.config import RunConfig, Training
from sketchogd.lab.streams import BENCHMARKS, Benchmark
from sketchogd.memory.curvature import CURVATURES
from sketchogd.paper.networks.tries import OPTIONS, VALIDATION, choices, chosen, compared, tried, usual
from sketchogd.paper.settings import Names, Preset, distinct

BEST = 5
"""So many methods, the best on held-out data, have all seeds; the others have one."""


def networks_tuning(benchmarks: Names = None, methods: Names = None, seeds: int = 1) -> Preset:
    """Every try of every method, scored on held-out training data.

    Raises:
        ValueError: unknown benchmark, or a method with nothing to tune.
    """
    runs = [
        held_out(benchmark, each, seed)
        for seed in range(seeds)
        for benchmark in _checked(benchmarks)
        for name in methods or OPTIONS
        for each in tried(name, benchmark)
    ]
    return Preset("networks-tuning", "settings scored on held-out training data", distinct(runs))


def held_out(benchmark: str, settings: Method, seed: int = 0) -> RunConfig:
    """A run that is scored on training data held out from it."""
    known = BENCHMARKS[benchmark]
    return RunConfig(benchmark, settings, known.training, seed, "networks-tuning", validation=VALIDATION)


def networks(benchmarks: Names = None, methods: Names = None, seeds: int | None = None) -> Preset:
    """Plain training, the library's default, and every method as chosen, each task with its head.

    The library and the best of the others on held-out data have all the seeds of the benchmark; the others one.
    """
    runs = []
    for seed in range(seeds or max(known.seeds for known in compared().values())):
        for benchmark in _checked(benchmarks):
            known = BENCHMARKS[benchmark]
            if seed >= (seeds or known.seeds):
                continue
            for name in methods or ("sgd", *OPTIONS):
                if seed == 0 or seeds or name in _with_all_seeds(benchmark):
                    runs += [
                        RunConfig(benchmark, m, known.training, seed, "networks") for m in settings(name, benchmark)
                    ]
    return Preset("networks", "networks people use, all methods in the same bytes", distinct(runs))


def settings(name: str, benchmark: str) -> list[Method]:
    """A method as it is compared: as chosen, and for ours the default as well."""
    if name not in OPTIONS:
        return [method(name)]
    found = chosen(name, benchmark)
    default = usual(benchmark)
    return [default, found] if name == default.name and found != default else [found]


def class_incremental(benchmarks: Names = None, methods: Names = None, seeds: int = 1) -> Preset:
    """The same with one head for the classes of all tasks, where the benchmark has such a stream."""
    preset = networks(benchmarks, methods, seeds)
    runs = [
        replace(run, single_head=True, preset="class-incremental")
        for run in preset.runs
        if "single_head" in BENCHMARKS[run.benchmark].options
    ]
    return Preset("class-incremental", "networks with one head for all tasks", tuple(runs))


def long_streams(benchmarks: Names = None, methods: Names = None, seeds: int = 1, tasks: int = 100) -> Preset:
    """100 permutations of MNIST in turn, an epoch each, in the bytes of ten: where does free space run out?"""
    known = _permuted()
    if benchmarks is not None and known.name not in benchmarks:
        raise ValueError(f"long streams are of {known.name}")
    training = replace(known.training, epochs=1)
    runs = [
        RunConfig(known.name, each, training, seed, "long-streams", tasks=tasks)
        for seed in range(seeds)
        for name in methods or ("sgd", "protect", "gpm-published", "sgp", "owm", "replay")
        for each in settings(name, known.name)
    ]
    return Preset("long-streams", f"{tasks} tasks in a fixed budget", distinct(runs))


def one_pass(benchmarks: Names = None, methods: Names = None, seeds: int = 3) -> Preset:
    """Every example seen once, in batches of one: ORFit beside ours and plain training, 1,000 examples a task."""
    training = Training(epochs=1, batch=1, lr=0.01, curve=False)
    rank = 200
    known: dict[str, Method] = {
        "sgd": method("sgd"),
        "orfit": method("orfit", rank=rank, share=0.1),
        "sketchogd": method("sketchogd", rank=rank),
        "layer-sketch": method("layer-sketch"),
        "protect": method("protect"),
    }
    runs = [
        RunConfig(benchmark, known[name], training, seed, "one-pass", n_train=1000)
        for seed in range(seeds)
        for benchmark in benchmarks or [b.name for b in BENCHMARKS.values() if b.dataset == "mnist-subset"]
        for name in methods or known
    ]
    return Preset("one-pass", "every example seen once", distinct(runs))


Variant = Callable[[RunConfig], RunConfig]


def _with(**options: Any) -> Variant:
    """A memory of a rank in place of the budget, with these options."""
    given = {"rank": 128, **options}
    return lambda run: replace(run, method=method("protect", **given))


def _method(**changes: Any) -> Variant:
    return lambda run: replace(run, method=replace(run.method, **changes))


def _training(**changes: Any) -> Variant:
    return lambda run: replace(run, training=replace(run.training, **changes))


GROUPS: dict[str, dict[str, Variant]] = {
    "curvature": {name: _with(curvature=name) for name in CURVATURES} | {"inputs only": _with(outputs=False)},
    "rank": {str(rank): _with(rank=rank) for rank in (16, 32, 64, 128, 256)},
    "damping": {f"{damping:g}": _with(damping=damping) for damping in (0.005, 0.015, 0.05, 0.15)},
    "strength": {f"{strength:g}": _with(strength=strength) for strength in (1.0, 2.0, 4.0, 8.0, 16.0)},
    "anchor": {name: _with(anchor_dtype=name) for name in ("int8",)} | {"in full": _with()},
    "every": {str(every): _method(every=every) for every in (1, 10, 50, 100)},
    "remembered": {str(n): _method(examples=n) for n in (30, 100, 300, 1000, 3000)},
    "optimizer": {
        "sgd": _training(optimizer="sgd", lr=0.05),
        "momentum": _training(optimizer="momentum", lr=0.02),
        "adamw": _training(optimizer="adamw", lr=1e-3),
    },
    "tasks": {f"{100 // c} tasks": lambda run, c=c: replace(run, per_task=c) for c in (10, 5, 2)},  # type: ignore[misc]
}
"""What is varied one at a time on the smaller of the networks on CIFAR-100, by name: the variants in words."""


def networks_ablations(
    benchmarks: Names = None, methods: Names = None, seeds: int = 1, groups: Sequence[str] | None = None
) -> Preset:
    """One setting of the library's default varied at a time.

    Raises:
        ValueError: an unknown group or benchmark.
    """
    for name in groups or ():
        if name not in GROUPS:
            raise ValueError(unknown("group of ablations", name, GROUPS))
    runs = []
    for seed in range(seeds):
        for benchmark in _checked(benchmarks or [_smallest_with_tasks().name]):
            known = BENCHMARKS[benchmark]
            start = RunConfig(benchmark, usual(benchmark), known.training, seed, "networks-ablations")
            for name in groups or GROUPS:
                if name != "tasks" or "per_task" in known.options:
                    runs += [vary(start) for vary in GROUPS[name].values()]
    return Preset("networks-ablations", "one setting varied at a time", distinct(runs))


def _with_all_seeds(benchmark: str) -> set[str]:
    """Plain training, ours, and the best others on held-out data, once those are known."""
    known = choices().get(benchmark, {})
    others = sorted((name for name in known if name != "protect"), key=lambda name: -known[name]["held_out"])
    return {"sgd", "protect", *others[:BEST]}


def _checked(benchmarks: Names) -> Sequence[str]:
    known = compared()
    for name in benchmarks or ():
        if name not in known:
            raise ValueError(unknown("benchmark of networks", name, known))
    return list(benchmarks or known)


def _permuted() -> Benchmark:
    """The benchmark of networks whose stream has any number of tasks."""
    return next(known for known in compared().values() if known.dataset == "mnist")


def _smallest_with_tasks() -> Benchmark:
    """The smallest network whose stream has a number of classes per task."""
    return min((known for known in compared().values() if "per_task" in known.options), key=lambda k: k.parameters)
