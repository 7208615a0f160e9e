"""Every method that the lab can train with, one name each; importing this file fills the registry.

What a `Method` is, and how one of one's own is added, is in `registry`, whose names are here too. Letters: p protected
parameters, T tasks.
"""

from typing import Any

import sketchogd as so
from sketchogd.lab.methods.baselines import AGEM, EWC, SI, Replay
from sketchogd.lab.methods.both import Both
from sketchogd.lab.methods.gradient_projection import GradientProjected
from sketchogd.lab.methods.learner import Baseline
from sketchogd.lab.methods.outputs import AS_USUAL, Remembered
from sketchogd.lab.methods.protected import Nothing, Protected
from sketchogd.lab.methods.registry import KINDS, Builder, Kind, Method, Setup, build, method, register, unknown
from sketchogd.optimizer.reference import FULL, copies_nbytes
from sketchogd.paper.published_agem import PublishedAGEM
from sketchogd.projector import Anchor
from sketchogd.seeds import derive_seed
from sketchogd.sketch.base import largest_rank

__all__ = ["KINDS", "Builder", "Kind", "Method", "Setup", "build", "method", "protected", "register", "unknown"]


def protected(
    settings: Method,
    setup: Setup,
    memory: so.Memory | so.Sketch,
    examples: int | None = None,
    remembered: Remembered = AS_USUAL,
) -> Protected:
    """A protection with this memory, as the training loop takes it."""
    protection = so.protect(
        setup.model,
        setup.optimizer,
        memory=memory,
        parameters=setup.protected,
        output=remembered.function(),
        every=settings.every,
        group=setup.group,
    )
    taken = settings.examples if examples is None else examples
    return Protected(protection, taken, settings.every, setup.seed, setup.own, remembered)


def _remembered(settings: Method) -> Remembered:
    return Remembered(settings.options.get("output"))


def _room(settings: Method, setup: Setup) -> int:
    """Bytes that the budget leaves for a memory beside the copy of the weights that `every` > 1 or an anchor needs."""
    assert settings.budget is not None
    options = settings.options
    anchored = options.get("ridge", 0.0) is None or options.get("strength") is not None
    parameters = so.ProtectedParameters(setup.model, setup.protected)
    anchor = Anchor(options.get("anchor_dtype")) if anchored else FULL
    copies = copies_nbytes(parameters.tensors, anchor) if settings.every > 1 or anchored else 0
    if settings.budget <= copies:
        raise ValueError(
            f"{settings.name}: a budget of {settings.budget:,} bytes does not even hold the copy of the weights "
            f"({copies:,} bytes) that it needs; raise it, or use every=1 and, for layer-sketch, a ridge, or "
            "anchor_dtype=int8"
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


@register("sgd", "plain training, nothing kept", every=1, title="SGD", style=7)
def _sgd(settings: Method, setup: Setup) -> Baseline:
    return Nothing()


@register(
    "ogd",
    "OGD: every remembered gradient is kept (480 a task, as in the paper's table 2)",
    examples=480,
    title="OGD",
    style=6,
)
def _ogd(settings: Method, setup: Setup) -> Baseline:
    if settings.budget is not None:
        raise ValueError(
            "ogd keeps every gradient it is shown and has no size to fit to a budget; set examples instead"
        )
    return protected(settings, setup, so.AllRows())


@register(
    "random-ogd",
    "RandomOGD: equally many random gradients of each task",
    sizes=["capacity"],
    capacity=1200,
    title="RandomOGD",
    style=15,
)
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
    title="PCA-OGD",
    style=14,
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


@register("sketchogd-1", "SketchOGD-1 as published", sizes=["rank"], rank=1200, title="SketchOGD-1", style=5)
def _sketchogd_1(settings: Method, setup: Setup) -> Baseline:
    return protected(settings, setup, _sketch(settings, setup, so.GradientSketch, seed=_seed(settings, setup)))


@register(
    "sketchogd-2",
    "SketchOGD-2 as published, its Gaussian test matrix stored",
    sizes=["rank"],
    rank=600,
    title="SketchOGD-2",
    style=2,
)
def _sketchogd_2(settings: Method, setup: Setup) -> Baseline:
    gaussian = so.Gaussian(stored=True)
    sketch = _sketch(settings, setup, so.ProductSketch, seed=_seed(settings, setup), test_matrix=gaussian)
    return protected(settings, setup, sketch)


@register(
    "sketchogd-3",
    "SketchOGD-3 as published, both stored",
    sizes=["rank", "corank"],
    rank=299,
    corank=301,
    title="SketchOGD-3",
    style=4,
)
def _sketchogd_3(settings: Method, setup: Setup) -> Baseline:
    gaussian = so.Gaussian(stored=True)
    sketch = _sketch(settings, setup, so.SymmetricSketch, seed=_seed(settings, setup), test_matrix=gaussian)
    return protected(settings, setup, sketch)


@register(
    "sketchogd",
    "SketchOGD-2 with a sparse test matrix that needs no bytes",
    sizes=["rank"],
    rank=1200,
    test_matrix="sparse",
    zeta=2,
    basis_dtype=None,
    offload=None,
    later={"power": 0.0, "output": None},
    title="SketchOGD",
    style=1,
)
def _sketchogd(settings: Method, setup: Setup) -> Baseline:
    return protected(settings, setup, _gradient_memory(settings, setup), remembered=_remembered(settings))


_BLOCKS: dict[str, Any] = {"rank": 1000, "test_matrix": "sparse", "zeta": 2, "basis_dtype": None, "offload": None}
_BLOCKS |= {"blocks": 16}


@register(
    "sketchogd-blocks",
    "the same for each block of the parameters: more directions protected in the same bytes",
    sizes=["rank"],
    **_BLOCKS,
    title="SketchOGD in blocks",
    style=16,
)
def _sketchogd_blocks(settings: Method, setup: Setup) -> Baseline:
    return protected(settings, setup, _gradient_memory(settings, setup))


@register(
    "sketchogd-pull",
    "sketches of blocks, whose directions pull back to an anchor as strongly as old logits depend on them",
    sizes=["rank"],
    **_BLOCKS,
    strength=8.0,
    title="SketchOGD in blocks, pulled",
    style=17,
)
def _sketchogd_pull(settings: Method, setup: Setup) -> Baseline:
    return protected(settings, setup, _gradient_memory(settings, setup))


@register(
    "gradient-ogd",
    "gradients projected in place of updates, to compare with: momentum and Adam leak",
    every=1,
    sizes=["rank"],
    rank=1200,
    memory="sketchogd",
    ridge=0.05,
    title="Gradients projected",
)
def _gradient_ogd(settings: Method, setup: Setup) -> Baseline:
    """See `GradientProjected`; the option `memory` says whose memory it is, sketchogd's or layer-sketch's."""
    inner = settings.options["memory"]
    if inner not in ("sketchogd", "layer-sketch"):
        raise ValueError(unknown("memory of gradient-ogd", inner, ["sketchogd", "layer-sketch"]))
    own = {key: value for key, value in settings.options.items() if key in KINDS[inner].options}
    chosen = method(inner, every=1, examples=settings.examples, budget=settings.budget, **own)
    learner = build(chosen, setup)
    assert isinstance(learner, Protected)
    return GradientProjected(learner)


def _gradient_memory(settings: Method, setup: Setup) -> so.GradientMemory:
    """A product sketch with the options' test matrix; a basis of its own where they ask for one.

    A budget then counts the basis and, unless it is offloaded to the host, the sketch as well.
    """
    options = dict(settings.options)
    places = {key: options.pop(key) for key in ("basis_dtype", "offload")}
    rows = {"power": options.pop("power", 0.0), "blocks": options.pop("blocks", 1)}
    rows |= {"strength": options.pop("strength", None)}
    kind, zeta = options.pop("test_matrix"), options.pop("zeta")
    if kind not in ("sparse", "gaussian"):
        raise ValueError(unknown("test matrix", kind, ["sparse", "gaussian"]))
    test_matrix = so.SparseSign(zeta) if kind == "sparse" else so.Gaussian()

    def memory(rank: int) -> so.GradientMemory:
        sketch = so.ProductSketch(rank, seed=_seed(settings, setup), test_matrix=test_matrix)
        return so.GradientMemory(sketch, **places, **rows)

    if settings.budget is None:
        return memory(options["rank"])
    room, parameters = _room(settings, setup), so.ProtectedParameters(setup.model, setup.protected)

    def counted(rank: int) -> int:
        made = memory(rank)
        on_host = so.GradientMemory(made.sketch, **rows).cost(parameters) if made.offload is not None else 0
        return made.cost(parameters) - on_host

    rank = largest_rank(lambda k: counted(k) <= room, parameters.p)
    if rank == 0:
        raise ValueError(f"{settings.name}: the smallest memory takes {counted(1):,} bytes; {room:,} are left for it")
    return memory(rank)


@register(
    "fd-ogd", "OGD on frequent directions", sizes=["rank", "buffer"], rank=960, buffer=240, title="FD-OGD", style=9
)
def _fd(settings: Method, setup: Setup) -> Baseline:
    return protected(settings, setup, _sketch(settings, setup, so.FrequentDirections))


@register(
    "ipca-ogd", "OGD on incremental PCA", sizes=["rank", "buffer"], rank=960, buffer=240, title="IPCA-OGD", style=10
)
def _ipca(settings: Method, setup: Setup) -> Baseline:
    return protected(settings, setup, _sketch(settings, setup, so.IncrementalPCA))


@register(
    "layer-sketch",
    "layer memory: inputs and sensitivities of each layer, pulled back to an anchor or softly projected",
    sizes=["rank"],
    rank=200,
    ridge=None,
    strength=None,
    damping=None,
    outputs=True,
    energy=1.0,
    later={"output": None, "anchor_dtype": None},
    title="LayerSketch",
    style=0,
)
def _layers(settings: Method, setup: Setup) -> Baseline:
    return protected(settings, setup, _layer_memory(settings, setup), remembered=_remembered(settings))


@register(
    "gpm",
    "GPM, streaming: inputs of each layer only, hard",
    sizes=["rank"],
    rank=512,
    energy=0.95,
    title="GPM",
    style=8,
)
def _gpm(settings: Method, setup: Setup) -> Baseline:
    return protected(settings, setup, _layer_memory(settings, setup, outputs=False, ridge=0.0))


def _layer_memory(settings: Method, setup: Setup, **fixed: Any) -> so.LayerSketch:
    options = {key: value for key, value in settings.options.items() if key != "output"}

    def memory(rank: int) -> so.LayerSketch:
        return so.LayerSketch(**{**options, "rank": rank}, **fixed, seed=_seed(settings, setup))

    if settings.budget is None:
        return memory(options["rank"])
    room, parameters = _room(settings, setup), so.ProtectedParameters(setup.model, setup.protected)
    rank = largest_rank(lambda k: memory(k).cost(parameters) <= room, parameters.p)
    if rank == 0:
        raise ValueError(
            f"{settings.name}: the smallest memory takes {memory(1).cost(parameters):,} bytes; {room:,} are left for it"
        )
    return memory(rank)


@register(
    "both",
    "layer memory and gradient sketch together: pulled back by the one, then projected by the other",
    rank=300,
    layer_rank=200,
    strength=None,
    damping=None,
)
def _both(settings: Method, setup: Setup) -> Baseline:
    if settings.budget is not None:
        raise ValueError("both has two sizes and no rule to fit them to a budget; set rank and layer_rank instead")
    options, seed = settings.options, _seed(settings, setup)
    pull = {key: options[key] for key in ("strength", "damping") if options[key] is not None}
    layers = so.LayerSketch(options["layer_rank"], seed=seed, **pull)
    gradients = so.GradientMemory(so.ProductSketch(options["rank"], seed=seed))
    return protected(settings, setup, Both(layers, gradients))


@register(
    "a-gem",
    "A-GEM: raw examples, gradients on their half-space",
    every=1,
    sizes=["per_task"],
    per_task=120,
    batch=120,
    title="A-GEM",
    style=3,
    keeps_examples=True,
)
def _agem(settings: Method, setup: Setup) -> Baseline:
    return AGEM(setup.model, setup.loss, **_agem_options(settings, setup), seed=_seed(settings, setup))


def _agem_options(settings: Method, setup: Setup) -> dict[str, Any]:
    """The options, with as many examples a task as the budget has room for."""
    options = dict(settings.options)
    if settings.budget is not None:
        options["per_task"] = settings.budget // setup.example_nbytes // setup.tasks
    return options


@register(
    "a-gem-published",
    "A-GEM with the heads mixed up, as in the paper's released code",
    every=1,
    sizes=["per_task"],
    per_task=60,
    batch=1200,
    keeps_examples=True,
)
def _published_agem(settings: Method, setup: Setup) -> Baseline:
    options = {**_agem_options(settings, setup), "protected": setup.protected}
    return PublishedAGEM(setup.model, setup.loss, **options, seed=_seed(settings, setup))


@register("ewc", "elastic weight consolidation", every=1, strength=10.0, samples=200, title="EWC", style=13)
def _ewc(settings: Method, setup: Setup) -> Baseline:
    built = EWC(setup.model, **settings.options, parameters=setup.protected, seed=_seed(settings, setup))
    return _require_fits(settings, built)


@register("si", "synaptic intelligence", every=1, strength=1.0, damping=0.1, title="SI", style=12)
def _si(settings: Method, setup: Setup) -> Baseline:
    return _require_fits(settings, SI(setup.model, **settings.options, parameters=setup.protected))


@register(
    "replay",
    "experience replay from a reservoir of raw examples",
    every=1,
    sizes=["capacity"],
    capacity=1200,
    batch=10,
    title="Replay",
    style=11,
    keeps_examples=True,
)
def _replay(settings: Method, setup: Setup) -> Baseline:
    options = dict(settings.options)
    if settings.budget is not None:
        options["capacity"] = settings.budget // setup.example_nbytes
    return Replay(setup.model, setup.loss, **options, seed=_seed(settings, setup))
