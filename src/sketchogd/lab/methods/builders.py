"""Plain training, and the methods that protect a model with a memory; importing this file registers them."""

from typing import Any

import sketchogd as so
from sketchogd.lab.methods.both import Both
from sketchogd.lab.methods.gradient_projection import GradientProjected
from sketchogd.lab.methods.learner import Learner
from sketchogd.lab.methods.memories import gradient_memory, layer_memory, room, sketch
from sketchogd.lab.methods.outputs import AS_USUAL, Remembered
from sketchogd.lab.methods.protected import ROWS_AT_ONCE, Nothing, Protected
from sketchogd.lab.methods.registry import KINDS, Method, Setup, build, method, register
from sketchogd.lab.names import unknown


def protected(
    settings: Method,
    setup: Setup,
    memory: so.Memory | so.Sketch,
    examples: int | None = None,
    remembered: Remembered = AS_USUAL,
) -> Protected:
    """The learner that protects the model with a memory.

    Args:
        settings: of the method; `every` and, unless given here, `examples` are used.
        setup: what it is built on.
        memory: a memory, or a sketch for a gradient memory.
        examples: how many examples of each task are remembered; by default those of the settings.
        remembered: the output that the memory protects.
    """
    protection = so.protect(
        setup.model,
        setup.optimizer,
        memory=memory,
        parameters=setup.protected,
        output=remembered.function(),
        every=settings.every,
        group=setup.group,
        buffers=None,  # recorded runs let statistics move
    )
    taken = settings.examples if examples is None else examples
    return Protected(protection, taken, settings.every, setup.seed, setup.own, remembered, setup.rows or ROWS_AT_ONCE)


def _remembered(settings: Method) -> Remembered:
    return Remembered(settings.options.get("output"))


# ---------------------------------------------------------------- sketches of gradients


@register("sgd", "plain training, nothing kept", title="SGD", style=7, every=1)
def _sgd(settings: Method, setup: Setup) -> Learner:
    return Nothing()


@register(
    "ogd",
    "OGD: every remembered gradient is kept (480 per task, as in the paper's table 2)",
    title="OGD",
    style=6,
    examples=480,
)
def _ogd(settings: Method, setup: Setup) -> Learner:
    if settings.budget is not None:
        raise ValueError(
            "ogd keeps every gradient it is shown and has no size to fit to a budget; set examples instead"
        )
    return protected(settings, setup, so.AllRows())


@register(
    "random-ogd",
    "RandomOGD: equally many random gradients of each task",
    title="RandomOGD",
    style=15,
    sizes=["capacity"],
    capacity=1200,
)
def _random(settings: Method, setup: Setup) -> Learner:
    rows = sketch(settings, setup, so.RandomRows, seed=setup.seed_of(settings.name))
    assert isinstance(rows, so.RandomRows)
    # No task offers more than its share, so the sample is never thinned and every task keeps equally many.
    return protected(settings, setup, rows, max(1, rows.capacity // setup.tasks))


@register(
    "pca-ogd",
    "PCA-OGD: principal directions of a sample of each task",
    title="PCA-OGD",
    style=14,
    sizes=["components"],
    samples=200,
    components=100,
)
def _pca(settings: Method, setup: Setup) -> Learner:
    samples = settings.options["samples"]
    if settings.budget is None:
        components = settings.options["components"]
    else:
        components = room(settings, setup) // so.PCARows(1, 1).cost(setup.parameters.p) // setup.tasks
        if components < 1:
            raise ValueError(f"pca-ogd: {settings.budget:,} bytes do not hold one component for each task")
    rows = so.PCARows(samples, min(samples, components), seed=setup.seed_of(settings.name))
    return protected(settings, setup, rows, settings.examples or samples)


@register(
    "sketchogd-1",
    "SketchOGD-1 as published",
    title="SketchOGD-1",
    style=5,
    sizes=["rank"],
    rank=1200,
)
def _sketchogd_1(settings: Method, setup: Setup) -> Learner:
    return protected(settings, setup, sketch(settings, setup, so.GradientSketch, seed=setup.seed_of(settings.name)))


@register(
    "sketchogd-2",
    "SketchOGD-2 as published, its Gaussian test matrix stored",
    title="SketchOGD-2",
    style=2,
    sizes=["rank"],
    rank=600,
)
def _sketchogd_2(settings: Method, setup: Setup) -> Learner:
    fixed: dict[str, Any] = {"seed": setup.seed_of(settings.name), "test_matrix": so.Gaussian(stored=True)}
    return protected(settings, setup, sketch(settings, setup, so.ProductSketch, **fixed))


@register(
    "sketchogd-3",
    "SketchOGD-3 as published, both test matrices stored",
    title="SketchOGD-3",
    style=4,
    sizes=["rank", "corank"],
    rank=299,
    corank=301,
)
def _sketchogd_3(settings: Method, setup: Setup) -> Learner:
    fixed: dict[str, Any] = {"seed": setup.seed_of(settings.name), "test_matrix": so.Gaussian(stored=True)}
    return protected(settings, setup, sketch(settings, setup, so.SymmetricSketch, **fixed))


@register(
    "sketchogd",
    "SketchOGD-2 with a sparse test matrix that needs no bytes",
    title="SketchOGD",
    style=1,
    sizes=["rank"],
    rank=1200,
    test_matrix="sparse",
    zeta=2,
    basis_dtype=None,
    offload=None,
    later={"power": 0.0, "output": None},
)
def _sketchogd(settings: Method, setup: Setup) -> Learner:
    return protected(settings, setup, gradient_memory(settings, setup), remembered=_remembered(settings))


_BLOCKS: dict[str, Any] = {"rank": 1000, "test_matrix": "sparse", "zeta": 2, "basis_dtype": None, "offload": None}
_BLOCKS |= {"blocks": 16}


@register(
    "sketchogd-blocks",
    "SketchOGD for each block of the parameters: more directions protected in the same bytes",
    title="SketchOGD in blocks",
    style=16,
    sizes=["rank"],
    **_BLOCKS,
)
def _sketchogd_blocks(settings: Method, setup: Setup) -> Learner:
    return protected(settings, setup, gradient_memory(settings, setup))


@register(
    "sketchogd-pull",
    "sketches of blocks, whose directions pull back to an anchor as strongly as old logits depend on them",
    title="SketchOGD in blocks, pulled",
    style=17,
    sizes=["rank"],
    **_BLOCKS,
    strength=8.0,
)
def _sketchogd_pull(settings: Method, setup: Setup) -> Learner:
    return protected(settings, setup, gradient_memory(settings, setup))


@register(
    "gradient-ogd",
    "gradients projected instead of updates, for comparison: momentum and Adam leak",
    title="Gradients projected",
    every=1,
    sizes=["rank"],
    rank=1200,
    memory="sketchogd",
    ridge=0.05,
)
def _gradient_ogd(settings: Method, setup: Setup) -> Learner:
    """See `GradientProjected`; the option `memory` names the method whose memory it is, sketchogd or layer-sketch."""
    inner = settings.options["memory"]
    if inner not in ("sketchogd", "layer-sketch"):
        raise ValueError(unknown("memory of gradient-ogd", inner, ["sketchogd", "layer-sketch"]))
    own = {key: value for key, value in settings.options.items() if key in KINDS[inner].options}
    chosen = method(inner, every=1, examples=settings.examples, budget=settings.budget, **own)
    learner = build(chosen, setup)
    assert isinstance(learner, Protected)
    return GradientProjected(learner)


@register(
    "fd-ogd",
    "OGD on frequent directions",
    title="FD-OGD",
    style=9,
    sizes=["rank", "buffer"],
    rank=960,
    buffer=240,
)
def _fd(settings: Method, setup: Setup) -> Learner:
    return protected(settings, setup, sketch(settings, setup, so.FrequentDirections))


@register(
    "ipca-ogd",
    "OGD on incremental PCA",
    title="IPCA-OGD",
    style=10,
    sizes=["rank", "buffer"],
    rank=960,
    buffer=240,
)
def _ipca(settings: Method, setup: Setup) -> Learner:
    return protected(settings, setup, sketch(settings, setup, so.IncrementalPCA))


# ---------------------------------------------------------------- layer memories


@register(
    "layer-sketch",
    "layer memory: inputs and sensitivities of each layer, pulled back to an anchor or softly projected",
    title="LayerSketch",
    style=0,
    sizes=["rank"],
    rank=200,
    ridge=None,
    strength=None,
    damping=None,
    outputs=True,
    energy=1.0,
    later={"output": None, "anchor_dtype": None, "curvature": "positions"},
)
def _layers(settings: Method, setup: Setup) -> Learner:
    return protected(settings, setup, layer_memory(settings, setup), remembered=_remembered(settings))


@register(
    "layer-memory",
    "so.LayerMemory with the defaults of the library: partial traces, strength relative to the spread of the outputs",
    title="LayerMemory",
    sizes=["rank"],
    rank=200,
    ridge=None,
    strength=None,
    damping=None,
    outputs=True,
    energy=1.0,
    output=None,
    anchor_dtype=None,
    curvature="traces",
)
def _layer_memory(settings: Method, setup: Setup) -> Learner:
    """What Python users have; `layer-sketch` is the memory of version 0.1, which the stored results are of."""
    return protected(settings, setup, layer_memory(settings, setup), remembered=_remembered(settings))


@register(
    "gpm",
    "GPM, streaming: inputs of each layer only, hard",
    title="GPM",
    style=8,
    sizes=["rank"],
    rank=512,
    energy=0.95,
)
def _gpm(settings: Method, setup: Setup) -> Learner:
    return protected(settings, setup, layer_memory(settings, setup, outputs=False, ridge=0.0))


@register(
    "both",
    "layer memory and gradient sketch together: pulled back by the one, then projected by the other",
    rank=300,
    layer_rank=200,
    strength=None,
    damping=None,
)
def _both(settings: Method, setup: Setup) -> Learner:
    if settings.budget is not None:
        raise ValueError("both has two sizes and no rule to fit them to a budget; set rank and layer_rank instead")
    options, seed = settings.options, setup.seed_of(settings.name)
    pull = {key: options[key] for key in ("strength", "damping") if options[key] is not None}
    layers = so.LayerMemory(options["layer_rank"], seed=seed, curvature="positions", **pull)
    gradients = so.GradientMemory(so.ProductSketch(options["rank"], seed=seed))
    return protected(settings, setup, Both(layers, gradients))


# ---------------------------------------------------------------- the library's own choice


@register(
    "protect",
    "so.protect with a budget, by default a share of the protected weights, and nothing else set",
    title="sketchogd, default",
    every=10,
    examples=1000,
    sizes=["share"],
    share=1.0,
    strength=None,
    rank=None,
    curvature=None,
    damping=None,
    outputs=None,
    anchor_dtype=None,
)
def _protect(settings: Method, setup: Setup) -> Learner:
    """With a rank the memory is a `LayerMemory` with the options that are given, and there is no budget."""
    options = {key: value for key, value in settings.options.items() if value is not None}
    share, rank = options.pop("share", 1.0), options.pop("rank", None)
    chosen: dict[str, Any] = {"parameters": setup.protected, "every": settings.every, "group": setup.group}
    if rank is not None:
        chosen["memory"] = so.LayerMemory(rank, **options, seed=setup.seed_of(settings.name))
    elif options.keys() - {"strength"}:
        raise ValueError(f"protect: {', '.join(options.keys() - {'strength'})} needs a rank instead of a budget")
    else:
        chosen |= {"budget": settings.budget if settings.budget is not None else f"{share:.0%}", **options}
    protection = so.protect(setup.model, setup.optimizer, **chosen)
    rows = setup.rows or ROWS_AT_ONCE
    return Protected(protection, settings.examples, settings.every, setup.seed, setup.own, rows=rows)
