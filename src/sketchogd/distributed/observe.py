"""Four ways in which R processes, each with its own examples, fill one memory with the examples of all.

* `BySum`: each process sketches its own examples, and one all-reduce adds the sketches when a projector is needed. For
  everything that adds up: the paper's three sketches, second moments, layer memories.
* `ByRows`: each process receives the columns that it holds of everybody's gradients, and does with them what one
  process would do. For sketches that are split by columns, and for those that do not add up (rows, PCA, frequent
  directions).
* `InStep`: the same where parameters are split (FSDP2) and no gradient of them is needed: all processes make the same
  passes through the model, each with examples of its own. For layer memories.
* `BySameExamples`: all processes go through all examples together. For split parameters (FSDP2), where the gradient of
  an example comes out in parts, one in each process.

All work in rounds, in which every process announces how many examples it brings, so that shards may be uneven or empty
and a process that fails can tell the others. A round counts its examples in the order of the processes: the result is
that of one process that observed them in this order.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..errors import NonFiniteError, ProtectionError
from ..interrupts import uninterrupted
from ..linalg.dense import squared_norm
from ..memory import GradientMemory, LayerMemory, Memory
from ..memory.staging import Commit, staged_rows
from ..model.batches import batch_size, map_tensors
from ..sketch import Additive, GradientSketch, PCARows, ProductSketch, RandomRows, Sketch, SymmetricSketch
from .group import Group
from .shards import FlatShard
from .team import Batch, add, staged

SCATTER_BYTES = 32 << 20
"""Bytes of one block of a sketch's update that is summed and scattered."""

_FINISHED, _FAILED = -1, -2


class Sharing(ABC):
    """How the memories of the processes of a group become one."""

    def __init__(self, group: Group) -> None:
        self.group = group

    @abstractmethod
    def observe(self, memory: Memory, batches: Iterable[Batch], outdate: Callable[[], None]) -> None:
        """Observe the batches of every process. All processes call it, also those without examples.

        `outdate` is called before the memory changes.
        """

    @abstractmethod
    def complete(self, memory: Memory) -> None:
        """Bring to this process's memory what all processes have observed."""

    def _rounds(self, items: Iterator[Any], size: Any) -> Iterator[tuple[Any, list[int]]]:
        """Yield (this process's next item or None, the sizes of all items) until every process is out of items.

        An error in one process ends the rounds of all; the others raise a ProtectionError that names the process.
        """
        while True:
            item, error = None, None
            try:
                item = next(items, None)
                mine = _FINISHED if item is None else size(item)
            except Exception as caught:
                error, mine = caught, _FAILED
            counts = self.group.numbers(mine)
            self._require_none(counts, error)
            if all(n == _FINISHED for n in counts):
                return
            if any(n > 0 for n in counts):
                yield item, [max(n, 0) for n in counts]

    def _require_none(self, counts: list[int], error: Exception | None) -> None:
        """Raise this process's error, or a ProtectionError where another process has one."""
        if error is not None:
            raise error
        if _FAILED in counts:
            raise ProtectionError(
                f"process {counts.index(_FAILED)} of {self.group.size} could not observe its examples; its own "
                "error says why. What was observed before is kept"
            )


def _nothing() -> None:
    """What a process without examples adds."""


class BySum(Sharing):
    """Sketch apart, add up later. Process 0 keeps what was known before, so that nothing is counted R times."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._apart = False

    def observe(self, memory: Memory, batches: Iterable[Batch], outdate: Callable[[], None]) -> None:
        """See `Sharing`; no gradient leaves its process."""
        rank = self.group.rank
        for batch, sizes in self._rounds(iter(batches), lambda batch: batch_size(batch[0])):
            ahead = sum(sizes[:rank])
            batch = self._completed(batch if sizes[rank] else None, sizes)
            commit = self._staged(memory, batch, ahead)
            commit = commit if sizes[rank] else _nothing

            def add_all(commit: Commit = commit, ahead: int = ahead, behind: int = sum(sizes[rank + 1 :])) -> None:
                self._set_aside(memory)
                memory.skip(ahead)
                commit()
                memory.skip(behind)

            add(add_all, outdate)

    def _completed(self, batch: Batch | None, sizes: list[int]) -> Batch | None:
        """The batch that this process stages in a round; of one that it did not bring nothing is added."""
        return batch

    def _set_aside(self, memory: Memory) -> None:
        if self._apart:
            return
        self._apart = True
        if self.group.rank:
            for sketch in _additive(memory):
                sketch.set_aside()
            for counts in _token_counts(memory):
                counts.zero_()

    def _staged(self, memory: Memory, batch: Batch | None, ahead: int) -> Commit:
        """Stage a batch in every process; an error in one is raised there, and a ProtectionError in the others."""
        error: Exception | None = None
        commit: Commit = _nothing
        try:
            commit = commit if batch is None else staged(memory, *batch, ahead)
        except Exception as caught:
            error = caught
        self._require_none(self.group.numbers(_FAILED if error is not None else 0), error)
        return commit

    def complete(self, memory: Memory) -> None:
        """One all-reduce of the sketches, and two of a few numbers: exponents, then counts and energies."""
        if not self._apart:
            return
        sketches = _additive(memory)
        exponents = [_NO_EXPONENT if sketch.exponent is None else sketch.exponent for sketch in sketches]
        *largest, logits = self.group.largest_of([*exponents, memory.logits if isinstance(memory, LayerMemory) else 0])
        for sketch, e in zip(sketches, largest, strict=True):
            sketch.scale_to(None if e == _NO_EXPONENT else e)
        if isinstance(memory, LayerMemory):
            memory.has_logits(logits)
        _add_up(self.group, [sketch.summand() for sketch in sketches])
        device = memory.parameters.device
        numbers = torch.tensor([[s.count, s.energy] for s in sketches], dtype=torch.float64, device=device)
        _add_up(self.group, [numbers, *_token_counts(memory)])
        for sketch, (count, energy) in zip(sketches, numbers.tolist(), strict=True):
            sketch.summed(int(count), energy)
        self._apart = False


_NO_EXPONENT = -(1 << 30)


def _additive(memory: Memory) -> list[Additive]:
    return [sketch for _, sketch in memory.sketches() if isinstance(sketch, Additive)]


def _token_counts(memory: Memory) -> list[Tensor]:
    return [counts for _, counts in memory.counts()] if isinstance(memory, LayerMemory) else []


def _add_up(group: Group, tensors: list[Tensor]) -> None:
    """Sum each tensor over all processes in place: one all-reduce, without a copy if there is only one tensor."""
    if len(tensors) == 1:
        group.total(tensors[0])
        return
    sums = group.total(torch.cat([t.reshape(-1) for t in tensors])).split([t.numel() for t in tensors])
    for t, total in zip(tensors, sums, strict=True):
        t.copy_(total.view(t.shape))


class InStep(BySum):
    """Sketch apart with parameters that are split: each pass through the model gathers them from all processes.

    A process without examples makes the passes of a round with some of another's.
    """

    def _completed(self, batch: Batch | None, sizes: list[int]) -> Batch | None:
        """See `BySum`; one broadcast of two examples where a process has none."""
        if all(sizes):
            return batch
        source = next(r for r, n in enumerate(sizes) if n)
        lent = None
        if source == self.group.rank and batch is not None:
            lent = tuple(map_tensors(lambda t: t[:2], value) for value in batch)
        inputs, targets = self.group.broadcast(lent, source)
        return (inputs, targets) if batch is None else batch


class ByRows(Sharing):
    """Every process observes everybody's gradients, or the columns of them that it holds."""

    def observe(self, memory: Memory, batches: Iterable[Batch], outdate: Callable[[], None]) -> None:
        """See `Sharing`; gradients travel, in chunks."""
        assert isinstance(memory, GradientMemory)
        parameters = memory.parameters
        for rows, sizes in self._rounds(_chunks(memory, batches), len):
            if rows is None:
                rows = torch.zeros(0, parameters.p, dtype=parameters.dtype, device=parameters.device)

            def add_all(rows: Tensor = rows, sizes: list[int] = sizes) -> None:
                self._add_rows(memory, rows, sizes)
                memory.counted(sum(sizes))

            add(add_all, outdate)

    def _add_rows(self, memory: GradientMemory, rows: Tensor, sizes: list[int]) -> None:
        sketch, columns = memory.sketch, memory.parameters.columns
        if not isinstance(columns, FlatShard):
            parts = self._gathered(rows, sizes)
            for block in memory.parts:
                self._observe(block.sketch, [part[:, block.place] for part in parts])
        elif isinstance(sketch, Linear) and max(sizes) >= len(sketch.rows):
            self._scatter_sums(sketch, rows, sizes, columns)
        else:
            self._observe(sketch, self._exchanged(rows, sizes, columns))

    def complete(self, memory: Memory) -> None:
        """Nothing is left to do."""

    def _observe(self, sketch: Sketch, parts: list[Tensor]) -> None:
        # Sketches that draw random numbers for a batch must draw as one process would; for others one batch is cheaper.
        draws = isinstance(sketch, (GradientSketch, RandomRows, PCARows))
        for rows in parts if draws else [torch.cat(parts)]:
            sketch.observe(rows)

    def _gathered(self, rows: Tensor, sizes: list[int]) -> list[Tensor]:
        """The rows of every process: one all-gather of parts padded to equal sizes."""
        filled = rows.new_zeros(max(sizes), rows.shape[1])
        filled[: len(rows)] = rows
        whole = self.group.gather(filled).split(max(sizes))
        return [part[:n] for part, n in zip(whole, sizes, strict=True)]

    def _exchanged(self, rows: Tensor, sizes: list[int], columns: FlatShard) -> list[Tensor]:
        """This process's columns of every process's rows: one all-to-all."""
        ranges = [columns.of_process(columns.d, r) for r in range(self.group.size)]
        parts = [rows[:, part.start : part.stop] for part in ranges]
        found = self.group.exchange(parts, [n * columns.width for n in sizes])
        return [part.view(n, columns.width) for part, n in zip(found, sizes, strict=True)]

    def _scatter_sums(self, sketch: "Linear", G: Tensor, sizes: list[int], columns: FlatShard) -> None:
        """S += Σ M G over all processes, each receiving its columns: reduce-scatters of blocks of M G.

        If a process has more gradients per round than the sketch has rows, this moves less than the gradients would.
        """
        bad = (~G.isfinite().all(1)).nonzero().flatten().tolist()
        largest = self.group.largest(float(G.abs().max()) if len(G) and not bad else float("inf") if bad else 0.0)
        if largest == float("inf"):
            raise NonFiniteError(
                f"gradients of {len(bad)} examples in this process contain NaN or infinity, or of some in another; "
                "nothing of this chunk was observed. Leave these examples out",
                bad,
            )
        M = sketch.mixing(G, largest, sum(sizes[: self.group.rank]))
        S, R = sketch.summand(), self.group.size
        width = max(1, SCATTER_BYTES // (R * len(S) * S.element_size()))
        for start in range(0, columns.chunk, width):
            block = S.new_zeros(R, len(S), min(width, columns.chunk - start))
            for r in range(R):
                part = columns.of_process(columns.d, r)[start : start + width]
                block[r, :, : len(part)] = M @ G[:, part.start : part.stop]
            mine = S[:, start : start + width]
            mine += self.group.scatter_sums(block)[:, : mine.shape[1]]
        energy = torch.tensor(squared_norm(G) if len(G) else 0.0, dtype=torch.float64, device=self.group.device)
        sketch.summed(sketch.count + sum(sizes), sketch.energy + float(self.group.total(energy)))


Linear = GradientSketch | ProductSketch | SymmetricSketch
"""The paper's sketches: S += M G for a matrix M that `mixing` gives."""


def _chunks(memory: GradientMemory, batches: Iterable[Batch]) -> Iterator[Tensor]:
    for inputs, targets in batches:
        if batch_size(inputs):
            with uninterrupted():
                inputs, targets = memory.prepared(inputs, targets)
                chunks = staged_rows(memory.signals, inputs, targets, _require_finite)
            yield from chunks()


def _require_finite(rows: Tensor) -> None:
    """Before any process adds a row; a sketch that is split sees only a part of them."""
    bad = (~rows.isfinite().all(1)).nonzero().flatten().tolist()
    if bad:
        raise NonFiniteError(
            f"the gradients of examples {bad[:8]} contain NaN or infinity; nothing of this batch was observed. Leave "
            "these examples out, or look for a division by zero in the model",
            bad,
        )


class BySameExamples(Sharing):
    """Every example is broadcast by the process that has it, and all observe it together."""

    def observe(self, memory: Memory, batches: Iterable[Batch], outdate: Callable[[], None]) -> None:
        """See `Sharing`; examples travel, no gradients."""
        assert isinstance(memory, GradientMemory)
        for batch, sizes in self._rounds(iter(batches), lambda batch: batch_size(batch[0])):
            for source, n in enumerate(sizes):
                if n == 0:
                    continue
                inputs, targets = self.group.broadcast(batch if source == self.group.rank else None, source)
                for start in range(0, n, memory.signals.chunk):
                    part = slice(start, start + memory.signals.chunk)
                    x, y = (map_tensors(lambda t: t[part], value) for value in (inputs, targets))  # noqa: B023
                    add(staged(memory, x, y), outdate)

    def complete(self, memory: Memory) -> None:
        """Nothing is left to do."""


def sharing_for(memory: Memory, group: Group) -> Sharing:
    """The way that fits a bound memory. Raises ValueError if there is none."""
    split = memory.parameters.split
    if isinstance(memory, GradientMemory) and split:
        return BySameExamples(group)
    if isinstance(memory, GradientMemory):
        adds_up = all(isinstance(sketch, Additive) for _, sketch in memory.sketches())
        flat = isinstance(memory.parameters.columns, FlatShard)
        return BySum(group) if adds_up and not flat else ByRows(group)
    for name, sketch in memory.sketches():
        if not isinstance(sketch, Additive) or isinstance(sketch, GradientSketch):
            raise ValueError(
                f"sketch {name!r} of the layer memory is a {type(sketch).__name__}, which several processes cannot add "
                "up; use LayerMemory(..., sketch=so.ProductSketch)"
            )
    return InStep(group) if split else BySum(group)
