"""PCA-OGD: the leading principal directions of a sample of each task. Components (m, d) accumulate over tasks."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import schema
from ..linalg.dense import gram, orthonormalise_, polish_, transform_, whiten
from ..seeds import derive_seed
from .base import Sketch, positive
from .columns import Columns
from .rows import RandomRows
from .stored import RANK, SEED, Part, require_orthonormal, size_of, up_to


class PCARows(Sketch):
    """The top `components` principal directions of a uniform sample of `samples` rows per task, found at `end_task`.

    The sample is centred first, as in the published runs. New directions are orthogonalised against those of earlier
    tasks; a direction that lies in their span is dropped. Memory grows by up to `components` rows per task, and holds
    the sample of the current task. The basis covers finished tasks only.

    Raises ValueError if components > samples.
    """

    name = "pca"
    stored_settings: ClassVar[schema.Fields | None] = {"samples": RANK, "components": RANK, "seed": SEED}
    counters: ClassVar[schema.Fields] = {"tasks": schema.whole(), "sampled": schema.whole()}

    def __init__(self, samples: int, components: int, *, seed: int = 0) -> None:
        positive(samples=samples, components=components)
        if components > samples:
            raise ValueError(f"a sample of {samples} rows has at most that many components; got {components}")
        self.samples = samples
        self.components = components
        self.seed = seed

    rows: Tensor
    values: Tensor
    tasks: int = 0
    _sample: RandomRows | None = None

    def settings(self) -> dict[str, Any]:
        """See `Sketch`."""
        return {"samples": self.samples, "components": self.components, "seed": self.seed}

    def cost(self, d: int, itemsize: int = 4) -> int:
        """Return the bytes that one task adds: its components and their values."""
        return self.components * (d * itemsize + 8)

    @classmethod
    def from_budget(cls, nbytes: int, d: int, **settings: Any) -> "PCARows":
        """Raise ValueError: the number of tasks is unknown."""
        raise ValueError("PCARows grows with every task, beyond any budget; use ProductSketch or IncrementalPCA")

    @property
    def rank_limit(self) -> None:
        """None: every task adds directions."""

    def _allocate(self) -> None:
        self.rows = torch.zeros(0, self.columns.width, dtype=self.dtype, device=self.device)
        self.values = torch.zeros(0, dtype=torch.float64, device=self.device)

    def _open_sample(self) -> RandomRows:
        # The seed depends on the task, so that the samples of different tasks are independent.
        sample = RandomRows(self.samples, seed=derive_seed(self.seed, "task", self.tasks))
        return sample.bind(self.d, self.dtype, self.device, self.columns)

    def _update(self, rows: Tensor, largest: float) -> None:
        if self._sample is None:
            self._sample = self._open_sample()
        self._sample.observe(rows)

    def end_task(self) -> None:
        """Reduce the sample of the task to its components; without a sample, do nothing."""
        if self._sample is None:
            return
        rows = self._sample._opened_rows()
        scale = self._sample.count / len(rows)
        self._sample = None
        self.tasks += 1
        rows -= rows.mean(0)
        T, R = whiten(self.columns.total(gram(rows)))
        values = R.square().sum(0)[: self.components] * scale
        T = T[: self.components]
        transform_(rows, T)
        polish_(rows[: len(T)], T, self.columns.total)
        self._append(rows[: len(values)], values)

    def _append(self, components: Tensor, values: Tensor) -> None:
        """Add components (overwritten) with their values, after removing what the stored ones span of them."""
        if len(values) == 0:
            return
        for _ in range(2):
            components -= self.columns.total(components @ self.rows.T) @ self.rows
        R = orthonormalise_(components, self.columns.total)
        # A direction within the old span leaves only rounding errors, far below 1e-4; a new one leaves far more.
        size = R.square().sum(0).sqrt()
        new = int((size > 1e-4).sum())
        shares = R[:, :new].square() / R[:, :new].square().sum(0)
        self.values = torch.cat([self.values, shares.T @ values])
        self.rows = torch.cat([self.rows, components[:new]])

    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Return the variances and components of the finished tasks, largest variance first."""
        self._require_bound()
        self.values, order = self.values.sort(descending=True, stable=True)
        self.rows = self.rows[order]
        return self.values, self.rows

    def _check_mergeable(self, other: "PCARows") -> None:
        if self._sample is not None or other._sample is not None:
            raise ValueError("a task is under way; call end_task() on both sketches before they are merged")

    def _absorb(self, other: "PCARows") -> None:
        self._append(other.rows.to(self.device).clone(), other.values.to(self.device))
        self.tasks += other.tasks

    def _state(self) -> dict[str, Tensor]:
        sample = {} if self._sample is None else {f"sample.{k}": v for k, v in self._sample._state().items()}
        return {"rows": self.rows, "values": self.values, **sample}

    def _counters(self) -> dict[str, Any]:
        return {"tasks": self.tasks, "sampled": 0 if self._sample is None else self._sample.count}

    def _parts(
        self, columns: Columns, dtype: torch.dtype, counters: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> dict[str, Part]:
        m = size_of(tensors, "rows", 0)
        parts = {"rows": Part((up_to(columns.d), columns.width), dtype), "values": Part((m,), torch.float64)}
        if counters["sampled"]:
            parts["sample.rows"] = Part((self.samples, columns.width), dtype)
            parts["sample.keys"] = Part((self.samples,), torch.float64)
        return parts

    def _require_sound(self, counters: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        if counters["count"] == 0 and len(tensors["rows"]):
            raise ValueError("the state has components but says that no row was observed")
        require_orthonormal(tensors["rows"], self.columns)

    def _adopt(self, counters: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.rows, self.values = tensors["rows"].clone(), tensors["values"].clone()
        self.tasks, self._sample = int(counters["tasks"]), None
        if counters["sampled"]:
            self._sample = self._open_sample()
            held = {k.removeprefix("sample."): v for k, v in tensors.items() if k.startswith("sample.")}
            self._sample._adopt({"merged_seeds": []}, held)
            self._sample.count = int(counters["sampled"])
