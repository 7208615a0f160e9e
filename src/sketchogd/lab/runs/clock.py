"""Where the time of a run goes: seconds spent on each kind of work, such as "train" and "evaluate"."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished all work that was queued; nothing on other devices."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Clock:
    """Seconds spent on each kind of work, in `spent`, with the work that a GPU was given for it."""

    def __init__(self, device: str | torch.device) -> None:
        self.spent: dict[str, float] = {}
        self._device = torch.device(device)
        self._ended: dict[str, float] = {}
        self._lasted: dict[str, float] = {}
        self._born = time.perf_counter()

    @contextmanager
    def measuring(self, what: str) -> Iterator[None]:
        """Count the time of the block as spent on `what`; not if it raises."""
        synchronize(self._device)
        start = time.perf_counter()
        yield
        synchronize(self._device)
        self._ended[what] = time.perf_counter()
        self._lasted[what] = self._ended[what] - start
        self.spent[what] = self.spent.get(what, 0.0) + self._lasted[what]

    def since(self, what: str) -> float:
        """Seconds since the last block of this kind ended, or since the clock was made."""
        return time.perf_counter() - self._ended.get(what, self._born)

    def last(self, what: str) -> float:
        """Seconds that the last block of this kind took; 0 before the first."""
        return self._lasted.get(what, 0.0)

    def timings(self, runs: int = 1) -> dict[str, float]:
        """Seconds of each kind and their "total", in equal shares for so many runs."""
        shares = {what: seconds / runs for what, seconds in self.spent.items()}
        return {**shares, "total": sum(shares.values())}
