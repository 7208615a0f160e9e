"""The interface of a memory: what is remembered of a model, and which sketches hold it.

Data flows one way: `observe` reads signals off the model and gives rows to sketches; `projector` turns the sketches
into what training applies to an update.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from ..coverage import Covered
from ..errors import ProtectionError
from ..ledger import Held
from ..model.batches import Output
from ..model.parameters import ProtectedParameters
from ..projector.base import Projector
from ..projector.rules import Rule
from ..projector.span import Span
from ..sketch import Sketch
from .staging import Commit

REGISTRY: dict[str, type["Memory"]] = {}
"""Every memory by its name, which is how files refer to it."""


class Memory(ABC):
    """What is remembered of a model. Settings first, then `bind` to the protected parameters."""

    name: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.name:
            REGISTRY[cls.name] = cls

    parameters: ProtectedParameters
    bound: bool = False
    """Whether it belongs to a model."""
    examples: int = 0
    """How many examples were observed."""

    tasks: int = 0
    """How many tasks were ended."""

    rule: Rule
    """How projectors protect what is remembered."""

    @property
    @abstractmethod
    def lasting(self) -> bool:
        """Whether a projector stays valid when the memory observes more, because it has a basis of its own."""

    def bind(self, parameters: ProtectedParameters, output: Output | None) -> None:
        """Allocate for these parameters. `output` is the scalar to remember; None means the memory's own default.

        Raises ProtectionError if the memory is bound already, since it would forget or mix what it remembers.
        """
        if self.bound:
            raise ProtectionError(
                f"this {type(self).__name__} belongs to a protection already, and one memory cannot serve two. Make "
                "another with the same settings; what this one remembers can be saved, and loaded or merged there"
            )
        self.parameters = parameters
        self._bind(parameters, output)
        self.bound = True

    @abstractmethod
    def _bind(self, parameters: ProtectedParameters, output: Output | None) -> None:
        """Allocate; see `bind`."""

    @abstractmethod
    def cost(self, parameters: ProtectedParameters) -> int:
        """The most bytes that the memory keeps for these parameters."""

    @abstractmethod
    def spans(self, parameters: ProtectedParameters) -> Sequence[Span | None]:
        """For each parameter the directions that an anchor with coordinates may have, as many as there can be.

        None where the anchor keeps the parameter itself. The memory need not be bound.
        """

    @abstractmethod
    def probe(self) -> "Memory | None":
        """An unbound memory that sees the first examples before this one does, where rows are still to be divided."""

    @abstractmethod
    def divide(self, probe: Any) -> None:
        """Begin anew with rows divided by what the probe has seen."""

    @abstractmethod
    def stage(self, inputs: Any, targets: Any, ahead: int = 0) -> Commit:
        """Compute what a batch adds to the memory, which stays as it is; the returned function adds it.

        `ahead` examples of other processes come before these, and are skipped by then.
        """

    def observe(self, inputs: Any, targets: Any) -> None:
        """Remember a batch: all of it, or, when an error is raised, nothing."""
        self.stage(inputs, targets)()

    @abstractmethod
    def coverage(self) -> Iterator[Covered]:
        """How each protected parameter is protected; one that is not yielded is not protected."""

    @abstractmethod
    def end_task(self) -> None:
        """Pass the end of a task on to the sketches."""

    @abstractmethod
    def projector(self) -> Projector:
        """The projector for what was observed, valid until the next observe unless it is `lasting`."""

    @property
    @abstractmethod
    def weight(self) -> float:
        """What a square change of an output of one example weighs in the mean over examples that a pull is for."""

    @property
    def promises(self) -> bool:
        """Whether a pull holds outputs to what they were when their own task ended, and not when the last one did."""
        return False

    @property
    @abstractmethod
    def together(self) -> int:
        """How many parts of the model, judged one by one, move outputs together: a pull counts so many times each.

        A change of an output that is a sum over parts has at most so many times the sum of their squares.
        """

    @abstractmethod
    def sensitivity(self) -> float | None:
        """c with (rms change of a remembered output) <= c ‖Δw‖ for every displacement Δw that the projector passes.

        To first order in Δw, and for the scalar outputs of the examples observed. None where no such number is known.
        """

    @abstractmethod
    def sketches(self) -> Iterator[tuple[str, Sketch]]:
        """Every sketch by its name in files."""

    @abstractmethod
    def skip(self, examples: int) -> None:
        """Advance the counter past examples of other processes; the next all-reduce adds their contribution."""

    @abstractmethod
    def merge(self, other: Any) -> None:
        """Take over what another memory of the same model remembers: all of it or, when an error is raised, nothing.

        Raises ValueError, with the reason, for memories that were not made to be merged. A projector made before is no
        longer valid; `Protection.merge` sees to that.
        """

    def require_same_model(self, other: Any) -> None:
        """Raise ValueError unless `other` is a memory of this kind of the same parameters."""
        if type(other) is not type(self):
            raise ValueError(f"a memory of kind {type(other).__name__} cannot be merged into a {type(self).__name__}")
        if other.parameters.describe() != self.parameters.describe():
            raise ValueError(
                f"the two memories are of different models: {other.parameters.p:,} parameters in "
                f"{len(other.parameters)} tensors there, {self.parameters.p:,} in {len(self.parameters)} here"
            )

    @abstractmethod
    def held(self) -> Iterator[Held]:
        """Every tensor kept."""

    @property
    def nbytes(self) -> int:
        """Bytes of everything kept."""
        return sum(item.nbytes for item in self.held())

    @abstractmethod
    def diagnostics(self) -> dict[str, Any]:
        """Counts and spectra, as plain numbers."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """{"meta": plain data, "tensors": {name: tensor}}."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`; all or nothing. Raises StorageError where it does not fit."""

    @classmethod
    @abstractmethod
    def from_meta(cls, meta: dict[str, Any]) -> "Memory":
        """An unbound memory with the settings of a `state_dict`'s metadata. Raises StorageError if it has none."""

    @abstractmethod
    def require_state(
        self, parameters: ProtectedParameters, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> set[str]:
        """Raise StorageError unless a state is of a memory with these settings, which need not be bound.

        Nothing is allocated. Returns the names of the tensors that belong to the memory.
        """
