"""How fast the library is, as ratios to limits measured in the same process.

    python -m sketchogd.lab.speed --device cuda --save speed.json

`measure` runs everything; a group that fails is reported as failed, and the others go on.

* `ratios`: one measurement beside its target
* `turns`, `peak`: how time and memory are measured
* `limits`, `literal`: what the library is compared with
* `gradients`, `layers`, `networks`, `training`, `scale`: the measurements
"""

import importlib
import importlib.util
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from sketchogd import __version__
from sketchogd.lab.speed.gradients import GROUPS, Setting
from sketchogd.lab.speed.ratios import Ratio

MODULES = ("scale", "layers", "networks", "training")
"""Modules with a function `measure(device, quick) -> list[Ratio]`; each is a group of its name."""

TARGETS = {"basis": "cpu", "layers": "cpu", "scale": "cuda"}
"""Groups whose targets are for one kind of device; on another they are measured without a verdict."""

__all__ = ["Ratio", "groups", "machine", "measure"]


def groups() -> tuple[str, ...]:
    """The names of all groups of measurements."""
    return (*GROUPS, *(name for name in MODULES if importlib.util.find_spec(f"{__name__}.{name}")))


def measure(
    device: str = "cpu", *, quick: bool = False, only: str | None = None, tell: Callable[[str], None] | None = None
) -> list[Ratio]:
    """All ratios, or those of one group. `tell` is called before every group starts and after it ends.

    Raises ValueError for an unknown group. What a measurement raises becomes a ratio of NaN with the reason.
    """
    if only is not None and only not in groups():
        raise ValueError(f"no group {only!r}; there are {', '.join(groups())}")
    found: list[Ratio] = []
    for name in groups() if only is None else (only,):
        if tell is not None:
            tell(name)
        start = time.perf_counter()
        found += _guarded(name, device, quick)
        if torch.device(device).type == "cuda":
            torch.cuda.empty_cache()
        if tell is not None:
            tell(f"{name}: {time.perf_counter() - start:.0f} s")
    return found


def _guarded(group: str, device: str, quick: bool) -> list[Ratio]:
    try:
        found: list[Ratio]
        if group in GROUPS:
            found = GROUPS[group](Setting(torch.device(device), quick))
        else:
            found = importlib.import_module(f"{__name__}.{group}").measure(device, quick)
    except Exception as error:  # one measurement that fails must not stop the others
        return [Ratio.failed(group, error)]
    here = torch.device(device).type
    if TARGETS.get(group, here) != here:
        return [replace(ratio, target=None) for ratio in found]
    return found


def machine(device: str) -> dict[str, Any]:
    """What the numbers were measured on: processor, threads, versions."""
    found: dict[str, Any] = {
        "sketchogd": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "device": device,
        "tf32": torch.backends.cuda.matmul.allow_tf32,
    }
    if torch.device(device).type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found
