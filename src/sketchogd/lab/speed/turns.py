"""Fastest turns: things that are compared take turns in one process, and the fastest turn of each counts.

What slows a turn down (other programs, a processor that changes its clock rate) is never the thing itself, and turns
that alternate meet the same conditions.
"""

import time
from collections.abc import Callable, Mapping

import torch

from sketchogd.lab.runs.clock import synchronize


def fastest(
    things: Mapping[str, Callable[[], object]],
    device: torch.device,
    *,
    seconds: float,
    most: int = 30,
    repeat: int = 1,
) -> dict[str, float]:
    """Seconds that one call of each thing takes: the fastest of up to `most` turns of `repeat` calls.

    Args:
        things: what to call, by name.
        device: where it runs; a GPU is waited for.
        seconds: turns end after this time, but each thing has at least two, after one that is not counted.
        most: turns of each thing.
        repeat: calls per turn.
    """
    best = dict.fromkeys(things, float("inf"))
    for thing in things.values():
        thing()
    end = time.perf_counter() + seconds
    for turn in range(most):
        if turn >= 2 and time.perf_counter() > end:
            break
        for name, thing in things.items():
            best[name] = min(best[name], once(thing, device, repeat))
    return best


def once(thing: Callable[[], object], device: torch.device, repeat: int = 1) -> float:
    """Seconds that one call takes, as the mean over `repeat` calls."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(repeat):
        thing()
    synchronize(device)
    return (time.perf_counter() - start) / repeat
