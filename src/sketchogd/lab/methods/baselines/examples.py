"""A bounded store of raw examples, from which batches are drawn. n examples kept, in groups (see `learner`)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sketchogd.lab.methods.learner import Loss
from sketchogd.lab.streams.encodings import AS_GIVEN, Encoding
from sketchogd.seeds import derive_seed


class ExampleStore:
    """Raw examples: inputs (n, …) as their encoding has them, targets (n,) and groups (n,).

    The k-th draw depends only on (seed, k), so a resumed run needs only the number of draws.
    """

    def __init__(self, seed: int = 0, encoding: Encoding = AS_GIVEN) -> None:
        self.seed = seed
        self.encoding = encoding
        self.draws = 0
        self.inputs: Tensor | None = None
        self.targets: Tensor | None = None
        self.groups = torch.zeros(0, dtype=encoding.labels)
        self._generator = torch.Generator()
        self._members: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self.groups)

    def generator(self, *what: int | str) -> torch.Generator:
        """The generator for one purpose, newly seeded."""
        return self._generator.manual_seed(derive_seed(self.seed, *what))

    def append(self, inputs: Tensor, targets: Tensor, head: int) -> None:
        """Add examples of one head."""
        self._members = {}
        inputs, targets = self.encoding.encode(inputs.detach()), targets.detach().to(self.encoding.labels)
        self.inputs = inputs.clone() if self.inputs is None else torch.cat([self.inputs, inputs])
        self.targets = targets.clone() if self.targets is None else torch.cat([self.targets, targets])
        self.groups = torch.cat([self.groups, torch.full((len(targets),), head, dtype=self.encoding.labels)])

    def replace(self, place: int, example: Tensor, target: Tensor, head: int) -> None:
        """Overwrite one example with another."""
        assert self.inputs is not None
        assert self.targets is not None
        self._members = {}
        self.inputs[place] = self.encoding.encode(example[None])[0]
        self.targets[place], self.groups[place] = target, head

    def rows(self, size: int) -> Tensor:
        """The indices (size,) of the next draw, without replacement; all n, if `size` is not less than n."""
        n = len(self)
        generator = self.generator("draw", self.draws)
        self.draws += 1
        if size >= n:
            return torch.arange(n)
        if size * size > n:
            return torch.randperm(n, generator=generator)[:size]
        while True:  # few out of many rarely repeat
            rows = torch.randint(n, (size,), generator=generator)
            if len(set(rows.tolist())) == size:
                return rows

    def draw(self, size: int) -> Iterator[tuple[Tensor, Tensor, int]]:
        """`size` examples without replacement (at most all n), as (inputs, targets, head), one triple per head."""
        assert self.inputs is not None
        assert self.targets is not None
        if size >= len(self):
            self.draws += 1
            if not self._members:
                for head in self.groups.unique().tolist():
                    self._members[head] = (self.groups == head).nonzero().flatten().to(self.inputs.device)
            chosen = self._members
        else:
            rows = self.rows(size)
            groups = self.groups[rows]
            chosen = {g: rows[groups == g].to(self.inputs.device) for g in groups.unique().tolist()}
        for head, members in chosen.items():
            yield *self._at(members), head

    def of_rows(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor, int, Tensor]]:
        """The examples with these indices, as (inputs, targets, head, indices), one tuple per head."""
        assert self.inputs is not None
        groups = self.groups[rows]
        for head in groups.unique().tolist():
            members = rows[groups == head].to(self.inputs.device)
            yield *self._at(members), head, members

    def mixed(self, size: int) -> tuple[Tensor, Tensor, int]:
        """`size` examples of any head without replacement, as (inputs, targets), and the head of the first."""
        assert self.inputs is not None
        assert self.targets is not None
        rows = self.rows(size)
        return *self._at(rows.to(self.inputs.device)), int(self.groups[rows[0]])

    def _at(self, members: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these examples as they were given."""
        assert self.inputs is not None
        assert self.targets is not None
        return self.encoding.decode(self.inputs.index_select(0, members)), self.targets.index_select(0, members).long()

    def gradient(self, size: int, loss: Loss, parameters: Sequence[Tensor]) -> tuple[list[Tensor | None], int]:
        """The gradient of the mean loss over a drawn batch, a tensor or None per parameter, and the batch's size."""
        batches = list(self.draw(size))
        drawn = sum(len(targets) for _, targets, _ in batches)
        with torch.enable_grad():
            total = sum(loss(x, y, head) * (len(y) / drawn) for x, y, head in batches)
        assert isinstance(total, Tensor)
        return list(torch.autograd.grad(total, parameters, allow_unused=True)), drawn

    def tensors(self) -> dict[str, Tensor]:
        """Everything kept."""
        if self.inputs is None or self.targets is None:
            return {}
        return {"inputs": self.inputs, "targets": self.targets, "groups": self.groups}

    def state_dict(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"draws": self.draws, "tensors": self.tensors()}

    def load_state_dict(self, state: Mapping[str, Any], place: Callable[[Tensor], Tensor]) -> None:
        """See `Learner`; `place` moves a tensor to the device of the model."""
        self.draws = int(state["draws"])
        held = state["tensors"]
        if held:
            self.inputs, self.targets = place(held["inputs"]).clone(), place(held["targets"]).clone()
            self.groups = held["groups"].clone()


def bytes_of_example(inputs: Tensor, targets: Tensor) -> int:
    """Bytes of one of these examples in a store: its input, its target and its head."""
    return inputs[0].numel() * inputs.element_size() + targets[0].numel() * targets.element_size() + 8
