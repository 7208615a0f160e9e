"""Steps that cannot be projected since their gradients, or where they led, are not finite.

Projecting a vector with one NaN makes all of it NaN. Such a step is left to the optimizer as it is, and said aloud.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ProtectionWarning

_LOOK_EVERY = 100


def at_once(t: Tensor) -> bool:
    """Whether reading a number makes nothing wait: on a CPU."""
    return t.device.type == "cpu"


def numbers_in(values: Sequence[Tensor | float]) -> list[float]:
    """Read numbers, of which any may be on a GPU, waiting for it once.

    >>> numbers_in([torch.tensor(2), 0.5])
    [2.0, 0.5]
    """
    far = [value for value in values if isinstance(value, Tensor) and not at_once(value)]
    read = iter(torch.stack([value.double() for value in far]).tolist() if far else ())
    return [next(read) if isinstance(v, Tensor) and not at_once(v) else float(v) for v in values]


@dataclass(frozen=True)
class Finite:
    """The answer for one step: a bool, or on a GPU a tensor with one."""

    known: bool | Tensor

    def or_zero(self, t: Tensor) -> Tensor:
        """`t`, which may be overwritten, or zeros."""
        if isinstance(self.known, Tensor):
            return torch.where(self.known, t, torch.zeros((), dtype=t.dtype, device=t.device))
        return t if self.known else t.zero_()

    def __bool__(self) -> bool:
        return bool(self.known)


FINITE, NOT_FINITE = Finite(True), Finite(False)


class FiniteCheck:
    """Decides step by step whether there is something finite to project. `skipped` counts the steps without."""

    def __init__(self) -> None:
        self._skipped: Tensor | int = 0
        self._told = 0
        self._bad = False
        self._steps = 0

    def of(self, t: Tensor, skipped_anyway: bool = False) -> Finite:
        """Whether a vector is finite, or a number that is not unless all entries of some vector are.

        On a CPU it is read at once. A GPU is not made to wait: it keeps the answer, and a count that is read at every
        100th step. With `skipped_anyway` the optimizer knows by itself, and nothing is counted.
        """
        size = t.sum() if t.ndim else t
        if at_once(size):
            known = math.isfinite(size.item())
            if not (known or skipped_anyway):
                self._note()
            self._bad = not known and (self._bad or not skipped_anyway)
            return FINITE if known else NOT_FINITE
        finite = size.isfinite()
        if not skipped_anyway:
            self._steps += 1
            self._skipped = self._skipped + (~finite).long()
            if self._steps % _LOOK_EVERY == 0 and not (finite.is_cuda and torch.cuda.is_current_stream_capturing()):
                self.look()
        return Finite(finite)

    @property
    def skipped(self) -> int:
        """How many steps were not projected."""
        return int(self._skipped)

    def look(self) -> None:
        """Warn of steps that were skipped since the last look."""
        if self.skipped > self._told:
            self._warn()

    def _note(self) -> None:
        """Count a bad step; warn where a series of them begins."""
        self._skipped = self._skipped + 1
        if not self._bad:
            self._warn()

    def _warn(self) -> None:
        self._told = self.skipped
        warnings.warn(
            f"gradients or weights of {self._told} step(s) so far contain NaN or infinity; these steps are left to the "
            "optimizer and are NOT PROTECTED. Look for a division by zero or a learning rate that is too large, skip "
            "such steps (torch.amp.GradScaler does), or go back to weights that were finite",
            ProtectionWarning,
            stacklevel=6,
        )
