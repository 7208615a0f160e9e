"""Sketches that store their basis in place of their rows.

Keeping a sketch S (m, d) and its basis B (r, d) side by side would double the memory. Since S = R B with a small
R (m, r), S is overwritten by B, and R is kept. The next `observe` first restores S = R B. Therefore **a basis is a view
that is valid until the next observe, merge or load**.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..linalg.dense import restore_
from .base import Sketch
from .columns import Columns
from .stored import MANY, Part, require_orthonormal, size_of, up_to


class FactoredSketch(Sketch):
    """A sketch whose state is one block of rows S (m, d) that `spectrum` overwrites with its basis."""

    rows: Tensor
    """S or, when `factor` is set, the orthonormal rows stored in its place."""
    factor: Tensor | None = None
    """R (m, r) with S = R B; None while `rows` is S itself."""
    values: Tensor | None = None
    """Estimated eigenvalues, one per basis row; None while `rows` is S itself."""

    @abstractmethod
    def _factorise(self) -> tuple[Tensor, Tensor]:
        """Overwrite `self._filled()` with orthonormal rows; returns (R (m, r), values (r',)) with r' <= r.

        Only the first r' rows are the basis; the others are needed to restore S.
        """

    def _filled(self) -> Tensor:
        """Return the rows in use."""
        return self.rows

    def spectrum(self) -> tuple[Tensor, Tensor]:
        """See `Sketch.spectrum`; computed by the first call after an observe and stored."""
        self._require_bound()
        if self.count == 0:
            return torch.zeros(0, dtype=torch.float64, device=self.device), self.rows[:0]
        if self.values is None:
            with self._changing():
                R, values = self._factorise()
                self.factor, self.values = R.to(self.dtype), values
        return self.values, self.rows[: len(self.values)]

    @property
    def rank_limit(self) -> int | None:
        """See `Sketch`: the number of rows of S, at most d."""
        return None if self.grows else min(len(self.rows), self.d)

    def _open(self) -> None:
        """Restore S, so that rows can be added to it."""
        if self.factor is not None:
            with self._changing():
                restore_(self._filled(), self.factor)
                self._add_shift_(self._filled())
                self.factor = self.values = None

    def _opened_rows(self) -> Tensor:
        """Return S as a new tensor, leaving the state untouched."""
        filled = self._filled()
        if self.factor is None:
            return filled.clone()
        rows = self.factor @ filled[: self.factor.shape[1]]
        self._add_shift_(rows)
        return rows

    def _add_shift_(self, rows: Tensor) -> None:
        """Add to R B, in place, what was taken off S before it was factorised."""

    def _state(self) -> dict[str, Tensor]:
        kept = {"rows": self.rows, **self._more_state()}
        if self.factor is not None and self.values is not None:
            kept |= {"factor": self.factor, "values": self.values}
        return kept

    @abstractmethod
    def _sizes(self, d: int, counters: Mapping[str, Any]) -> tuple[int, int]:
        """(rows of S, rows in use) of a state; for a sketch that grows S may have more rows."""

    def _parts(
        self, columns: Columns, dtype: torch.dtype, counters: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> dict[str, Part]:
        m, filled = self._sizes(columns.d, counters)
        parts = {"rows": Part((range(m, MANY) if self.grows else m, columns.width), dtype)}
        if "factor" in tensors or "values" in tensors:
            r = size_of(tensors, "factor", 1)
            parts["factor"] = Part((filled, up_to(min(filled, columns.d))), dtype)
            parts["values"] = Part((up_to(r),), torch.float64)
        return parts | self._more_parts()

    def _require_sound(self, counters: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        factor, values = tensors.get("factor"), tensors.get("values")
        if counters["count"] == 0 and (factor is not None or bool(tensors["rows"].any())):
            raise ValueError("the state has rows but says that none was observed")
        if values is not None and bool(values.any()) and not counters["energy"]:
            raise ValueError("the state has eigenvalues but no energy")
        if factor is not None:
            require_orthonormal(tensors["rows"][: factor.shape[1]], self.columns)

    def _adopt(self, counters: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self._adopt_more(counters, tensors)
        self.rows = tensors["rows"].clone()
        self.factor, self.values = (tensors[key].clone() if key in tensors else None for key in ("factor", "values"))

    grows: ClassVar[bool] = False
    """Whether the number of rows grows with the stream."""

    def _more_state(self) -> dict[str, Tensor]:
        """Return the state tensors that a subclass adds to those of this class."""
        return {}

    def _more_parts(self) -> dict[str, Part]:
        """What `_more_state` must be."""
        return {}

    def _adopt_more(self, counters: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Load the state that a subclass adds."""
