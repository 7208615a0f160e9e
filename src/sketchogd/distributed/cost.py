"""Bytes that a protection moves between processes and keeps in each: the formulas of docs/distributed.md.

Letters: p protected parameters, k rank of a product sketch (and of its basis), R processes, c = ⌈p / R⌉, n examples
of a task, b gradients per process and round, s bytes per number. A collective is counted by its payload and by what a
process sends with ring algorithms, which NCCL uses for large messages: 2 (R−1)/R of the payload for an all-reduce,
(R−1)/R for the others.

A `layout` is "whole" (every process has the whole sketch and basis), "flat" (they are sharded, the parameters whole:
`FlatShard`) or "fsdp" (both are sharded: `ParameterShards`).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """Payloads of collectives in bytes.

    The payload is the size of the tensor of an all-reduce, the input of a process for a reduce-scatter or all-to-all,
    its output for an all-gather; where processes differ, their mean.

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
        """Return the bytes that one of R processes sends."""
        return (2 * self.all_reduce + self.reduce_scatter + self.all_gather + self.all_to_all) * (R - 1) / R


def memory(p: int, k: int, R: int = 1, s: int = 4) -> int:
    """Return the bytes per process of a product sketch with its basis, sharded over R processes (1: whole).

    These are k rows of c columns, the factor (k, k), and k values in float64.
    """
    return s * k * (-(-p // R) + k) + 8 * k


def step(p: int, k: int, R: int, s: int = 4, layout: str = "flat", measured: bool = False) -> Traffic:
    """Return the traffic of one step: one projection, two if the leak is measured (1, 2, 4, … and every 100th)."""
    if layout == "whole":
        return Traffic()
    if layout == "flat":
        return Traffic(all_reduce=s * k, all_gather=s * R * -(-p // R)) * (2 if measured else 1)
    return Traffic(all_reduce=2 * s * k + 24 if measured else s * k + 8)


def observe(p: int, k: int, R: int, b: int, s: int = 4, layout: str = "flat") -> Traffic:
    """Return the traffic of one round of observing; in the layout "whole" a round is a batch."""
    said = Traffic(all_gather=8 * R)
    if layout == "whole":
        return said * 2  # before anything is added, each says that it can
    if layout == "flat" and b >= k:
        return said + Traffic(all_reduce=16, reduce_scatter=s * R * k * -(-p // R))
    product = Traffic(all_reduce=16 + s * R * b * k)
    if layout == "flat":
        return said + product + Traffic(all_to_all=s * b * p)
    # The examples of one process after another. The traffic of FSDP itself, in each of the R b passes, is not counted.
    return said + Traffic(all_reduce=(24 + s * b * k) * R)


def remember(p: int, k: int, R: int, n: int, b: int, s: int = 4, layout: str = "flat") -> Traffic:
    """Return the traffic of remembering n / R examples per process: all rounds, their end, and a new basis."""
    rounds = -(-n // (R * b))
    return observe(p, k, R, b, s, layout) * rounds + Traffic(all_gather=8 * R) + refresh(p, k, R, s, layout)


def refresh(p: int, k: int, R: int, s: int = 4, layout: str = "flat") -> Traffic:
    """Return the traffic of a new basis: the sum of whole sketches, or two (k, k) float64 matrices if they are sharded.

    Not counted is a third (k, k) matrix, needed if the singular values decrease by a factor of more than 10⁴.
    """
    if layout == "whole":
        return Traffic(all_reduce=s * k * p + 32)
    return Traffic(all_reduce=16 * k * k)
