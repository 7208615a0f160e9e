"""A layer memory and a sketch of gradients together, to see whether either adds to the other.

A displacement v is first pulled back by the layer memory, v ← (I − A) v, then projected onto the orthogonal complement
of the sketched gradients, v ← (I − P) v.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sketchogd import schema
from sketchogd.coverage import Covered
from sketchogd.errors import StorageError
from sketchogd.ledger import Held
from sketchogd.memory import GradientMemory, LayerMemory, Memory
from sketchogd.memory.metadata import GRADIENTS, LAYERS
from sketchogd.memory.staging import Commit
from sketchogd.model.batches import Output
from sketchogd.model.parameters import ProtectedParameters
from sketchogd.projector import LayersProjector, Projector
from sketchogd.sketch import Sketch


@dataclass(eq=False)
class BothProjector(Projector):
    """v − (I − P)(I − A) v = A v + P (v − A v).

    P is linear, so for an anchored A the result may be applied repeatedly to the displacement since the anchor.
    """

    layers: LayersProjector
    gradients: Projector

    def __post_init__(self) -> None:
        self.anchor = self.layers.anchor
        self.columns = self.gradients.columns

    @property
    def empty(self) -> bool:
        """Whether neither protects anything."""
        return self.layers.empty and self.gradients.empty

    @property
    def hard(self) -> bool:
        """False: the product of two projections is not a projection."""
        return False

    def protected_part_(self, v: Tensor, travelled: float = 1.0) -> Tensor:
        """A v + P (v − A v), with one more vector for A v."""
        pulled = self.layers.protected_part_(v.clone(), travelled)
        return self.gradients.protected_part_(v.sub_(pulled)).add_(pulled)


class Both(Memory):
    """Two memories that observe the same examples, each with its default output; see `BothProjector`."""

    name = "both"

    def __init__(self, layers: LayerMemory, gradients: GradientMemory) -> None:
        self.layers = layers
        self.gradients = gradients
        self.rule = layers.rule

    output: Output | None

    def __repr__(self) -> str:
        return f"Both({self.layers!r}, {self.gradients.sketch!r})"

    @property
    def lasting(self) -> bool:
        """False: the layer memory's eigenvectors overwrite its sketches."""
        return False

    def _bind(self, parameters: ProtectedParameters, output: Output | None) -> None:
        """See `Memory`; without an output, every logit for the layers and the true one for the gradients."""
        self.output = output
        for memory in (self.layers, self.gradients):
            memory.bind(parameters, output)

    def cost(self, parameters: ProtectedParameters) -> int:
        """See `Memory`."""
        return self.layers.cost(parameters) + self.gradients.cost(parameters)

    @property
    def together(self) -> int:
        """See `Memory`."""
        return self.layers.together

    def spans(self, parameters: ProtectedParameters) -> list[None]:
        """See `Memory`."""
        return [None] * len(parameters)

    def probe(self) -> None:
        """None: both have their ranks."""

    def divide(self, probe: Any) -> None:
        """There is nothing to divide."""

    def stage(self, inputs: Any, targets: Any, ahead: int = 0) -> Commit:
        """See `Memory`."""
        commits = [memory.stage(inputs, targets, ahead) for _, memory in self._parts()]

        def commit() -> None:
            for each in commits:
                each()
            self.examples = self.layers.examples

        return commit

    def coverage(self) -> Iterator[Covered]:
        """See `Memory`; every parameter is in both."""
        for _, memory in self._parts():
            yield from memory.coverage()

    def end_task(self) -> None:
        """See `Memory`."""
        self.layers.end_task()
        self.gradients.end_task()

    def projector(self) -> BothProjector:
        """See `Memory`."""
        return BothProjector(self.layers.projector(), self.gradients.projector())

    @property
    def weight(self) -> float:
        """See `Memory`."""
        return self.layers.weight

    def sensitivity(self) -> None:
        """None: A + P (I − A) is not symmetric, so there is no known bound on how far weights move."""

    def sketches(self) -> Iterator[tuple[str, Sketch]]:
        """See `Memory`."""
        for part, memory in self._parts():
            for name, sketch in memory.sketches():
                yield f"{part}.{name}", sketch

    def skip(self, examples: int) -> None:
        """See `Memory`."""
        self.layers.skip(examples)
        self.gradients.skip(examples)
        self.examples = self.layers.examples

    def merge(self, other: Any) -> None:
        """Not supported: this memory is for comparisons within one process. Raises ValueError."""
        raise ValueError("two memories of both kinds cannot be merged; merge layer and gradient memories by themselves")

    def held(self) -> Iterator[Held]:
        """See `Memory`."""
        for part, memory in self._parts():
            for item in memory.held():
                yield Held(f"{part}.{item.name}", item.purpose, item.tensor)

    def diagnostics(self) -> dict[str, Any]:
        """See `Memory`."""
        return {**{part: memory.diagnostics() for part, memory in self._parts()}, "memory": self.name}

    def state_dict(self) -> dict[str, Any]:
        """See `Memory`."""
        meta: dict[str, Any] = {"memory": self.name, "examples": self.examples}
        tensors: dict[str, Tensor] = {}
        for part, memory in self._parts():
            state = memory.state_dict()
            meta[part] = state["meta"]
            tensors |= {f"{part}.{name}": t for name, t in state["tensors"].items()}
        return {"meta": meta, "tensors": tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Memory`."""
        meta, tensors = state["meta"], state["tensors"]
        if _settings(meta) != _settings(self.state_dict()["meta"]):
            raise StorageError(f"the state is of memories with other settings: {_settings(meta)}")
        trial = self.from_meta(meta)
        trial.bind(self.parameters, self.output)
        for part, memory in trial._parts():
            own = {name.removeprefix(part + "."): t for name, t in tensors.items() if name.startswith(part + ".")}
            memory.load_state_dict({"meta": meta[part], "tensors": own})
        self.layers, self.gradients = trial.layers, trial.gradients
        self.examples = int(meta["examples"])

    def require_state(
        self, parameters: ProtectedParameters, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> set[str]:
        """See `Memory`."""
        names = set()
        for part, memory in self._parts():
            own = {name.removeprefix(part + "."): t for name, t in tensors.items() if name.startswith(part + ".")}
            names |= {f"{part}.{name}" for name in memory.require_state(parameters, meta[part], own)}
        return names

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> "Both":
        """See `Memory`."""
        schema.record({"layers": LAYERS, "gradients": GRADIENTS}, more=True)(meta, schema.TOP)
        return cls(LayerMemory.from_meta(meta["layers"]), GradientMemory.from_meta(meta["gradients"]))

    def _parts(self) -> Iterator[tuple[str, Memory]]:
        yield "layers", self.layers
        yield "gradients", self.gradients


def _settings(meta: dict[str, Any]) -> list[Any]:
    """The settings of both memories and of the sketch of gradients, from a state's metadata."""
    layers, gradients = meta["layers"], meta["gradients"]
    return [layers["settings"], gradients["settings"], gradients["sketch"]["sketch"], gradients["sketch"]["settings"]]
