"""Peak memory of some work."""

import contextlib
import ctypes
from collections.abc import Callable
from pathlib import Path

import torch

from sketchogd.lab.runs.clock import synchronize


def peak_bytes(work: Callable[[], object], device: torch.device) -> float:
    """How much more memory is in use at the peak of some work than before it; NaN where it is not known.

    On a GPU what torch allocates, on Linux the resident memory of the process.
    """
    if device.type == "cuda":
        synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        synchronize(device)
        return float(torch.cuda.max_memory_allocated(device) - before)
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)  # glibc keeps what was freed; used again, it would not show
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark to what is resident
        before = _resident("VmRSS")
        work()
        return float(_resident("VmHWM") - before)
    except OSError:
        work()
        return float("nan")


def _resident(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])
