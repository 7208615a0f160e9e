"""From a number of bytes to a memory that fits."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .memory import GradientMemory, LayerMemory, Memory
from .memory.ranks import Division
from .model.layers import TRANSPOSED, find_layers
from .model.parameters import ProtectedParameters, local
from .optimizer.joint import correction_form
from .optimizer.reference import ROUNDED, copies_nbytes
from .projector import Anchor
from .projector.span import Span
from .sketch import ProductSketch
from .sketch.base import largest_rank
from .sketch.columns import Whole
from .theory.advice import recommend, typical_spectrum

SMALLEST_RANK = 4
"""Below this rank a sketch protects next to nothing."""

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def parse_bytes(budget: str | int, whole: int | None = None) -> int:
    """A number of bytes from 2_000_000, "2MB" (10⁶ bytes) or "2MiB" (2²⁰ bytes), or "25%" of `whole` bytes.

    >>> parse_bytes("2MB"), parse_bytes("0.5 GiB"), parse_bytes(4096), parse_bytes("25%", 4000)
    (2000000, 536870912, 4096, 1000)
    """
    if isinstance(budget, int) and not isinstance(budget, bool) and budget > 0:
        return budget
    share = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%\s*", budget) if isinstance(budget, str) else None
    if share is not None and whole is not None and float(share[1]) > 0:
        return int(float(share[1]) / 100 * whole)
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*", budget) if isinstance(budget, str) else None
    if match is None or match[2].lower() not in _UNITS or float(match[1]) <= 0:
        raise ValueError(f'a budget is a positive number of bytes or a text such as "2MB" or "512KiB"; got {budget!r}')
    return int(float(match[1]) * _UNITS[match[2].lower()])


_SHOWN = {"GB": 10**9, "MB": 10**6, "kB": 10**3, "B": 1}


def format_bytes(nbytes: float, digits: int = 3, *, decimals: int | None = None, unit: str | None = None) -> str:
    """A number of bytes as text in decimal units, which `parse_bytes` reads.

    Args:
        nbytes: the number.
        digits: significant digits below 100 of a unit; from there on the number is written without decimals.
        decimals: a fixed number of decimals instead, so that the numbers of a column line up. Bytes never have any.
        unit: "B", "kB", "MB" or "GB"; by default the largest one of which there is at least one.

    >>> format_bytes(545_328_000), format_bytes(1_601_312), format_bytes(0)
    ('545 MB', '1.6 MB', '0 B')
    >>> format_bytes(545_328_000, decimals=1), format_bytes(250_000, unit="MB")
    ('545.3 MB', '0.25 MB')
    """
    shown = unit or next((name for name, size in _SHOWN.items() if nbytes >= size), "B")
    value = nbytes / _SHOWN[shown]
    if decimals is not None and shown != "B":
        return f"{value:.{decimals}f} {shown}"
    return f"{value:.0f} {shown}" if value >= 100 else f"{value:.{digits}g} {shown}"


class Choice(NamedTuple):
    """A memory that a budget picked, and why, in words."""

    memory: Memory
    reason: str


ANCHORS: tuple[dict[str, Any], ...] = (
    {},
    {"anchor_dtype": "int8"},
    {"ridge": 0.0, "energy": 0.95, "outputs": False},
    {"anchor_dtype": "span"},
)
"""Settings of a layer memory by its anchor: in full, in one byte per weight, none (inputs only, projected hard), or its
coordinates in the remembered directions."""

HARD, SPAN = 2, 3

FULL_SHARE = 0.25
"""What an anchor in full may take of a budget: beyond, more rows keep more than exact weights do."""

_ABOUT = (
    "",
    " Its anchor has one byte per weight: in full it would leave too little for the sketches.",
    " Inputs only, projected hard: an anchor would leave too little for the sketches.",
    " Its anchor is kept in the remembered directions only: whole it would leave too little for the sketches.",
)


def anchor_for(nbytes: int, copies: Sequence[int], otherwise: int = 1, full: float = 0.5) -> int:
    """Which of `ANCHORS` a budget allows: the first whose copies of the weights take at most half of the bytes.

    Args:
        nbytes: the budget.
        copies: bytes of the copies, by anchor.
        otherwise: where none fits.
        full: the share that copies in full may take.

    >>> [anchor_for(nbytes, (400, 100, 0)) for nbytes in (800, 799, 200, 199)]
    [0, 1, 1, 2]
    """
    shares = [full, *[0.5] * (len(copies) - 1)]
    return next((i for i, copy in enumerate(copies) if copy <= shares[i] * nbytes), otherwise)


def memory_for(
    budget: str | int,
    parameters: ProtectedParameters,
    every: int,
    seed: int,
    corrections: int = 0,
    strength: float | None = None,
    reserved: int = 0,
) -> Choice:
    """The memory that makes the most of a budget, in which a copy of the weights is counted where one is kept.

    A layer memory where at least half of the parameters belong to layers (it needs the fewest bytes), otherwise the
    sketch of the gradients that `theory.recommend` names for `theory.typical_spectrum`, there being no gradients yet.

    Args:
        budget: bytes, or a text such as "2MB" or "25%" (of the bytes of the protected parameters).
        parameters: the protected parameters.
        every: optimizer steps between two projections; more than one needs a copy of the weights.
        seed: for the memory.
        strength: of the pull; None for the usual one.
        corrections: how many corrections of gradients a pull keeps beside the anchor (`optimizer.joint`).
        reserved: bytes of the budget that something else will take.

    Raises:
        ValueError: the budget is too small; the message says how many bytes are needed.
    """
    tensors = [local(t) for t in parameters.tensors]
    whole = int(parameters.columns.largest(copies_nbytes(tensors)))
    nbytes, nowhere = parse_bytes(budget, whole) - reserved, [None] * len(tensors)
    sharded = not isinstance(parameters.columns, Whole) and not parameters.split  # so are gradient sketches only
    layers = [] if sharded else find_layers(parameters, True)
    in_layers = sum(layer.weight.numel() + (0 if layer.bias is None else layer.bias.numel()) for layer in layers)
    last, mean = min(1, corrections), max(0, corrections - 1)

    def copies(anchor: int, spans: Sequence[Span | None]) -> int:
        """The bytes of the anchor and of the corrections of an entry of `ANCHORS`."""
        if anchor == HARD:
            return whole if every > 1 else 0
        form = Anchor(ANCHORS[anchor].get("anchor_dtype"))
        sizes = [copies_nbytes(tensors, each, spans) for each in (form, correction_form(form), ROUNDED)]
        return sum(int(parameters.columns.largest(n)) * k for n, k in zip(sizes, (1, last, mean), strict=True))

    if 2 * in_layers < parameters.p:
        if strength is not None:
            if sharded:
                raise ValueError(
                    "strength= is for a layer memory, and with shard=True gradients are sketched, and projected hard. "
                    "Leave strength= or shard= out"
                )
            raise ValueError(
                "strength= is for a layer memory, and most parameters of this model belong to no layer; give memory= "
                "with the rule, such as so.GradientMemory(sketch, strength=2.0)"
            )
        kept = whole if every > 1 else 0
        rank = _rank(nbytes, parameters, lambda k: GradientMemory(ProductSketch(k)), lambda _: kept, parameters.p)
        about = "Sketches are split over processes" if sharded else "Most parameters belong to no layer"
        # In rows, not bytes: without a stored test matrix every sketch takes the bytes of its rows, and they count.
        advice = recommend(typical_spectrum(), vectors=rank, d=parameters.p)
        return Choice(
            GradientMemory(advice.sketch(seed)),
            f"{about}, so gradients are sketched; {rank} rows fit. If their spectrum is "
            f"like that of other networks: {advice.reason}",
        )
    widths = [layer.width for layer in layers if layer.kind != "embedding"] + [layer.fan_out for layer in layers]
    # Parts of weights that are stored transposed have no coordinates of their own.
    no_span = parameters.split and any(layer.kind in TRANSPOSED and not layer.tokens for layer in layers)
    anchor = anchor_for(nbytes, [copies(i, nowhere) for i in range(2)], HARD if no_span else SPAN, FULL_SHARE)

    def memory(rank: int, division: Division | None = None) -> LayerMemory:
        own = ANCHORS[anchor]
        strong = None if anchor == HARD else strength
        return LayerMemory(rank, **own, strength=strong, seed=seed, division=division)

    def beside(rank: int) -> int:
        return copies(anchor, memory(rank).spans(parameters))

    # Sketches of the smallest rank may still be too large beside this anchor; the last kind is the smallest of all.
    smallest = min(SMALLEST_RANK, max(widths))
    for more in (HARD,) if no_span else (SPAN, HARD):
        if memory(smallest).cost(parameters) + beside(smallest) > nbytes:
            anchor = more
    if strength is not None and anchor == HARD:
        raise ValueError(
            f"strength= is for a pull to an anchor, for which a budget of {nbytes:,} bytes is too small. Raise the "
            "budget, or leave strength= out for a projection of inputs"
        )
    rank = _rank(nbytes, parameters, memory, beside, max(widths))
    spans, each = memory(rank).spans(parameters), 2 + last + mean  # bytes of a coordinate: anchor, corrections
    pairs = zip(tensors, spans, strict=True)
    coordinates = parameters.most(sum(len(s.matrix(t)) * len(s.basis) for t, s in pairs if s is not None))
    division = Division(nbytes - beside(rank) + each * coordinates, each if coordinates else 0)
    return Choice(
        memory(rank, None if anchor == HARD else division),
        f"{in_layers / parameters.p:.0%} of the parameters belong to layers, whose inputs and sensitivities take far "
        f"fewer bytes than gradients of length {parameters.p:,}; rank {rank} is the largest that fits.{_ABOUT[anchor]}",
    )


def _rank(
    nbytes: int,
    parameters: ProtectedParameters,
    memory: Callable[[int], Memory],
    beside: Callable[[int], int],
    limit: int,
) -> int:
    """The largest rank that fits beside the copies of the weights; ValueError where it is too small to be of use."""
    smallest = min(SMALLEST_RANK, limit)
    rank = largest_rank(lambda k: memory(k).cost(parameters) + beside(k) <= nbytes, limit)
    if rank < smallest:
        copies = beside(smallest)
        copy = f", {copies:,} of them for a copy of the weights" if copies else ""
        raise ValueError(
            f"a budget of {nbytes:,} bytes is too small for {parameters.p:,} parameters: the smallest useful memory "
            f"(rank {smallest}) takes {memory(smallest).cost(parameters) + copies:,} bytes{copy}. Raise the budget, or "
            "protect fewer parameters with parameters="
        )
    return rank
