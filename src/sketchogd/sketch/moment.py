"""The exact second moment M = Σ v vᵀ (d, d), for short rows: what a sketch of rank d would be, in fewer bytes."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import schema
from ..linalg.dense import RELATIVE_RANK
from ..linalg.scaling import added_scaled_, rescale_, scaled, unscaled
from .additive import Additive
from .base import Sketch
from .columns import Columns
from .stored import EXPONENT, Part, require_orthonormal, up_to

TRACE_TOLERANCE = 0.05
"""By what share the trace of a stored second moment may differ from the energy: rounding, also in half precision."""


class SecondMoment(Sketch, Additive):
    """M itself, overwritten by its eigenvectors when these are needed: M = Bᵀ diag(λ) B.

    >>> sketch = SecondMoment().bind(2)
    >>> sketch.observe(torch.tensor([[3.0, 4.0]]))
    >>> sketch.spectrum()[0]
    tensor([25.], dtype=torch.float64)
    """

    name = "moment"
    stored_settings: ClassVar[schema.Fields | None] = {}
    counters: ClassVar[schema.Fields] = {"exponent": EXPONENT}

    matrix: Tensor
    values: Tensor | None = None
    """λ while `matrix` holds eigenvectors, otherwise None."""

    def settings(self) -> dict[str, Any]:
        """None."""
        return {}

    def cost(self, d: int, itemsize: int = 4) -> int:
        """d² numbers and d values."""
        return itemsize * d * d + 8 * d

    @classmethod
    def from_budget(cls, nbytes: int, d: int, **settings: Any) -> "SecondMoment":
        """See `Sketch`."""
        if cls().cost(d) > nbytes:
            raise ValueError(
                f"the second moment of rows of length {d} takes {cls().cost(d):,} bytes; the budget is {nbytes:,}"
            )
        return cls()

    @property
    def rank_limit(self) -> int:
        """All d directions."""
        return self.d

    def _allocate(self) -> None:
        if self.columns.width != self.d:
            raise ValueError("a second moment is for short rows and is not split by columns; use ProductSketch")
        self.matrix = torch.zeros(self.d, self.d, dtype=self.dtype, device=self.device)

    def summand(self) -> Tensor:
        """M."""
        self._open()
        return self.matrix

    def _dense(self) -> Tensor:
        """M · 4^(-exponent), in float64 from the eigenpairs or the matrix itself."""
        if self.values is None:
            return self.matrix
        V = self.matrix[: len(self.values)].double()
        return V.T @ (unscaled(self.values, -(self.exponent or 0))[:, None] * V)

    def _open(self) -> None:
        if self.values is not None:
            with self._changing():
                self.matrix.copy_(self._dense())
                self.values = None

    def _update(self, rows: Tensor, largest: float) -> None:
        self._open()
        self.exponent = rescale_(self.matrix, self.exponent, largest)
        G = scaled(rows, self.exponent, power=1)
        self.matrix.addmm_(G.T, G)

    def add_product(self, product: Tensor, count: int, energy: float) -> None:
        """Observe a batch of `count` rows given by its moment (d, d) and trace instead of the rows."""
        self._open()
        self.exponent = added_scaled_(self.matrix, self.exponent, product, 0)
        self.count += count
        self.energy += energy

    def spectrum(self) -> tuple[Tensor, Tensor]:
        """The eigenpairs of M above rounding."""
        self._require_bound()
        if self.values is None:
            values, vectors = torch.linalg.eigh(self.matrix.double())
            keep = values > RELATIVE_RANK * values[-1:].clamp_min(0)
            with self._changing():
                self.matrix.zero_()
                self.matrix[: int(keep.sum())] = vectors[:, keep].flip(1).T
                self.values = unscaled(values[keep].flip(0), self.exponent)
        return self.values, self.matrix[: len(self.values)]

    def _check_mergeable(self, other: "SecondMoment") -> None:
        """Any two can be merged."""

    def _absorb(self, other: "SecondMoment") -> None:
        self._open()
        self.exponent = added_scaled_(self.matrix, self.exponent, other._dense().to(self.dtype), other.exponent)

    def _state(self) -> dict[str, Tensor]:
        return {"matrix": self.matrix} if self.values is None else {"matrix": self.matrix, "values": self.values}

    def _counters(self) -> dict[str, Any]:
        return {"exponent": self.exponent}

    def _parts(
        self, columns: Columns, dtype: torch.dtype, counters: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> dict[str, Part]:
        values = {"values": Part((up_to(columns.d),), torch.float64)} if "values" in tensors else {}
        return {"matrix": Part((columns.d, columns.d), dtype), **values}

    def _require_sound(self, counters: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        matrix, values, energy = tensors["matrix"], tensors.get("values"), float(counters["energy"])
        if counters["count"] == 0 and bool(matrix.any()):
            raise ValueError("the state has a second moment but says that no row was observed")
        if values is not None:
            require_orthonormal(matrix[: len(values)], self.columns)
            trace = float(values.sum())
        else:
            trace = float(unscaled(matrix.double().trace(), counters["exponent"]))
            if not torch.allclose(matrix, matrix.T, rtol=1e-3, atol=1e-3 * float(matrix.abs().max())):
                raise ValueError("the state's second moment is not symmetric")
        if not abs(trace - energy) <= TRACE_TOLERANCE * energy:
            raise ValueError(
                f"the trace of the state's second moment is {trace:g}, and should be its energy, {energy:g}"
            )

    def _adopt(self, counters: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.matrix = tensors["matrix"].clone()
        self.values = tensors["values"].clone() if "values" in tensors else None
        self.exponent = counters["exponent"]
