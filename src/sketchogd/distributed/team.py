"""What a `Protection` asks of the processes that share it, and the team of one, which needs no communication."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from ..interrupts import uninterrupted
from ..memory import Memory
from ..memory.staging import Commit
from ..model.batches import batch_size
from ..model.parameters import ProtectedParameters
from ..storage import atomic, file, restore

Batch = tuple[Any, Any]

State = tuple[Mapping[str, Any], Mapping[str, Tensor]]
"""Metadata and tensors of a memory's state."""


def staged(memory: Memory, inputs: Any, targets: Any, ahead: int = 0) -> Commit:
    """Return `memory.stage` of a batch; an interrupt waits until it is done, and then nothing is added.

    torch.func puts other tensors in the place of a model's parameters. An interrupt while it takes them out again would
    leave the model without its parameters, and one between two modules without its mode.
    """
    with uninterrupted():
        return memory.stage(inputs, targets, ahead)


def add(commit: Commit, outdate: Callable[[], None]) -> None:
    """Outdate the projector and add to the memory what was staged; an interrupt waits until both are done."""
    with uninterrupted():
        outdate()
        commit()


class Team(ABC):
    """The processes that protect one model together. All of them call every method."""

    @abstractmethod
    def of(self, parameters: ProtectedParameters) -> "Team":
        """The same processes, for the parameters of a model that has grown."""

    @abstractmethod
    def require_fit(self, memory: Memory) -> None:
        """Raise ValueError for a memory that these processes cannot share."""

    @abstractmethod
    def share(self, memory: Memory) -> None:
        """Take charge of a memory that was just bound."""

    @abstractmethod
    def limit(self, batches: Any, examples: int | None) -> int | None:
        """How many examples of this process to take, padding left out; None for all."""

    @abstractmethod
    def observe(self, memory: Memory, batches: Iterable[Batch], outdate: Callable[[], None]) -> None:
        """Observe every process's batches; `outdate` is called before the memory changes."""

    @abstractmethod
    def complete(self, memory: Memory) -> None:
        """Bring to this process's memory what all processes have observed."""

    @abstractmethod
    def to_checkpoint(self, memory: Memory, meta: dict[str, Any], tensors: dict[str, Tensor]) -> State:
        """A state in the form that `state_dict` returns."""

    @abstractmethod
    def from_checkpoint(self, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> State:
        """This process's part of a state from `to_checkpoint`, or from a file."""

    @abstractmethod
    def require_writable(self, path: str | os.PathLike[str]) -> None:
        """Raise OSError where it is clear in advance that `save` cannot write."""

    @abstractmethod
    def save(self, path: str | os.PathLike[str], meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Write one memory file for all."""

    @abstractmethod
    def read(self, path: str | os.PathLike[str]) -> State:
        """The contents of a memory file."""


class Alone(Team):
    """A team of one."""

    def of(self, parameters: ProtectedParameters) -> Team:
        """Itself."""
        return self

    def require_fit(self, memory: Memory) -> None:
        """Every memory fits."""

    def share(self, memory: Memory) -> None:
        """There is nobody to share with."""

    def limit(self, batches: Any, examples: int | None) -> int | None:
        """`examples`."""
        return examples

    def observe(self, memory: Memory, batches: Iterable[Batch], outdate: Callable[[], None]) -> None:
        """One batch after the other; an empty batch changes nothing."""
        for inputs, targets in batches:
            if batch_size(inputs):
                add(staged(memory, inputs, targets), outdate)

    def complete(self, memory: Memory) -> None:
        """The memory knows everything already."""

    def to_checkpoint(self, memory: Memory, meta: dict[str, Any], tensors: dict[str, Tensor]) -> State:
        """The state as it is."""
        return meta, tensors

    def from_checkpoint(self, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> State:
        """The state as it is, without the padding that several processes need."""
        return restore.unpadded(meta, tensors)

    def require_writable(self, path: str | os.PathLike[str]) -> None:
        """See `storage.atomic.require_writable`."""
        atomic.require_writable(path)

    def save(self, path: str | os.PathLike[str], meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """See `storage.file.write`."""
        file.write(path, meta, tensors)

    def read(self, path: str | os.PathLike[str]) -> State:
        """See `storage.file.read`."""
        return file.read(path)
