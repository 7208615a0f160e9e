"""How the baselines are built from settings; importing this file registers them."""

from typing import Any

from sketchogd.lab.methods.baselines import AGEM, EWC, SI, Replay
from sketchogd.lab.methods.learner import Learner
from sketchogd.lab.methods.registry import Method, Setup, register


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
)
def _agem(settings: Method, setup: Setup) -> Learner:
    return AGEM(setup.model, setup.loss, **agem_options(settings, setup), seed=setup.seed_of(settings.name))


def agem_options(settings: Method, setup: Setup) -> dict[str, Any]:
    """The options of A-GEM; a budget determines how many examples per task it keeps."""
    options = dict(settings.options)
    if settings.budget is not None:
        options["per_task"] = settings.budget // setup.example_nbytes // setup.tasks
    return options


@register("ewc", "elastic weight consolidation", title="EWC", style=13, every=1, strength=10.0, samples=200)
def _ewc(settings: Method, setup: Setup) -> Learner:
    built = EWC(setup.model, **settings.options, parameters=setup.protected, seed=setup.seed_of(settings.name))
    return _require_fits(settings, built)


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
)
def _replay(settings: Method, setup: Setup) -> Learner:
    options = dict(settings.options)
    if settings.budget is not None:
        options["capacity"] = settings.budget // setup.example_nbytes
    return Replay(setup.model, setup.loss, **options, seed=setup.seed_of(settings.name))
