"""Timing things that are compared: they take turns in one process, and the fastest turn of each counts.

What slows a turn down (other programs, a processor that changes its pace) is never the thing itself, and turns that
alternate meet the same conditions.
"""

import contextlib
import ctypes
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch


def wait(device: torch.device) -> None:
    """Until a GPU has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fastest(
    things: Mapping[str, Callable[[], object]],
    device: torch.device,
    *,
    seconds: float,
    most: int = 30,
    repeat: int = 1,
) -> dict[str, float]:
    """Seconds that one call of each thing takes: the fastest of up to `most` turns of `repeat` calls.

    Each has one turn before that is not counted. Turns end after `seconds`, but each thing has at least two.
    """
    best = dict.fromkeys(things, float("inf"))
    for thing in things.values():
        thing()
    end = time.perf_counter() + seconds
    for turn in range(most):
        if turn >= 2 and time.perf_counter() > end:
            break
        for name, thing in things.items():
            wait(device)
            start = time.perf_counter()
            for _ in range(repeat):
                thing()
            wait(device)
            best[name] = min(best[name], (time.perf_counter() - start) / repeat)
    return best


def peak_bytes(work: Callable[[], object], device: torch.device) -> float:
    """How much more memory is in use at the worst moment of some work than before it; NaN where nobody counts.

    On a GPU what torch allocates, on Linux the resident memory of the process.
    """
    if device.type == "cuda":
        wait(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        wait(device)
        return float(torch.cuda.max_memory_allocated(device) - before)
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)  # glibc keeps what was freed; used again, it would not show
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark is now what is resident
        before = _resident("VmRSS")
        work()
        return float(_resident("VmHWM") - before)
    except OSError:
        work()
        return float("nan")


def _resident(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])
