"""Which runs of a grid can be trained side by side: those that differ in seed and method only."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from sketchogd.lab import records
from sketchogd.lab.methods import KINDS, method
from sketchogd.lab.runs.config import RunConfig
from sketchogd.lab.runs.sidebyside.stacked import can_be_stacked
from sketchogd.lab.streams import record

BLOCK = 50
"""Steps per block where no run projects more often."""


def groups(configs: Sequence[RunConfig], most: int, room: int | None = None) -> list[list[RunConfig]]:
    """The configs in groups of at most `most` that can be trained side by side, in order within each group.

    Runs share a group if they differ in seed and method only and project equally often, or all after multiples of
    `BLOCK` steps. Methods that act at every step without projecting, such as replay, form a group of their own; plain
    training joins the first group. `room` limits the bytes that the methods of a group are expected to keep.
    """
    found: dict[Any, list[RunConfig]] = {}
    idle: dict[Any, list[RunConfig]] = {}
    alone = []
    for config in configs:
        if most < 2 or not joins(config):
            alone.append([config])
            continue
        key = records.config_digest(replace(config, method=_ANY, seed=0).record())
        if config.method.name == "sgd":
            idle.setdefault(key, []).append(config)
        else:
            every = config.method.every if projects(config) else 0
            found.setdefault((key, every if every % BLOCK else min(every, BLOCK)), []).append(config)
    for key, members in idle.items():
        home = next((name for name in found if name[0] == key), (key, 0))
        found.setdefault(home, [])[:0] = members
    return [piece for members in found.values() for piece in _pieces(members, most, room)] + alone


def _pieces(configs: Sequence[RunConfig], most: int, room: int | None) -> Iterator[list[RunConfig]]:
    piece: list[RunConfig] = []
    taken = 0
    for config in configs:
        size = expected_bytes(config)
        if piece and (len(piece) == most or (room is not None and taken + size > room)):
            yield piece
            piece, taken = [], 0
        piece.append(config)
        taken += size
    if piece:
        yield piece


_ANY = method("sgd")


def projects(config: RunConfig) -> bool:
    """Whether a run's method projects displacements, so that the number of steps between projections matters."""
    return KINDS[config.method.name].every != 1


def expected_bytes(config: RunConfig) -> int:
    """Estimate of the bytes that a method keeps, from its settings alone."""
    chosen = config.method
    if chosen.budget is not None:
        return chosen.budget
    if chosen.name in ("layer-sketch", "layer-memory", "gpm"):
        return 32 << 20
    known, options = record(config.benchmark), chosen.options
    p, T = known.parameters, known.tasks
    vectors = options.get("rank", 0) + options.get("corank", 0) + options.get("buffer", 0)
    vectors *= 2 if chosen.name in ("sketchogd-2", "sketchogd-3") else 1  # their test matrices are stored
    vectors += T * options.get("components", 0) + options.get("samples", 0)
    vectors += options.get("capacity", 0) if chosen.name == "random-ogd" else 0
    vectors += T * (chosen.examples or 0) if chosen.name == "ogd" else 0
    return 4 * p * vectors + ((32 << 20) if chosen.name == "both" else 0)


def joins(config: RunConfig) -> bool:
    """Whether a run can be trained with others: `stacked` has to have the passes of its network.

    Where features of frozen layers replace images, examples cannot be kept as pixels.
    """
    if KINDS[config.method.name].alone:
        return False
    if config.training.eval_after_first_step and config.method.options.get("stored") == "bytes":
        return False
    return can_be_stacked(record(config.benchmark).network, config.training)
