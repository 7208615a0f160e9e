"""Sketches that keep their basis in the place of their rows.

A sketch S (m, d) and its basis B (r, d) would need the memory twice; S = R B with R (m, r) small, so S is overwritten
by B and R is kept. The next `observe` first restores S = R B. So **a basis is a view that is valid until the next
observe, merge or load**.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..linalg.dense import restore_
from .base import Sketch


class FactoredSketch(Sketch):
    """A sketch whose state is one block of rows S (m, d), overwritten by its basis when that is asked for."""

    rows: Tensor
    """S, or, when `factor` is there, the orthonormal rows that stand in its place."""
    factor: Tensor | None = None
    """R (m, r) with S = R B."""
    values: Tensor | None = None
    """Estimated eigenvalues, one for each row of the basis."""

    @abstractmethod
    def _factorise(self) -> tuple[Tensor, Tensor]:
        """Overwrite `self._filled()` by orthonormal rows; returns (R (m, r), values (r',) with r' <= r)."""

    def _filled(self) -> Tensor:
        """The part of `rows` that is in use."""
        return self.rows

    def spectrum(self) -> tuple[Tensor, Tensor]:
        """See `Sketch.spectrum`. The first call after an observe computes it."""
        self._require_bound()
        if self.count == 0:
            return torch.zeros(0, dtype=torch.float64, device=self.device), self.rows[:0]
        if self.values is None:
            R, values = self._factorise()
            self.factor, self.values = R.to(self.dtype), values
        return self.values, self.rows[: len(self.values)]

    @property
    def rank_limit(self) -> int | None:
        """See `Sketch`: as many as there are rows in S."""
        return None if self.grows else min(len(self.rows), self.d)

    def _open(self) -> None:
        """Restore S, so that it can be added to."""
        if self.factor is not None:
            restore_(self._filled(), self.factor)
            self.factor = self.values = None

    def _opened_rows(self) -> Tensor:
        """S as a new tensor, the state untouched."""
        filled = self._filled()
        if self.factor is None:
            return filled.clone()
        return self.factor @ filled[: self.factor.shape[1]]

    def _state(self) -> dict[str, Tensor]:
        kept = {"rows": self.rows, **self._more_state()}
        if self.factor is not None and self.values is not None:
            kept |= {"factor": self.factor, "values": self.values}
        return kept

    def _adopt(self, counters: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        rows = tensors["rows"]
        wrong = rows.ndim != 2 or rows.shape[1] != self.columns.width
        if wrong or (not self.grows and rows.shape != self.rows.shape):
            raise ValueError(f"the state's rows have shape {tuple(rows.shape)}, expected {tuple(self.rows.shape)}")
        factor, values = tensors.get("factor"), tensors.get("values")
        if (factor is None) != (values is None) or (
            factor is not None
            and values is not None
            and not (
                factor.ndim == 2 and values.ndim == 1 and len(values) <= factor.shape[1] <= len(factor) <= len(rows)
            )
        ):
            raise ValueError("the state's factor and values do not belong to its rows")
        self._adopt_more(counters, tensors)
        self.rows, self.factor, self.values = rows.to(self.dtype).clone(), factor, values

    grows: ClassVar[bool] = False
    """Whether the number of rows depends on what was observed."""

    def _more_state(self) -> dict[str, Tensor]:
        """State tensors of a subclass beside the rows."""
        return {}

    def _adopt_more(self, counters: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take over the rest of a checked state."""
