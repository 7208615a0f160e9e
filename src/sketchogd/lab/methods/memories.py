"""The memory that a method's settings describe: of the size in its options, or the largest that its budget holds.

Letters: p protected parameters, k rank.
"""

from typing import Any

import sketchogd as so
from sketchogd.lab.methods.registry import Method, Setup
from sketchogd.lab.names import unknown
from sketchogd.optimizer.reference import FULL, copies_nbytes
from sketchogd.projector import Anchor
from sketchogd.sketch.base import largest_rank


def room(settings: Method, setup: Setup) -> int:
    """Bytes that a budget leaves for the memory after the copy of the weights that `every` > 1 or an anchor needs.

    Raises ValueError where nothing is left.
    """
    assert settings.budget is not None
    options = settings.options
    anchored = options.get("ridge", 0.0) is None or options.get("strength") is not None
    anchor = Anchor(options.get("anchor_dtype")) if anchored else FULL
    copies = copies_nbytes(setup.parameters.tensors, anchor) if settings.every > 1 or anchored else 0
    if settings.budget <= copies:
        raise ValueError(
            f"{settings.name}: a budget of {settings.budget:,} bytes does not even hold the copy of the weights "
            f"({copies:,} bytes) that it needs; raise it, or use every=1 and, for a layer memory, a ridge, or "
            "anchor_dtype=int8"
        )
    return settings.budget - copies


def sketch(settings: Method, setup: Setup, kind: Any, **fixed: Any) -> so.Sketch:
    """A sketch of this kind with the options' settings and these fixed ones."""
    made: so.Sketch
    if settings.budget is None:
        made = kind(**settings.options, **fixed)
    else:
        made = kind.from_budget(room(settings, setup), setup.parameters.p, **settings.options, **fixed)
    return made


def gradient_memory(settings: Method, setup: Setup) -> so.GradientMemory:
    """A product sketch with the options' test matrix, and a basis of its own where they ask for one.

    A budget then counts the basis and, unless it is offloaded to the host, the sketch as well. Raises ValueError for an
    unknown test matrix, or a budget that is too small.
    """
    options = dict(settings.options)
    places = {key: options.pop(key) for key in ("basis_dtype", "offload")}
    rows = {"power": options.pop("power", 0.0), "blocks": options.pop("blocks", 1)}
    rows |= {"strength": options.pop("strength", None)}
    kind, zeta = options.pop("test_matrix"), options.pop("zeta")
    if kind not in ("sparse", "gaussian"):
        raise ValueError(unknown("test matrix", kind, ["sparse", "gaussian"]))
    test_matrix = so.SparseSign(zeta) if kind == "sparse" else so.Gaussian()

    def memory(k: int) -> so.GradientMemory:
        made = so.ProductSketch(k, seed=setup.seed_of(settings.name), test_matrix=test_matrix)
        return so.GradientMemory(made, **places, **rows)

    if settings.budget is None:
        return memory(options["rank"])
    parameters = setup.parameters

    def counted(k: int) -> int:
        made = memory(k)
        on_host = so.GradientMemory(made.sketch, **rows).cost(parameters) if made.offload is not None else 0
        return made.cost(parameters) - on_host

    left = room(settings, setup)
    rank = largest_rank(lambda k: counted(k) <= left, parameters.p)
    if rank == 0:
        raise ValueError(_too_small(settings, counted(1), left))
    return memory(rank)


def layer_memory(settings: Method, setup: Setup, **fixed: Any) -> so.LayerMemory:
    """A layer memory with the options' settings and these fixed ones. Raises ValueError for too small a budget."""
    options = {key: value for key, value in settings.options.items() if key != "output"}

    def memory(k: int) -> so.LayerMemory:
        given = {"curvature": "positions", **options, "rank": k}  # what the stored runs have
        return so.LayerMemory(**given, **fixed, seed=setup.seed_of(settings.name))

    if settings.budget is None:
        return memory(options["rank"])
    left, parameters = room(settings, setup), setup.parameters
    rank = largest_rank(lambda k: memory(k).cost(parameters) <= left, parameters.p)
    if rank == 0:
        raise ValueError(_too_small(settings, memory(1).cost(parameters), left))
    return memory(rank)


def _too_small(settings: Method, least: int, left: int) -> str:
    return f"{settings.name}: the smallest memory takes {least:,} bytes; {left:,} are left for it"
