"""The limits of a machine, as functions to be timed beside the library's own."""

from collections.abc import Callable

import torch
from torch import Tensor


def product(k: int, b: int, p: int, device: torch.device) -> Callable[[], object]:
    """One product Y += H G of float32 matrices (k, b) and (b, p), the arithmetic of remembering b gradients.

    torch's defaults apply: on a GPU TF32 is off unless the caller has turned it on.
    """
    Y, H, G = (torch.zeros(shape, device=device) for shape in ((k, p), (k, b), (b, p)))
    H.normal_()
    G.normal_()
    return lambda: Y.addmm_(H, G)


def reading(B: Tensor) -> dict[str, Callable[[], object]]:
    """Passes over all entries of B with almost no arithmetic; the faster one gives the bandwidth of reading."""
    entries = B.view(-1)
    return {"sum": entries.sum, "max": entries.max}


def copying(B: Tensor) -> Callable[[], object]:
    """A copy of B: as many bytes read as written, hence two passes over B."""
    copy = torch.empty_like(B)
    return lambda: copy.copy_(B)
