"""The unit of privacy: whose presence the guarantee hides, an example or everything of one user."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class Unit(ABC):
    """Whose presence is hidden, and how much each example counts so that a unit's contributions add up to at most 1."""

    @abstractmethod
    def weighed(self, batches: Iterable[Any]) -> Iterator[tuple[Any, Tensor | None]]:
        """Yield each batch without ids, and the weights (b,) of its examples, None where all are 1.

        Of one unit the weights sum to at most 1 over all batches.
        """

    @property
    @abstractmethod
    def most(self) -> int:
        """Most examples of a unit that count; each of them has the weight 1/most."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Plain data, as in files."""


@dataclass(frozen=True)
class Example(Unit):
    """One example, whatever it is that the batches hold."""

    def weighed(self, batches: Iterable[Any]) -> Iterator[tuple[Any, Tensor | None]]:
        """See `Unit`."""
        for batch in batches:
            yield batch, None

    @property
    def most(self) -> int:
        """1."""
        return 1

    def settings(self) -> dict[str, Any]:
        """See `Unit`."""
        return {"unit": "example"}


@dataclass(frozen=True)
class User(Unit):
    """Everything of one user: its first `examples` examples in a call of `remember` count 1/examples each, others 0.

    Batches carry an id per example: (inputs, targets, ids), or a mapping with an entry `key`. Ids are integers in a
    tensor, or any list of hashable values; they are forgotten with the call.

    Args:
        examples: how many examples of one user count, a number fixed in advance: about what a usual user has.
        key: the entry of batches that are mappings.
    """

    examples: int
    key: str = "user"

    def __post_init__(self) -> None:
        if isinstance(self.examples, bool) or not isinstance(self.examples, int) or self.examples < 1:
            raise ValueError(f"a user has a positive number of examples that count; got {self.examples!r}")

    def weighed(self, batches: Iterable[Any]) -> Iterator[tuple[Any, Tensor | None]]:
        """See `Unit`."""
        seen: Counter[Hashable] = Counter()
        for batch in batches:
            rest, ids = self._split(batch)
            weights = []
            for user in ids:
                seen[user] += 1
                weights.append(1.0 / self.examples if seen[user] <= self.examples else 0.0)
            yield rest, torch.tensor(weights, dtype=torch.float64)

    def _split(self, batch: Any) -> tuple[Any, list[Hashable]]:
        if isinstance(batch, Mapping) and self.key in batch:
            rest: Any = {key: value for key, value in batch.items() if key != self.key}
            ids = batch[self.key]
        elif isinstance(batch, (tuple, list)) and len(batch) == 3:
            rest, ids = (batch[0], batch[1]), batch[2]
        else:
            raise TypeError(
                f"the unit of privacy is a user, but a batch says of no user: yield (inputs, targets, ids), or a "
                f"mapping with {self.key!r}; got {type(batch).__name__}"
            )
        if isinstance(ids, Tensor):
            if ids.ndim != 1 or ids.is_floating_point():
                raise TypeError(f"ids of users are whole numbers (b,); got {ids.dtype} of shape {tuple(ids.shape)}")
            ids = ids.tolist()
        return rest, list(ids)

    @property
    def most(self) -> int:
        """`examples`."""
        return self.examples

    def settings(self) -> dict[str, Any]:
        """See `Unit`."""
        return {"unit": "user", "examples": self.examples}
