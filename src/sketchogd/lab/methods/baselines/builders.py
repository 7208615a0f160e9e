"""How the baselines are built from settings; importing this file registers them."""

from typing import Any

from sketchogd.lab.methods.baselines import (
    AGEM,
    DER,
    EWC,
    GPM,
    L2,
    OWM,
    SGP,
    SI,
    Averaging,
    Laplace,
    LwF,
    ORFit,
    Replay,
)
from sketchogd.lab.methods.learner import Learner
from sketchogd.lab.methods.registry import Method, Setup, register
from sketchogd.lab.names import unknown
from sketchogd.lab.streams.encodings import AS_GIVEN, Encoding

STORED = {"stored": "inputs"}
"""Recorded runs keep the inputs of the network; "bytes" keeps pixels or tokens, their smallest lossless form."""


@register(
    "a-gem",
    "A-GEM: raw examples, gradients on their half-space",
    title="A-GEM",
    style=3,
    keeps_examples=True,
    every=1,
    sizes=["per_task"],
    per_task=120,
    batch=120,
    later=STORED,
)
def _agem(settings: Method, setup: Setup) -> Learner:
    given: dict[str, Any] = {"encoding": _stored(settings, setup)[0], "seed": setup.seed_of(settings.name)}
    return AGEM(setup.model, setup.loss, **agem_options(settings, setup), **given)


def agem_options(settings: Method, setup: Setup) -> dict[str, Any]:
    """The options of A-GEM; a budget determines how many examples per task it keeps."""
    options = {key: value for key, value in settings.options.items() if key != "stored"}
    if settings.budget is not None:
        options["per_task"] = settings.budget // _stored(settings, setup)[1] // setup.tasks
    return options


def _stored(settings: Method, setup: Setup) -> tuple[Encoding, int]:
    """How examples are kept, and the bytes of one."""
    form = settings.options.get("stored", "inputs")
    if form not in ("inputs", "bytes"):
        raise ValueError(unknown("form of stored examples", form, ["inputs", "bytes"]))
    if form == "inputs":
        return AS_GIVEN, setup.example_nbytes
    return setup.encoding, setup.encoded_nbytes or setup.example_nbytes


@register(
    "ewc",
    "elastic weight consolidation; implicit=true meets the penalty by implicit steps",
    title="EWC",
    style=13,
    every=1,
    strength=10.0,
    samples=200,
    later={"implicit": False},
)
def _ewc(settings: Method, setup: Setup) -> Learner:
    options, optimizer = _implicit(settings, setup)
    given: dict[str, Any] = {"parameters": setup.protected, "seed": setup.seed_of(settings.name)}
    return _require_fits(settings, EWC(setup.model, **options, optimizer=optimizer, **given))


def _implicit(settings: Method, setup: Setup) -> tuple[dict[str, Any], Any]:
    """The options but `implicit`, and the optimizer if that is set."""
    options = {key: value for key, value in settings.options.items() if key != "implicit"}
    return options, setup.optimizer if settings.options.get("implicit") else None


@register("si", "synaptic intelligence", title="SI", style=12, every=1, strength=1.0, damping=0.1)
def _si(settings: Method, setup: Setup) -> Learner:
    return _require_fits(settings, SI(setup.model, **settings.options, parameters=setup.protected))


def _require_fits(settings: Method, built: Learner) -> Learner:
    """Refuse a budget that a method of fixed size does not fit into."""
    if settings.budget is not None and built.nbytes > settings.budget:
        raise ValueError(f"{settings.name} takes {built.nbytes:,} bytes whatever its settings; got {settings.budget:,}")
    return built


@register(
    "replay",
    "experience replay from a reservoir of raw examples",
    title="Replay",
    style=11,
    keeps_examples=True,
    every=1,
    sizes=["capacity"],
    capacity=1200,
    batch=10,
    later=STORED,
)
def _replay(settings: Method, setup: Setup) -> Learner:
    options = {key: value for key, value in settings.options.items() if key != "stored"}
    options["encoding"], nbytes = _stored(settings, setup)
    if settings.budget is not None:
        options["capacity"] = settings.budget // nbytes
    return Replay(setup.model, setup.loss, **options, seed=setup.seed_of(settings.name))


@register(
    "der",
    "DER++: a reservoir of raw examples with the logits that they had",
    title="DER++",
    style=18,
    keeps_examples=True,
    alone=True,
    every=1,
    sizes=["capacity"],
    capacity=1200,
    batch=10,
    alpha=0.1,
    beta=0.5,
)
def _der(settings: Method, setup: Setup) -> Learner:
    options = dict(settings.options)
    if settings.budget is not None:
        nbytes = setup.encoded_nbytes or setup.example_nbytes
        options["capacity"] = settings.budget // (nbytes + 4 * setup.classes)
    given: dict[str, Any] = {"encoding": setup.encoding, "seed": setup.seed_of(settings.name)}
    return DER(setup.model, setup.loss, setup.answers, **options, **given)


_BASES: dict[str, Any] = {"energy": 0.95, "more": 0.0, "samples": 125, "updates": False}


@register(
    "gpm-published",
    "GPM as its authors have it: a decomposition of the inputs of each layer per task",
    title="GPM, per task",
    style=19,
    every=1,
    **_BASES,
)
def _gpm(settings: Method, setup: Setup) -> Learner:
    given: dict[str, Any] = {"parameters": setup.protected, "seed": setup.seed_of(settings.name)}
    return GPM(setup.model, **settings.options, **given)


@register(
    "sgp", "scaled gradient projection: GPM with importances", title="SGP", style=20, every=1, **_BASES, scale=10.0
)
def _sgp(settings: Method, setup: Setup) -> Learner:
    given: dict[str, Any] = {"parameters": setup.protected, "seed": setup.seed_of(settings.name)}
    return SGP(setup.model, **settings.options, **given)


@register(
    "owm",
    "orthogonal weights modification: a recursive projector per layer",
    title="OWM",
    style=21,
    every=1,
    alpha=1.0,
    decay=0.001,
    batch=64,
    updates=False,
)
def _owm(settings: Method, setup: Setup) -> Learner:
    return _require_fits(settings, OWM(setup.model, **settings.options, parameters=setup.protected))


@register(
    "orfit",
    "ORFit: one pass, each example fitted orthogonally to earlier gradients",
    title="ORFit",
    style=22,
    alone=True,
    every=1,
    sizes=["rank"],
    rank=200,
    share=1.0,
)
def _orfit(settings: Method, setup: Setup) -> Learner:
    options = dict(settings.options)
    if settings.budget is not None:
        options["rank"] = settings.budget // (4 * (setup.parameters.p + 1))
    return ORFit(setup.model, setup.optimizer, **options, parameters=setup.protected)


@register(
    "laplace",
    "online Laplace with full Kronecker factors",
    title="Laplace, Kronecker",
    style=23,
    every=1,
    strength=1.0,
    samples=500,
)
def _laplace(settings: Method, setup: Setup) -> Learner:
    given: dict[str, Any] = {"parameters": setup.protected, "seed": setup.seed_of(settings.name)}
    return _require_fits(settings, Laplace(setup.model, **settings.options, **given))


@register("l2", "pull to the old weights", title="L2", style=24, every=1, strength=0.1, implicit=False)
def _l2(settings: Method, setup: Setup) -> Learner:
    options, optimizer = _implicit(settings, setup)
    return _require_fits(settings, L2(setup.model, **options, optimizer=optimizer, parameters=setup.protected))


@register("averaging", "weights averaged after each task", title="Averaging", style=25, every=1, share=None)
def _averaging(settings: Method, setup: Setup) -> Learner:
    return _require_fits(settings, Averaging(setup.model, **settings.options, parameters=setup.protected))


@register(
    "lwf",
    "learning without forgetting: held to the old model's answers",
    title="LwF",
    style=26,
    alone=True,
    every=1,
    strength=1.0,
    temperature=2.0,
)
def _lwf(settings: Method, setup: Setup) -> Learner:
    return LwF(setup.model, setup.answers, **settings.options)
