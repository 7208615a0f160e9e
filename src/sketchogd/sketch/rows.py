"""Sketches that store rows unchanged: all rows (OGD), or a uniform sample of m of them (RandomOGD). Rows (n, d)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import schema
from ..linalg.dense import orthonormalise_
from ..seeds import derive_seed
from .base import positive
from .factored import FactoredSketch
from .stored import RANK, SEED, Part


class AllRows(FactoredSketch):
    """OGD: all rows, so that memory grows with the stream. Values are the exact eigenvalues of Σ v vᵀ.

    >>> sketch = AllRows().bind(2)
    >>> sketch.observe(torch.tensor([[3.0, 4.0]]))
    >>> sketch.spectrum()
    (tensor([25.], dtype=torch.float64), tensor([[0.6000, 0.8000]]))
    """

    name = "all"
    stored_settings: ClassVar[schema.Fields | None] = {}
    grows = True
    growth = 1.25
    """Factor by which full storage grows: fewer copies, at the price of up to a quarter of spare memory."""

    def settings(self) -> dict[str, Any]:
        """See `Sketch`: there are none."""
        return {}

    def cost(self, d: int, itemsize: int = 4) -> int:
        """Return the bytes per row."""
        return d * itemsize

    @classmethod
    def from_budget(cls, nbytes: int, d: int, **settings: Any) -> "AllRows":
        """Raise ValueError: a sketch that grows exceeds every budget."""
        raise ValueError("AllRows grows with every row, beyond any budget; use ProductSketch or RandomRows")

    def _sizes(self, d: int, counters: Mapping[str, Any]) -> tuple[int, int]:
        return counters["count"], counters["count"]

    def _allocate(self) -> None:
        self.rows = torch.zeros(0, self.columns.width, dtype=self.dtype, device=self.device)

    def _filled(self) -> Tensor:
        return self.rows[: self.count]

    def _update(self, rows: Tensor, largest: float) -> None:
        self._open()
        needed = self.count + len(rows)
        if needed > len(self.rows):
            grown = self.rows.new_empty(max(needed, int(len(self.rows) * self.growth)), self.columns.width)
            grown[: self.count] = self._filled()
            grown[needed:] = 0
            self.rows = grown
        self.rows[self.count : needed] = rows

    def _factorise(self) -> tuple[Tensor, Tensor]:
        R = orthonormalise_(self._filled(), self.columns.total)
        return R, R.square().sum(0)

    def _check_mergeable(self, other: "AllRows") -> None:
        """Do nothing: any two can be merged."""

    def _absorb(self, other: "AllRows") -> None:
        self._update(other._opened_rows().to(self.device), 0.0)


class RandomRows(FactoredSketch):
    """RandomOGD: a uniform sample, without replacement, of all rows seen, however many there are.

    Every row gets a random key, and the `capacity` rows with the smallest keys are kept; two samples are merged by
    their keys. Values are those of the sample, scaled by (rows seen) / (rows kept).
    """

    name = "random"
    stored_settings: ClassVar[schema.Fields | None] = {"capacity": RANK, "seed": SEED}
    counters: ClassVar[schema.Fields] = {"merged_seeds": schema.many(SEED)}

    def __init__(self, capacity: int, *, seed: int = 0) -> None:
        positive(capacity=capacity)
        self.capacity = capacity
        self.seed = seed
        self.merged_seeds: list[int] = []

    keys: Tensor

    def settings(self) -> dict[str, Any]:
        """See `Sketch`."""
        return {"capacity": self.capacity, "seed": self.seed}

    def cost(self, d: int, itemsize: int = 4) -> int:
        """Return the bytes of m (d + m) numbers, m keys and m values, m being the capacity."""
        m = self.capacity
        return itemsize * m * (d + min(m, d)) + 8 * m + 8 * min(m, d)

    @classmethod
    def from_budget(cls, nbytes: int, d: int, **settings: Any) -> "RandomRows":
        """See `Sketch`."""
        capacity = max(1, nbytes // (4 * d))
        while capacity > 1 and cls(capacity).cost(d) > nbytes:
            capacity -= max(1, capacity // 100)
        if cls(capacity).cost(d) > nbytes:
            raise ValueError(f"one row of length {d} takes {cls(1).cost(d):,} bytes; the budget is {nbytes:,}")
        return cls(capacity, **settings)

    def _sizes(self, d: int, counters: Mapping[str, Any]) -> tuple[int, int]:
        return self.capacity, min(counters["count"], self.capacity)

    def _allocate(self) -> None:
        self.rows = torch.zeros(self.capacity, self.columns.width, dtype=self.dtype, device=self.device)
        self.keys = torch.zeros(self.capacity, dtype=torch.float64, device=self.device)

    def _filled(self) -> Tensor:
        return self.rows[: min(self.count, self.capacity)]

    def _update(self, rows: Tensor, largest: float) -> None:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "keys", self.count))
        self._keep(rows, torch.rand(len(rows), generator=generator, dtype=torch.float64).to(self.device))

    def _keep(self, rows: Tensor, keys: Tensor) -> None:
        """Keep the `capacity` rows with the smallest keys among the stored and the new ones, in place."""
        n = len(self._filled())
        self._open()
        winners = torch.cat([self.keys[:n], keys]).topk(min(self.capacity, n + len(rows)), largest=False).indices
        arriving = winners[winners >= n] - n
        staying = torch.zeros(n, dtype=torch.bool, device=self.device)
        staying[winners[winners < n]] = True
        fresh = torch.arange(n, len(winners), device=self.device)
        slots = torch.cat([(~staying).nonzero().flatten(), fresh])
        self.rows[slots] = rows[arriving]
        self.keys[slots] = keys[arriving]

    def _factorise(self) -> tuple[Tensor, Tensor]:
        sample = self._filled()
        R = orthonormalise_(sample, self.columns.total)
        return R, R.square().sum(0) * (self.count / len(sample))

    def _check_mergeable(self, other: "RandomRows") -> None:
        if other.capacity != self.capacity:
            raise ValueError(f"samples of {self.capacity} and of {other.capacity} rows do not merge")
        common = {self.seed, *self.merged_seeds} & {other.seed, *other.merged_seeds}
        if common:
            raise ValueError(
                f"both samples drew their keys from seed {min(common)}; give each RandomRows a seed of its own"
            )

    def _absorb(self, other: "RandomRows") -> None:
        kept = other._opened_rows().to(self.device)
        self._keep(kept, other.keys[: len(kept)].to(self.device))
        self.merged_seeds += [other.seed, *other.merged_seeds]

    def _counters(self) -> dict[str, Any]:
        return {"merged_seeds": list(self.merged_seeds)}

    def _more_state(self) -> dict[str, Tensor]:
        return {"keys": self.keys}

    def _more_parts(self) -> dict[str, Part]:
        return {"keys": Part((self.capacity,), torch.float64)}

    def _adopt_more(self, counters: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.keys = tensors["keys"].clone()
        self.merged_seeds = [int(seed) for seed in counters["merged_seeds"]]
