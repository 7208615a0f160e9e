"""A bounded store of raw examples, from which batches are drawn. `n` examples kept, in groups (see `base`)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..testmatrix import derive_seed
from .base import Loss


class ExampleStore:
    """Examples as they are: inputs (n, …), targets (n,) and groups (n,); every random choice follows from the seed.

    The k-th draw from a store depends on (seed, k) alone, so a stored count is all that a resumed run needs.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.draws = 0
        self.inputs: Tensor | None = None
        self.targets: Tensor | None = None
        self.groups = torch.zeros(0, dtype=torch.int64)
        self._generator = torch.Generator()
        self._planned: Tensor | None = None
        self._at: Tensor | None = None
        self._members: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self.groups)

    def generator(self, *what: int | str) -> torch.Generator:
        """The generator for one purpose, always begun anew from the seed."""
        return self._generator.manual_seed(derive_seed(self.seed, *what))

    def append(self, inputs: Tensor, targets: Tensor, group: int) -> None:
        """Keep these examples as well."""
        self._planned = None
        self._members = {}
        inputs, targets = inputs.detach(), targets.detach()
        self.inputs = inputs.clone() if self.inputs is None else torch.cat([self.inputs, inputs])
        self.targets = targets.clone() if self.targets is None else torch.cat([self.targets, targets])
        self.groups = torch.cat([self.groups, torch.full((len(targets),), group)])

    def replace(self, place: int, example: Tensor, target: Tensor, group: int) -> None:
        """Put another example in the place of one."""
        assert self.inputs is not None
        assert self.targets is not None
        self._members = {}
        self.inputs[place], self.targets[place], self.groups[place] = example, target, group

    def plan(self, steps: int, size: int) -> None:
        """Draw the batches of the next `steps` steps now; `draw` then finds them on the device, one after another.

        Needs examples of one group, or a `size` that takes all: otherwise the parts of a batch differ in size.
        """
        if self.inputs is None or size >= len(self):
            return
        if len(self.groups.unique()) > 1:
            raise ValueError("batches of several groups cannot be planned: their parts differ in size")
        rows = torch.stack([self._rows(size) for _ in range(steps)]).to(self.inputs.device)
        if self._planned is not None and self._planned.shape == rows.shape and self._at is not None:
            self._planned.copy_(rows)  # a graph reads both where they stood when it was captured
            self._at.zero_()
        else:
            self._planned, self._at = rows, torch.zeros(1, dtype=torch.int64, device=rows.device)

    def _rows(self, size: int) -> Tensor:
        rows = torch.randperm(len(self), generator=self.generator("draw", self.draws))[:size]
        self.draws += 1
        return rows

    def draw(self, size: int) -> Iterator[tuple[Tensor, Tensor, int]]:
        """`size` examples without replacement (all, if there are no more), as (inputs, targets, group) by group."""
        assert self.inputs is not None
        assert self.targets is not None
        if size >= len(self):
            self.draws += 1
            if not self._members:
                for group in self.groups.unique().tolist():
                    self._members[group] = (self.groups == group).nonzero().flatten().to(self.inputs.device)
            chosen = self._members
        elif self._planned is not None and self._at is not None:
            chosen = {int(self.groups[0]): self._planned.index_select(0, self._at)[0]}
            self._at += 1
        else:
            rows = self._rows(size)
            groups = self.groups[rows]
            chosen = {g: rows[groups == g].to(self.inputs.device) for g in groups.unique().tolist()}
        for group, members in chosen.items():
            yield self.inputs.index_select(0, members), self.targets.index_select(0, members), group

    def mixed(self, size: int) -> tuple[Tensor, Tensor, int]:
        """`size` examples without replacement, whatever their groups, and the group of the first of them."""
        assert self.inputs is not None
        assert self.targets is not None
        rows = self._rows(size)
        there = rows.to(self.inputs.device)
        return self.inputs.index_select(0, there), self.targets.index_select(0, there), int(self.groups[rows[0]])

    def gradient(self, size: int, loss: Loss, parameters: Sequence[Tensor]) -> tuple[list[Tensor | None], int]:
        """The gradient of the mean loss over a drawn batch, one tensor (or None) a parameter, and the batch's size."""
        batches = list(self.draw(size))
        drawn = sum(len(targets) for _, targets, _ in batches)
        with torch.enable_grad():
            total = sum(loss(x, y, group) * (len(y) / drawn) for x, y, group in batches)
        assert isinstance(total, Tensor)
        return list(torch.autograd.grad(total, parameters, allow_unused=True)), drawn

    def tensors(self) -> dict[str, Tensor]:
        """Everything kept."""
        if self.inputs is None or self.targets is None:
            return {}
        return {"inputs": self.inputs, "targets": self.targets, "groups": self.groups}

    def state_dict(self) -> dict[str, Any]:
        """See `Baseline`."""
        return {"draws": self.draws, "tensors": self.tensors()}

    def load_state_dict(self, state: Mapping[str, Any], place: Callable[[Tensor], Tensor]) -> None:
        """See `Baseline`; `place` brings a tensor to the device of the model."""
        self.draws = int(state["draws"])
        held = state["tensors"]
        if held:
            self.inputs, self.targets = place(held["inputs"]).clone(), place(held["targets"]).clone()
            self.groups = held["groups"].clone()


def bytes_of_example(inputs: Tensor, targets: Tensor) -> int:
    """What one of these examples costs in a store: its input, its target and its group."""
    return inputs[0].numel() * inputs.element_size() + targets[0].numel() * targets.element_size() + 8
