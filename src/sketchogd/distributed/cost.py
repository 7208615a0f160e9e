"""Bytes that a protection moves between processes and keeps in each: the formulas of docs/distributed.md.

Letters: p protected parameters, k rank of a product sketch (and of its basis), R processes, c = ⌈p / R⌉, n examples
of a task, b gradients per process and round, s bytes per number. A collective is counted by its payload and by what a
process sends with ring algorithms, which NCCL uses for large messages: 2 (R−1)/R of the payload for an all-reduce,
(R−1)/R for the others.

A `layout` is "whole" (every process has the whole sketch and basis), "flat" (they are sharded, the parameters whole:
`FlatShard`) or "fsdp" (both are sharded: `ParameterShards`).

Functions that begin with `layers` are for the layer memory of an FSDP2 model. Letters of a layer: o outputs, w inputs
and one for a bias, s and r kept directions of outputs and inputs.
"""

from collections.abc import Iterable
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


@dataclass(frozen=True)
class Layer:
    """A layer of a layer memory.

    Args:
        o: outputs.
        w: inputs, and one for a bias.
        s: kept directions of outputs; 0 where only inputs are remembered.
        r: kept directions of inputs; 0 for an embedding, which has counts of tokens.
        transposed: whether the weight is stored as (inputs, outputs), so that FSDP2 splits it over its inputs.
        tail: whether the sketch of inputs knows a tail outside of the r directions, in which a pull acts as well.
        bias: whether there is a bias.
    """

    o: int
    w: int
    s: int
    r: int
    transposed: bool = False
    tail: bool = True
    bias: bool = True

    @property
    def summed(self) -> int:
        """How many numbers of a projection are summed over processes: V_δ ΔW or, for a transposed weight, ΔW V_aᵀ.

        >>> Layer(o=768, w=3073, s=64, r=64).summed, Layer(o=768, w=3073, s=64, r=64, transposed=True).summed
        (196672, 49920)
        """
        if self.transposed:
            return self.o * (self.r + self.bias) if self.r else 0
        return self.s * (self.w if self.tail else self.r)


def layers_step(layers: Iterable[Layer], k: int, s: int = 4, measured: bool = False) -> Traffic:
    """Return the traffic of a projection, two if the leak is measured, with rank k for parameters of no layer."""
    numbers = sum(layer.summed for layer in layers) + k
    return Traffic(all_reduce=2 * s * numbers + 24 if measured else s * numbers + 8)


def layers_observe(R: int, others: bool = False, first: bool = False) -> Traffic:
    """Return the traffic of one round of observing, a batch in every process, without that of FSDP itself.

    Processes agree on what they do next, so that all make the same passes: by 5 all-reduces of a number, and by 4 more
    where there are parameters of no layer. The first round of all takes 1 more, and 1 more for these parameters. Not
    counted are the two examples that are lent where a process has none, and batches that need to be read again.

    In the forward pass and in each backward pass FSDP gathers the weights; no gradients are scattered.
    """
    agreements = 5 + 4 * others + (1 + others if first else 0)
    return Traffic(all_gather=16 * R, all_reduce=8 * agreements)


def layers_refresh(numbers: int, sketches: int, sums: int, s: int = 4) -> Traffic:
    """Return the traffic of a new projector: one all-reduce of the sketches, and two of a few numbers of each.

    Args:
        numbers: of all sketches, rows times columns.
        sketches: how many there are.
        sums: counts of tokens, and the moments of outputs (3 numbers).
        s: bytes per number.
    """
    return Traffic(all_reduce=s * numbers + 8 * (sketches + 1) + 16 * sketches + 8 * sums)
