"""A few numbers of the weights, by which a memory file knows whether it is loaded beside those it was saved with."""

from typing import Any

import torch
from torch import Tensor

from ..model.parameters import ProtectedParameters

TENSORS, NUMBERS = 128, 8
"""Of how many parameters, evenly chosen, how many numbers are taken, at evenly spread places."""

CAST = 2.0**-8
"""By what share a number may differ: as far as storing weights in bfloat16 or float16 changes them."""


def fingerprint(parameters: ProtectedParameters) -> list[float] | None:
    """Return some of the weights, or None where they are split over processes. NaN and infinity count as 0."""
    if parameters.split:
        return None
    chosen = [parameters.tensors[i] for i in _spread(len(parameters), TENSORS)]
    parts = [_numbers(t.detach()).to(parameters.device) for t in chosen]
    found = torch.cat(parts).nan_to_num(0.0, 0.0, 0.0)
    return [float(f"{x:.7g}") for x in found.tolist()]


def is_of(found: Any, parameters: ProtectedParameters) -> bool:
    """Whether a fingerprint may be that of these weights, up to casts to types of 16 bits."""
    mine = fingerprint(parameters)
    if mine is None or not isinstance(found, list) or len(found) != len(mine):
        return True  # nothing to compare
    return all(abs(a - b) <= CAST * max(abs(a), abs(b)) + 1e-6 for a, b in zip(found, mine, strict=True))


def _numbers(t: Tensor) -> Tensor:
    flat = t.reshape(-1)
    places = torch.tensor(list(_spread(len(flat), NUMBERS)), device=flat.device, dtype=torch.long)
    return flat[places].float()


def _spread(n: int, most: int) -> range | list[int]:
    return range(n) if n <= most else [i * n // most for i in range(most)]
