"""Sketches that add up: the sum of sketches of different rows is the sketch of all of them.

Several processes can therefore sketch apart and add up later, by one all-reduce of `summand`.
"""

from abc import ABC, abstractmethod

from torch import Tensor


class Additive(ABC):
    """What a sketch needs so that processes can sum it. All of them must have one `exponent` when they do."""

    count: int
    energy: float
    offset: int = 0
    """How many rows before the next one were observed by other processes: random draws belong to the row's number."""
    exponent: int | None = None
    """The summand is kept times 4^(−exponent) where squares of rows could overflow."""

    @abstractmethod
    def summand(self) -> Tensor:
        """The tensor to sum, restored from its basis; it may be changed in place."""

    def skip(self, rows: int) -> None:
        """Advance the counter past rows observed by other processes, so that no draw of theirs is used here."""
        self.offset += rows

    def set_aside(self) -> None:
        """Zero the summand but keep its count as an offset: another process keeps it, and the sum brings it back."""
        self.summand().zero_()
        self.offset, self.count = self.offset + self.count, 0
        self.energy, self.exponent = 0.0, None

    def scale_to(self, exponent: int | None) -> None:
        """Bring the summand to another exponent, which is at least its own."""
        if exponent is not None and self.exponent is not None:
            self.summand().mul_(4.0 ** max(self.exponent - exponent, -500))
        self.exponent = exponent

    def scale(self, factor: float) -> None:
        """Multiply the second moment of what was observed by a factor; for sketches whose summand is linear in it."""
        self.summand().mul_(factor)
        self.energy *= factor

    def summed(self, count: int, energy: float) -> None:
        """Take the counters that belong to a summand summed over processes."""
        self.count, self.energy, self.offset = count, energy, 0
