"""What a protection moves between processes and keeps in each, in bytes: the formulas of docs/distributed.md.

Letters: p protected parameters, k rank of a product sketch (and of its basis), R processes, c = ⌈p / R⌉, b gradients of
one process in a round, s bytes of a number. Collectives are counted by their payload and by what a process sends with
ring algorithms, which NCCL uses for large messages: 2 (R−1)/R of the payload for an all-reduce, (R−1)/R for the others.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """Payloads in bytes: of an all-reduce the tensor, of the others all that the R processes put in or get, over R.

    >>> (Traffic(all_reduce=8) + Traffic(all_gather=16)).sent(2)
    16.0
    """

    all_reduce: int = 0
    reduce_scatter: int = 0
    all_gather: int = 0
    all_to_all: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.all_reduce + other.all_reduce,
            self.reduce_scatter + other.reduce_scatter,
            self.all_gather + other.all_gather,
            self.all_to_all + other.all_to_all,
        )

    def __mul__(self, times: int) -> "Traffic":
        return Traffic(
            self.all_reduce * times, self.reduce_scatter * times, self.all_gather * times, self.all_to_all * times
        )

    def sent(self, R: int) -> float:
        """Bytes that one process sends."""
        return (2 * self.all_reduce + self.reduce_scatter + self.all_gather + self.all_to_all) * (R - 1) / R


def memory(p: int, k: int, R: int = 1, s: int = 4) -> int:
    """Bytes of a product sketch with its basis in one process, split over R: k rows of c columns, R (k, k), values."""
    return s * k * (-(-p // R) + k) + 8 * k


def step(p: int, k: int, R: int, s: int = 4, layout: str = "flat", measured: bool = False) -> Traffic:
    """One projection. "whole": every process has the basis. "flat": split, whole parameters. "fsdp": split parameters.

    A step at which the leak is `measured` (1, 2, 4, … and every hundredth) projects twice.
    """
    if layout == "whole":
        return Traffic()
    if layout == "flat":
        return Traffic(all_reduce=s * k, all_gather=s * R * -(-p // R)) * (2 if measured else 1)
    return Traffic(all_reduce=2 * s * k + 24 if measured else s * k + 8)


def observe(p: int, k: int, R: int, b: int, s: int = 4, layout: str = "flat") -> Traffic:
    """One round of observing, b gradients in every process (of a batch, for "whole")."""
    said = Traffic(all_gather=8 * R)
    if layout == "whole":
        return said
    if layout == "flat" and b >= k:
        return said + Traffic(all_reduce=16, reduce_scatter=s * R * k * -(-p // R))
    product = Traffic(all_reduce=16 + s * R * b * k)
    if layout == "flat":
        return said + product + Traffic(all_to_all=s * b * p)
    # The examples of one process after another: FSDP's own traffic comes with every one of their R b passes.
    return said + Traffic(all_reduce=(16 + s * b * k) * R)


def remember(p: int, k: int, R: int, n: int, b: int, s: int = 4, layout: str = "flat") -> Traffic:
    """n examples of a task, n / R in every process, in rounds of b: all rounds, the last word, and a new basis."""
    rounds = -(-n // (R * b))
    return observe(p, k, R, b, s, layout) * rounds + Traffic(all_gather=8 * R) + refresh(p, k, R, s, layout)


def refresh(p: int, k: int, R: int, s: int = 4, layout: str = "flat") -> Traffic:
    """A new basis: the sum of the sketches where they are whole, two (k, k) matrices in float64 where they are split.

    A sketch whose singular values fall by more than 10⁴ needs a third (k, k) matrix.
    """
    if layout == "whole":
        return Traffic(all_reduce=s * k * p + 32)
    return Traffic(all_reduce=16 * k * k)
