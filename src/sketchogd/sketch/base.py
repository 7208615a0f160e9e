"""The interface of a sketch: a fixed-size summary of a stream of rows v₁, v₂, … ∈ ℝᵈ with a basis of their span.

A sketch knows nothing of networks. Settings go into `__init__`, `bind` allocates, `observe` takes rows (b, d),
`basis` gives orthonormal rows (r, d). Letters: d row length, k rank, b rows in a batch, r rank of the basis.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from .. import schema
from ..errors import NonFiniteError, ProtectionError
from ..interrupts import uninterrupted
from ..linalg.dense import squared_norm
from .columns import Columns, Whole
from .stored import Part, require_numbers, require_parts
from .testmatrix import TestMatrix

Self = TypeVar("Self", bound="Sketch")

REGISTRY: dict[str, type["Sketch"]] = {}
"""Every final sketch by its name, which is how files refer to it."""


class Sketch(ABC):
    """A summary of a stream of rows. Subclasses with a `name` are registered under it."""

    name: ClassVar[str] = ""
    stored_settings: ClassVar[schema.Fields | None] = None
    """What `settings` in a file may be; where it is None the constructor alone decides."""
    counters: ClassVar[schema.Fields] = {}
    """What a file counts beside `count` and `energy`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.name:
            REGISTRY[cls.name] = cls

    d: int = 0
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")
    count: int = 0
    """How many rows were observed."""
    energy: float = 0.0
    """Σ ‖v‖² over them, the trace of the second moment."""
    lost: bool = False
    """Whether an error ended a change of the rows midway, so that they are neither the old nor the new ones."""
    columns: Columns
    """Which of the d columns this process holds: all, unless the sketch is split."""

    # ---------------------------------------------------------------- settings

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The keyword arguments that make an equal sketch; plain numbers and words."""

    def fresh(self: Self, **changes: Any) -> Self:
        """An unbound sketch with the same settings, except for `changes`."""
        return type(self)(**{**self.settings(), **changes})

    @abstractmethod
    def cost(self, d: int, itemsize: int = 4) -> int:
        """The most bytes this sketch keeps for rows of length d; for a growing sketch, the bytes per row."""

    @classmethod
    @abstractmethod
    def from_budget(cls: type[Self], nbytes: int, d: int, **settings: Any) -> Self:
        """The largest sketch of this kind within `nbytes` for rows of length d. Raises ValueError if none fits."""

    def __repr__(self) -> str:
        inside = ", ".join(f"{key}={value!r}" for key, value in self.settings().items())
        return f"{type(self).__name__}({inside})"

    # ---------------------------------------------------------------- life

    def bind(
        self: Self,
        d: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | int = "cpu",
        columns: Columns | None = None,
    ) -> Self:
        """Allocate for rows of length d, and return the sketch. A sketch is bound once.

        Args:
            d: row length.
            dtype: float32 or float64.
            device: where the sketch is kept.
            columns: which of the d columns this process holds; `observe` then takes only these, and all processes that
                hold columns call every method together.
        """
        if self.d:
            raise ValueError(f"this {type(self).__name__} is bound to rows of length {self.d}; make a fresh() one")
        if d < 1:
            raise ValueError(f"rows need a length of at least 1; got {d}")
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"a sketch is kept in float32 or float64; got {dtype}")
        self.d, self.dtype, self.device = int(d), dtype, torch.device(device)
        self.columns = columns or Whole(self.d)
        self._allocate()
        return self

    def observe(self, rows: Tensor) -> None:
        """Add rows (b, d) to the summary: all of them or, if an error is raised, none.

        Raises ValueError for another shape and NonFiniteError, naming the rows, for NaN or infinity.
        """
        self._require_bound()
        width = self.columns.width
        if rows.ndim != 2 or rows.shape[1] != width:
            raise ValueError(f"expected rows of shape (b, {width}), got {tuple(rows.shape)}; one row an example")
        if len(rows) == 0:
            return
        rows = rows.detach().to(device=self.device, dtype=self.dtype)
        largest = self.require_finite(rows)
        energy = squared_norm(rows)
        if width < self.d:
            energy = float(self.columns.total(torch.tensor(energy, dtype=torch.float64, device=self.device)))
        self._update(rows, largest)
        self.count += len(rows)
        self.energy += energy

    def require_finite(self, rows: Tensor) -> float:
        """The largest absolute entry of rows (b, d). Raises NonFiniteError, naming the rows, unless all are finite."""
        low, high = torch.stack(rows.aminmax()).tolist() if rows.numel() else (0.0, 0.0)
        largest = self.columns.largest(max(-low, high) if math.isfinite(low) and math.isfinite(high) else math.inf)
        if largest == math.inf:
            bad = self.columns.total((~rows.isfinite()).any(1).int()).nonzero().flatten().tolist()
            raise NonFiniteError(
                f"rows {_shortened(bad)} of {len(rows)} contain NaN or infinity; nothing was observed. "
                "Leave these examples out, or look for a division by zero in the model",
                bad,
            )
        return largest

    def move_(self, device: torch.device | str) -> None:
        """Move all tensors to another device; rows observed from now on are added there."""
        self.device = torch.device(device)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                vars(self)[name] = value.to(self.device)
            elif isinstance(value, (Sketch, TestMatrix)):
                value.move_(device)

    def end_task(self) -> None:  # noqa: B027 - most sketches do not care about tasks
        """End a task. Only sketches that work task by task do anything here."""

    def basis(self) -> Tensor:
        """Orthonormal rows (r, d) of the dominant span of what was observed; valid until the next observe."""
        return self.spectrum()[1]

    @abstractmethod
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """(values (r,) in float64, rows (r, d)): estimated eigenpairs of Σ v vᵀ, largest first; rows as `basis`."""

    @property
    @abstractmethod
    def rank_limit(self) -> int | None:
        """The largest rank of a basis; None for a sketch that grows."""

    def merge(self: Self, other: Self) -> None:
        """Add what `other` observed, as if this sketch had observed both streams. `other` keeps its state.

        Raises ValueError if the two cannot be merged.
        """
        self.require_mergeable(other)
        if other.count:
            self._absorb(other)
            self.count += other.count
            self.energy += other.energy

    def require_mergeable(self, other: "Sketch") -> None:
        """Raise ValueError, with the reason, if `other` cannot be merged into this sketch."""
        self._require_bound()
        if type(other) is not type(self) or (other.d, other.dtype) != (self.d, self.dtype):
            raise ValueError(
                f"cannot merge {other!r} on rows of length {other.d} ({other.dtype}) "
                f"into {self!r} on rows of length {self.d} ({self.dtype})"
            )
        self._check_mergeable(other)

    # ---------------------------------------------------------------- bytes and state

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor kept, by name."""
        return {**self._state(), **self._fixed()}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors kept."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values())

    def state_dict(self) -> dict[str, Any]:
        """Settings, counters and tensors (the tensors themselves, not copies)."""
        self._require_bound()
        return {
            "meta": {
                "sketch": self.name,
                "settings": self.settings(),
                "d": self.d,
                "dtype": str(self.dtype).removeprefix("torch."),
                "counters": {"count": self.count, "energy": self.energy, **self._counters()},
            },
            "tensors": self._state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the `state_dict` of a sketch with the same settings; all or nothing.

        Raises ValueError, with the reason, for a state that is not of such a sketch or is damaged.
        """
        self._require_bound()
        self.require_state(state, self.columns, self.dtype)
        counters = state["meta"]["counters"]
        tensors = {name: t.to(self.device) for name, t in state["tensors"].items()}
        require_numbers(tensors)
        self._require_sound(counters, tensors)
        self._adopt(counters, tensors)
        self.lost = False
        self.count, self.energy = int(counters["count"]), float(counters["energy"])

    def require_state(self, state: Mapping[str, Any], columns: Columns, dtype: torch.dtype) -> None:
        """Raise ValueError unless a `state_dict` is of a sketch with these settings, columns and dtype.

        It need not be bound, and nothing is allocated.
        """
        theirs, tensors = state["meta"], state["tensors"]
        mine = {"sketch": self.name, "settings": self.settings(), "d": columns.d}
        mine["dtype"] = str(dtype).removeprefix("torch.")
        differing = [f"{key}: {theirs.get(key)!r} here {mine[key]!r}" for key in mine if theirs.get(key) != mine[key]]
        if differing:
            raise ValueError("the state is of another sketch: " + "; ".join(differing))
        counters = theirs["counters"]
        schema.record({"count": schema.whole(), "energy": schema.number(0.0), **self.counters})(counters, "counters")
        require_parts(self._parts(columns, dtype, counters, tensors), tensors)

    # ---------------------------------------------------------------- for subclasses

    def _require_bound(self) -> None:
        if not self.d:
            raise ValueError(f"call bind(d) on this {type(self).__name__} before it is used")
        if self.lost:
            raise ProtectionError(
                f"an error or a second Ctrl-C ended a change of this {type(self).__name__} midway, and what it "
                "remembered is lost. Load the memory from a file, or protect the model anew"
            )

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change rows in place: Ctrl-C waits, and rows that an error leaves half changed are never used again."""
        with uninterrupted():
            before = self._versions()
            try:
                yield
            except BaseException:
                self.lost = self._versions() != before
                raise

    def _versions(self) -> list[int]:
        return [t._version for t in self._state().values() if not t.is_inference()]

    @abstractmethod
    def _allocate(self) -> None: ...

    @abstractmethod
    def _state(self) -> dict[str, Tensor]:
        """The tensors that make up the state."""

    def _fixed(self) -> dict[str, Tensor]:
        """Tensors that are kept although they follow from the settings: stored test matrices."""
        return {}

    def _counters(self) -> dict[str, Any]:
        """Numbers beside `count` that belong to the state."""
        return {}

    @abstractmethod
    def _update(self, rows: Tensor, largest: float) -> None:
        """Add checked rows; `largest` is their largest absolute entry."""

    @abstractmethod
    def _check_mergeable(self, other: Any) -> None:
        """Raise ValueError if `other` cannot be absorbed."""

    @abstractmethod
    def _absorb(self, other: Any) -> None: ...

    @abstractmethod
    def _parts(
        self, columns: Columns, dtype: torch.dtype, counters: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> dict[str, Part]:
        """What the tensors of a state with these counters must be; sizes that vary are taken from the tensors."""

    @abstractmethod
    def _require_sound(self, counters: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Raise ValueError where numbers of a state, whose shapes fit, cannot be those of a sketch."""

    @abstractmethod
    def _adopt(self, counters: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Load a state that was checked."""


def largest_rank(fits: Any, limit: int) -> int:
    """The largest integer in 1..limit for which the monotone predicate `fits` holds; 0 if there is none."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def positive(**numbers: int) -> None:
    """Raise ValueError unless each named setting is a positive integer."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a positive integer; got {value!r}")


def _shortened(indices: list[int], most: int = 8) -> str:
    shown = ", ".join(map(str, indices[:most]))
    return shown if len(indices) <= most else f"{shown}, … ({len(indices)} in all)"
