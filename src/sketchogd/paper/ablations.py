"""Ablations: one setting varied at a time, on Rotated and Split MNIST, one seed unless more are asked for.

Every ablation is a list of `Variant`s; the usual setting belongs to most of them and is run once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sketchogd.budget import ANCHORS
from sketchogd.lab.methods import KINDS, Method
from sketchogd.lab.names import unknown
from sketchogd.lab.runs.config import RunConfig, Training
from sketchogd.paper.settings import PAPER, Names, Preset, checked, default_method, distinct, training_for

BENCHMARKS = tuple(name for name, own in PAPER.items() if own.ablated)
ADAM: dict[str, Any] = {"optimizer": "adam", "lr": 1e-4}
"""Adam's step is about lr whatever the gradient, so it needs a smaller one than SGD."""

OUTPUT_WORDS = {
    "every": "every logit",
    "true": "true logit",
    "predicted": "largest logit",
    "loss": "loss",
    "margin": "true logit minus the largest other",
    "random": "one random combination of logits",
}
"""The outputs that are compared: every logit, or one of `outputs.OUTPUTS`."""


@dataclass(frozen=True)
class Variant:
    """One line of an ablation: the setting that is varied, in words, and the method and training it stands for."""

    words: str
    method: Method
    training: Training


@dataclass(frozen=True)
class Ablation:
    """A question, and the variants that answer it on a benchmark."""

    title: str
    variants: Callable[[str], list[Variant]]


def _ranks(benchmark: str) -> list[Variant]:
    return [
        *_varied("sketchogd", benchmark, "rank", (75, 150, 300, 600, 1200, 2400)),
        *_varied("layer-sketch", benchmark, "rank", (12, 25, 50, 100, 200, 400, 1025)),
    ]


def _ridges(benchmark: str) -> list[Variant]:
    hard = [default_method("layer-sketch", benchmark, ridge=0.0, energy=energy) for energy in (0.95, 0.99, 1.0)]
    return [
        *(_variant(f"hard, energy {m.options['energy']:g}", m, benchmark) for m in hard),
        *_varied("layer-sketch", benchmark, "ridge", (0.003, 0.01, 0.03, 0.05, 0.1, 0.3, 1.0, 3.0)),
        _variant("inputs only", default_method("layer-sketch", benchmark, outputs=False, ridge=0.05), benchmark),
    ]


def _strengths(benchmark: str) -> list[Variant]:
    return [
        *_varied("layer-sketch", benchmark, "strength", (0.3, 1.0, 2.0, 8.0, 30.0, 100.0)),
        *_varied("layer-sketch", benchmark, "damping", (0.0, 0.005, 0.015, 0.05, 0.15, 0.5)),
    ]


def _remembered(benchmark: str) -> list[Variant]:
    counts = (30, 120, 480, 1000, None)
    found = []
    for name in ("sketchogd", "layer-sketch"):
        for count in counts:
            words = f"{_title(name)}, {'all examples' if count is None else f'{count} per task'}"
            found.append(_variant(words, default_method(name, benchmark, examples=count), benchmark))
    return found


def _every(benchmark: str) -> list[Variant]:
    steps = (1, 10, 50, 100, 500, 1000, 3000, 10_000)
    small = [default_method("sketchogd", benchmark, rank=300, every=every) for every in (50, 500, 1000, 3000, 10_000)]
    return [
        *_varied("sketchogd", benchmark, "every", steps),
        *(_variant(f"gradient sketch of rank 300, every {m.every}", m, benchmark) for m in small),
        *_varied("layer-sketch", benchmark, "every", steps),
    ]


def _test_matrices(benchmark: str) -> list[Variant]:
    gaussian = default_method("sketchogd", benchmark, rank=600, test_matrix="gaussian")
    sparse = [default_method("sketchogd", benchmark, rank=600, zeta=zeta) for zeta in (1, 2, 4, 8)]
    return [
        *(_variant(f"sparse, zeta {m.options['zeta']}", m, benchmark) for m in sparse),
        _variant("Gaussian", gaussian, benchmark),
    ]


def _bases(benchmark: str) -> list[Variant]:
    return [
        _variant(
            f"rank {rank}, {dtype or 'float32'}",
            default_method("sketchogd", benchmark, rank=rank, basis_dtype=dtype, offload="cpu" if dtype else None),
            benchmark,
        )
        for rank in (600, 1200, 2400)
        for dtype in (None, "bfloat16")
    ]


def _optimizers(benchmark: str) -> list[Variant]:
    found = []
    for words, training in (("SGD", {}), ("Adam", ADAM)):
        found.append(_variant(f"{words}, nothing kept", default_method("sgd", benchmark), benchmark, **training))
        for name, chosen in (("sketchogd", {"rank": 600}), ("layer-sketch", {"rank": 200, "ridge": 0.05})):
            update = default_method(name, benchmark, every=1, **chosen)
            options = {key: value for key, value in update.options.items() if key in KINDS["gradient-ogd"].options}
            gradient = default_method("gradient-ogd", benchmark, memory=name, **options)
            title = f"{words}, {_title(name)}"
            found.append(_variant(f"{title}, update projected", update, benchmark, **training))
            found.append(_variant(f"{title}, gradient projected", gradient, benchmark, **training))
    return found


def _scaled(benchmark: str) -> list[Variant]:
    return [
        _variant(
            f"rank {rank}, times the norm to the power {power:g}",
            default_method("sketchogd", benchmark, rank=rank, power=power),
            benchmark,
        )
        for rank in (300, 1200)
        for power in (-1.0, -0.5, 0.0, 0.5, 1.0)
    ]


def _outputs(benchmark: str) -> list[Variant]:
    found = []
    for name in ("sketchogd", "layer-sketch"):
        usual = {"sketchogd": "true", "layer-sketch": "every"}[name]
        for output, words in OUTPUT_WORDS.items():
            if output == "every" and usual != "every":
                continue
            chosen = default_method(name, benchmark, output=None if output == usual else output)
            found.append(_variant(f"{_title(name)}, {words}", chosen, benchmark))
    return found


def _both(benchmark: str) -> list[Variant]:
    layers = default_method("layer-sketch", benchmark, rank=200)
    gradients = default_method("sketchogd", benchmark, rank=300)
    pull = {key: layers.options[key] for key in ("strength", "damping")}
    both = default_method("both", benchmark, rank=300, layer_rank=200, **pull)
    return [
        _variant("layer memory, rank 200", layers, benchmark),
        _variant("gradient sketch, rank 300", gradients, benchmark),
        _variant("both", both, benchmark),
    ]


def _anchors(benchmark: str) -> list[Variant]:
    words = ("anchor in full", "one byte per weight", "no anchor, inputs projected hard")
    found = []
    for budget, kinds in ((250_000, (1, 2)), (500_000, (1, 2)), (2_000_000, (0, 1))):
        for kind in kinds:
            settings = {"budget": budget, **ANCHORS[kind], **({"every": 1} if kind == 2 else {})}
            title = f"{budget / 1e6:g} MB, {words[kind]}"
            found.append(_variant(title, default_method("layer-sketch", benchmark, **settings), benchmark))
    return found


ABLATIONS: dict[str, Ablation] = {
    "rank": Ablation("Rank", _ranks),
    "ridge": Ablation("Ridge of the layer memory, from hard to soft", _ridges),
    "strength": Ablation("Pull of the layer memory to its anchor, and its damping", _strengths),
    "anchor": Ablation("Anchor of the layer memory: in full, rounded, or none", _anchors),
    "remembered": Ablation("Examples remembered", _remembered),
    "every": Ablation("Steps between two projections", _every),
    "test-matrix": Ablation("Test matrix, rank 600", _test_matrices),
    "basis": Ablation("Numbers of the basis: float32 or bfloat16", _bases),
    "optimizer": Ablation("SGD and Adam, updates or gradients projected", _optimizers),
    "scaled": Ablation("Gradients scaled by a power of their norm before they are sketched", _scaled),
    "logits": Ablation("Outputs that are protected", _outputs),
    "both": Ablation("Layer memory and gradient sketch together", _both),
}


def ablations(benchmarks: Names = None, methods: Names = None, seeds: int = 1, groups: Names = None) -> Preset:
    """All ablations, or only the `groups` named; `methods` keeps the runs of these methods only.

    Raises:
        ValueError: unknown ablation or benchmark, no seeds, or methods that no ablation has.
    """
    for group in groups or ():
        if group not in ABLATIONS:
            raise ValueError(unknown("ablation", group, ABLATIONS))
    runs = [
        ablation_run(variant, benchmark, seed)
        for seed in range(seeds)
        for benchmark in checked(benchmarks or BENCHMARKS, seeds)
        for group in groups or ABLATIONS
        for variant in ABLATIONS[group].variants(benchmark)
        if variant.method.name in (methods or KINDS)
    ]
    if not runs:
        raise ValueError(f"no ablation has a run of {', '.join(methods or ())}")
    return Preset("ablations", "one setting varied at a time", distinct(runs))


def ablation_run(variant: Variant, benchmark: str, seed: int) -> RunConfig:
    """The run of a variant."""
    return RunConfig(benchmark, variant.method, variant.training, seed, "ablations")


def _variant(words: str, settings: Method, benchmark: str, **training: Any) -> Variant:
    return Variant(words, settings, replace(training_for(benchmark), **training))


def _varied(name: str, benchmark: str, key: str, values: Sequence[Any]) -> list[Variant]:
    made = [(value, default_method(name, benchmark, **{key: value})) for value in values]
    return [_variant(f"{_title(name)}, {key} {value:g}", settings, benchmark) for value, settings in made]


def _title(name: str) -> str:
    return {"sketchogd": "gradient sketch", "layer-sketch": "layer memory"}[name]
