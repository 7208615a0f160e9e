"""Devices by name, and whether they are here."""

import torch

from sketchogd.lab.names import unknown


def here() -> list[str]:
    """The devices of this machine."""
    return ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]


def devices(names: str) -> list[str]:
    """The devices in a list with commas.

    Raises:
        ValueError: one of them has a name that torch does not know, or is not in this machine.
    """
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if not chosen:
        raise ValueError("--device names no device; give cpu, cuda, cuda:1, or several with commas")
    for name in chosen:
        if not _usable(name):
            raise ValueError(_why_not(name))
    return chosen


def _usable(name: str) -> bool:
    try:
        return torch.empty(1, device=name).fill_(1.0).tolist() == [1.0]
    except (RuntimeError, AssertionError, NotImplementedError, ValueError):
        return False


def _why_not(name: str) -> str:
    if name.partition(":")[0] == "cuda" and not torch.cuda.is_available():
        why = "is built without CUDA" if torch.version.cuda is None else "finds no GPU"
        return f"--device {name}: torch {torch.__version__} {why} here; use --device cpu"
    return f"{unknown('device', name, here())}; cuda alone is the first GPU, where there is one"
