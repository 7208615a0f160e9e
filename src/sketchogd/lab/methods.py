"""Every method that the lab can train with, one name each: settings as a frozen dataclass, and a builder.

`method("sketchogd", budget=2_000_000)` gives the settings, complete and plain enough to be written as JSON.
`build(method, setup)` gives a `Baseline`, the object whose hooks the training loop calls. `register` adds a method of
one's own. Letters: p protected parameters, T tasks.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer

import sketchogd as so
from sketchogd.baselines import AGEM, EWC, SI, Baseline, Loss, Replay
from sketchogd.lab.learners import Nothing, Protected
from sketchogd.parameters import Selection
from sketchogd.sketch.base import largest_rank
from sketchogd.testmatrix import derive_seed


@dataclass(frozen=True)
class Method:
    """The settings of a method; made by `method`, which checks them and fills in the defaults.

    every: optimizer steps between two projections. examples: how many of a task are remembered, None for all.
    budget: bytes from which the method's size follows, None where the options give it. options: the rest, by name.
    """

    name: str
    every: int = 1
    examples: int | None = None
    budget: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name and whatever is not as usual: "layer-sketch,budget=2000000". Fit to be a folder's name."""
        usual = method(self.name, budget=self.budget)
        changed = {
            key: getattr(self, key) for key in ("every", "examples") if getattr(self, key) != getattr(usual, key)
        }
        changed |= {key: value for key, value in self.options.items() if usual.options.get(key) != value}
        if self.budget is not None:
            changed["budget"] = self.budget
        return ",".join([self.name, *(f"{key}={value}" for key, value in changed.items())])


@dataclass(frozen=True)
class Setup:
    """What a method is built on: the model and its optimizer, what it may use of them, and the stream's size.

    protected: which parameters memories protect. loss: mean loss of a batch of one head. tasks: T.
    example_nbytes: what one raw example costs to keep.
    """

    model: nn.Module
    optimizer: Optimizer
    loss: Loss
    tasks: int
    example_nbytes: int
    protected: Selection = None
    seed: int = 0

    def count(self) -> int:
        """p."""
        return so.ProtectedParameters(self.model, self.protected).p


Builder = Callable[[Method, Setup], Baseline]


@dataclass(frozen=True)
class Kind:
    """A method's entry in the registry: one line about it, its usual settings, and how it is built."""

    summary: str
    build: Builder
    every: int
    examples: int | None
    options: Mapping[str, Any]
    sizes: tuple[str, ...]


KINDS: dict[str, Kind] = {}
"""Every method by its name."""


def register(
    name: str,
    summary: str,
    *,
    every: int = 50,
    examples: int | None = None,
    sizes: Iterable[str] = (),
    **options: Any,
) -> Callable[[Builder], Builder]:
    """Enter a builder under a name. `sizes` are the options that a budget determines instead."""

    def enter(builder: Builder) -> Builder:
        KINDS[name] = Kind(summary, builder, every, examples, options, tuple(sizes))
        return builder

    return enter


def method(
    name: str, *, every: int | None = None, examples: int | None = None, budget: int | None = None, **options: Any
) -> Method:
    """The settings of a method, the usual ones where nothing is said.

    Raises:
        ValueError: unknown name or option (the nearest right ones are named), or a budget beside a size.

    >>> method("sketchogd", budget=2_000_000)
    Method(name='sketchogd', every=50, examples=None, budget=2000000, options={})
    """
    kind = KINDS.get(name)
    if kind is None:
        raise ValueError(unknown("method", name, KINDS))
    for key in options:
        if key not in kind.options:
            raise ValueError(unknown(f"option of {name}", key, kind.options))
    doubled = [key for key in kind.sizes if key in options]
    if budget is not None and doubled:
        raise ValueError(f"{name}: a budget determines {doubled[0]}; give one of the two")
    chosen = {**kind.options, **options}
    if budget is not None:
        chosen = {key: value for key, value in chosen.items() if key not in kind.sizes}
    return Method(
        name,
        kind.every if every is None else every,
        kind.examples if examples is None else examples,
        budget,
        chosen,
    )


def build(settings: Method, setup: Setup) -> Baseline:
    """The object that training works with."""
    return KINDS[settings.name].build(settings, setup)


def unknown(what: str, word: str, known: Iterable[str]) -> str:
    """The text of an error about a name: the nearest right ones, and all of them.

    >>> unknown("method", "sketchodg", ["sgd", "sketchogd"])
    "unknown method 'sketchodg'; did you mean sketchogd? There are: sgd, sketchogd"
    """
    names = list(known)
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"unknown {what} {word!r}; {hint}There are: {', '.join(names) or 'none'}"


# ---------------------------------------------------------------- the methods


def protected(settings: Method, setup: Setup, memory: so.Memory | so.Sketch, examples: int | None = None) -> Protected:
    """A protection with this memory, as the training loop takes it."""
    protection = so.protect(
        setup.model, setup.optimizer, memory=memory, parameters=setup.protected, every=settings.every
    )
    return Protected(protection, settings.examples if examples is None else examples, settings.every, setup.seed)


def _room(settings: Method, setup: Setup) -> int:
    """Bytes that the budget leaves for a memory beside the copy of the weights that `every` > 1 needs."""
    assert settings.budget is not None
    copies = 4 * setup.count() if settings.every > 1 else 0
    if settings.budget <= copies:
        raise ValueError(
            f"{settings.name}: a budget of {settings.budget:,} bytes does not even hold the copy of the weights "
            f"({copies:,} bytes) that projecting every {settings.every} steps needs; raise it, or use every=1"
        )
    return settings.budget - copies


def _sketch(settings: Method, setup: Setup, kind: Any, **fixed: Any) -> so.Sketch:
    """The sketch that the options describe, or the largest that the budget leaves room for."""
    sketch: so.Sketch
    if settings.budget is None:
        sketch = kind(**settings.options, **fixed)
    else:
        sketch = kind.from_budget(_room(settings, setup), setup.count(), **settings.options, **fixed)
    return sketch


def _seed(settings: Method, setup: Setup) -> int:
    return derive_seed(setup.seed, "method", settings.name)


def _require_fits(settings: Method, built: Baseline) -> Baseline:
    """Refuse a budget that a method of fixed size does not fit into."""
    if settings.budget is not None and built.nbytes > settings.budget:
        raise ValueError(f"{settings.name} takes {built.nbytes:,} bytes whatever its settings; got {settings.budget:,}")
    return built


@register("sgd", "plain training, nothing kept", every=1)
def _sgd(settings: Method, setup: Setup) -> Baseline:
    return Nothing()


@register("ogd", "OGD: every remembered gradient is kept (480 a task, as in the paper's table 2)", examples=480)
def _ogd(settings: Method, setup: Setup) -> Baseline:
    if settings.budget is not None:
        raise ValueError(
            "ogd keeps every gradient it is shown and has no size to fit to a budget; set examples instead"
        )
    return protected(settings, setup, so.AllRows())


@register("random-ogd", "RandomOGD: equally many random gradients of each task", sizes=["capacity"], capacity=1200)
def _random(settings: Method, setup: Setup) -> Baseline:
    sketch = _sketch(settings, setup, so.RandomRows, seed=_seed(settings, setup))
    assert isinstance(sketch, so.RandomRows)
    # No task offers more than its share, so the sample is never thinned and every task keeps equally many.
    return protected(settings, setup, sketch, max(1, sketch.capacity // setup.tasks))


@register(
    "pca-ogd",
    "PCA-OGD: principal directions of a sample of each task",
    sizes=["components"],
    samples=200,
    components=100,
)
def _pca(settings: Method, setup: Setup) -> Baseline:
    samples = settings.options["samples"]
    if settings.budget is None:
        components = settings.options["components"]
    else:
        components = _room(settings, setup) // so.PCARows(1, 1).cost(setup.count()) // setup.tasks
        if components < 1:
            raise ValueError(f"pca-ogd: {settings.budget:,} bytes do not hold one component for each task")
    sketch = so.PCARows(samples, min(samples, components), seed=_seed(settings, setup))
    return protected(settings, setup, sketch, settings.examples or samples)


@register("sketchogd-1", "SketchOGD-1 as published", sizes=["rank"], rank=1200)
def _sketchogd_1(settings: Method, setup: Setup) -> Baseline:
    return protected(settings, setup, _sketch(settings, setup, so.GradientSketch, seed=_seed(settings, setup)))


@register("sketchogd-2", "SketchOGD-2 as published, its Gaussian test matrix stored", sizes=["rank"], rank=600)
def _sketchogd_2(settings: Method, setup: Setup) -> Baseline:
    gaussian = so.Gaussian(stored=True)
    sketch = _sketch(settings, setup, so.ProductSketch, seed=_seed(settings, setup), test_matrix=gaussian)
    return protected(settings, setup, sketch)


@register("sketchogd-3", "SketchOGD-3 as published, both stored", sizes=["rank", "corank"], rank=299, corank=301)
def _sketchogd_3(settings: Method, setup: Setup) -> Baseline:
    gaussian = so.Gaussian(stored=True)
    sketch = _sketch(settings, setup, so.SymmetricSketch, seed=_seed(settings, setup), test_matrix=gaussian)
    return protected(settings, setup, sketch)


@register("sketchogd", "SketchOGD-2 with a sparse test matrix that needs no bytes", sizes=["rank"], rank=1200)
def _sketchogd(settings: Method, setup: Setup) -> Baseline:
    return protected(settings, setup, _sketch(settings, setup, so.ProductSketch, seed=_seed(settings, setup)))


@register("fd-ogd", "OGD on frequent directions", sizes=["rank", "buffer"], rank=960, buffer=240)
def _fd(settings: Method, setup: Setup) -> Baseline:
    return protected(settings, setup, _sketch(settings, setup, so.FrequentDirections))


@register("ipca-ogd", "OGD on incremental PCA", sizes=["rank", "buffer"], rank=960, buffer=240)
def _ipca(settings: Method, setup: Setup) -> Baseline:
    return protected(settings, setup, _sketch(settings, setup, so.IncrementalPCA))


@register(
    "layer-sketch", "layer memory: inputs and sensitivities of each layer, soft", sizes=["rank"], rank=200, ridge=0.05
)
def _layers(settings: Method, setup: Setup) -> Baseline:
    return protected(settings, setup, _layer_memory(settings, setup))


@register("gpm", "GPM, streaming: inputs of each layer only, hard", sizes=["rank"], rank=512, energy=0.95)
def _gpm(settings: Method, setup: Setup) -> Baseline:
    return protected(settings, setup, _layer_memory(settings, setup, outputs=False, ridge=0.0))


def _layer_memory(settings: Method, setup: Setup, **fixed: Any) -> so.LayerSketch:
    def memory(rank: int) -> so.LayerSketch:
        return so.LayerSketch(**{**settings.options, "rank": rank}, **fixed, seed=_seed(settings, setup))

    if settings.budget is None:
        return memory(settings.options["rank"])
    room, parameters = _room(settings, setup), so.ProtectedParameters(setup.model, setup.protected)
    rank = largest_rank(lambda k: memory(k).cost(parameters) <= room, parameters.p)
    if rank == 0:
        raise ValueError(
            f"{settings.name}: the smallest memory takes {memory(1).cost(parameters):,} bytes; {room:,} are left for it"
        )
    return memory(rank)


@register(
    "a-gem", "A-GEM: raw examples, gradients on their half-space", every=1, sizes=["per_task"], per_task=120, batch=120
)
def _agem(settings: Method, setup: Setup) -> Baseline:
    options = dict(settings.options)
    if settings.budget is not None:
        options["per_task"] = settings.budget // setup.example_nbytes // setup.tasks
    return AGEM(setup.model, setup.loss, **options, seed=_seed(settings, setup))


@register("ewc", "elastic weight consolidation", every=1, strength=10.0, samples=200)
def _ewc(settings: Method, setup: Setup) -> Baseline:
    built = EWC(setup.model, **settings.options, parameters=setup.protected, seed=_seed(settings, setup))
    return _require_fits(settings, built)


@register("si", "synaptic intelligence", every=1, strength=1.0, damping=0.1)
def _si(settings: Method, setup: Setup) -> Baseline:
    return _require_fits(settings, SI(setup.model, **settings.options, parameters=setup.protected))


@register(
    "replay", "experience replay from a reservoir of raw examples", every=1, sizes=["capacity"], capacity=1200, batch=10
)
def _replay(settings: Method, setup: Setup) -> Baseline:
    options = dict(settings.options)
    if settings.budget is not None:
        options["capacity"] = settings.budget // setup.example_nbytes
    return Replay(setup.model, setup.loss, **options, seed=_seed(settings, setup))
