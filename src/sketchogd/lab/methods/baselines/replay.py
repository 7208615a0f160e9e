"""Experience replay with a reservoir (Chaudhry et al. 2019, "On Tiny Episodic Memories in Continual Learning").

Every step is on the mean loss over the current batch and a batch drawn from the memory together. The memory is a
uniform sample of all examples seen: the n-th example (from 0) is kept while there is room; after that it overwrites
example j = ⌊u (n + 1)⌋, u uniform in [0, 1), if j < capacity, and is dropped otherwise (Vitter's algorithm R).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sketchogd.lab.methods.baselines.examples import ExampleStore
from sketchogd.lab.methods.learner import Learner, Loss
from sketchogd.lab.streams.encodings import AS_GIVEN, Encoding
from sketchogd.model.parameters import ProtectedParameters


class Replay(Learner):
    """Keeps `capacity` raw examples in all; draws `batch` of them at each step.

    Bytes: capacity · (bytes of an input + 16); kept as pixels or tokens (`encoding`), those of the input in that form
    + 2. The paper makes one pass over the data; with several epochs per task, each example is offered to the reservoir
    once, when the task ends. The two parts of a joint batch go through the model one after the other, which makes no
    difference unless batch normalisation is in training mode.

    Args:
        model: the model that is trained.
        loss: mean loss of a batch of one head.
        capacity: examples kept in all.
        batch: examples drawn at each step.
        encoding: how inputs are kept.
        seed: every random choice follows from it.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        capacity: int,
        batch: int,
        *,
        encoding: Encoding = AS_GIVEN,
        seed: int = 0,
    ) -> None:
        if capacity < 1 or batch < 1:
            raise ValueError(f"replay needs room for at least one example and a batch; got {capacity} and {batch}")
        self.parameters = ProtectedParameters(model).tensors
        self.loss = loss
        self.capacity = capacity
        self.batch = batch
        self.store = ExampleStore(seed, encoding)
        self.seen = 0

    def before_step(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Set `.grad` to the gradient of the mean loss over both batches, (n g + m r) / (n + m)."""
        if not len(self.store):
            return
        reference, m = self.store.gradient(self.batch, self.loss, self.parameters)
        n = len(targets)
        for t, r in zip(self.parameters, reference, strict=True):
            if t.grad is not None:
                t.grad.mul_(n / (n + m))
            if r is not None:
                t.grad = r * (m / (n + m)) if t.grad is None else t.grad.add_(r, alpha=m / (n + m))

    def end_task(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Offer every example of the task to the reservoir once."""
        generator = self.store.generator("reservoir", self.seen)
        uniform = torch.rand(len(targets), generator=generator, dtype=torch.float64)
        room = min(self.capacity - len(self.store), len(targets))
        if room:
            self.store.append(inputs[:room], targets[:room], head)
        numbers = self.seen + torch.arange(len(targets))
        places = (uniform * (numbers + 1)).long()
        accepted = (places < self.capacity) & (torch.arange(len(targets)) >= room)
        for i in accepted.nonzero().flatten().tolist():
            self.store.replace(int(places[i]), inputs[i], targets[i], head)
        self.seen += len(targets)

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        return self.store.tensors()

    def state_dict(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"seen": self.seen, "store": self.store.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner`."""
        self.seen = int(state["seen"])
        self.store.load_state_dict(state["store"], lambda t: t.to(self.parameters[0].device))
