"""What layerwise projections share: from the second task on each layer's gradient G (out, d) is projected.

What is not a layer (norms, embeddings) is trained on the first task only, as the authors of GPM do with the affine
parameters of norms. Their optimizer is plain SGD. With another one a projected gradient does not give a projected
step; `updates` projects the step that the optimizer took instead, which for plain SGD is the same.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sketchogd.lab.methods.baselines.layers import Layer, layers_of
from sketchogd.lab.methods.learner import Learner
from sketchogd.model.parameters import ProtectedParameters, Selection


class LayerProjection(Learner):
    """Projects the gradient, or the update, of every layer.

    Args:
        model: the model that is trained.
        updates: project what the optimizer changed, after its step, rather than the gradient.
        parameters: which parameters are held; by default all that are trained.

    Raises:
        ValueError: no linear or convolution layer is held.
    """

    def __init__(self, model: nn.Module, *, updates: bool = False, parameters: Selection = None) -> None:
        self.parameters = ProtectedParameters(model, parameters)
        self.layers, self.rest = layers_of(self.parameters)
        if not self.layers:
            raise ValueError("a layerwise projection needs a linear layer or a convolution among the held parameters")
        self.updates = updates
        self.tasks = 0
        self._before: list[list[Tensor]] = []

    @abstractmethod
    def projected(self, layer: Layer, G: Tensor) -> Tensor:
        """G (out, d) without what would change the layer's outputs on earlier tasks."""

    @abstractmethod
    def observe(self, inputs: Tensor) -> None:
        """Take what must be kept from the inputs of the task just trained."""

    @torch.no_grad()
    def before_step(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Project the gradients, or keep the weights for `after_step`."""
        if self.tasks == 0:
            return
        if self.updates:
            self._before = [[t.clone() for t in layer.tensors] for layer in self.layers]
            self._before.append([t.clone() for t in self.rest])
            return
        for layer in self.layers:
            if layer.module.weight.grad is not None:
                gradients = [t.grad for t in layer.tensors if t.grad is not None]
                _copy_(gradients, layer.parted(self.projected(layer, layer.joined(gradients))))
        for t in self.rest:
            if t.grad is not None:
                t.grad.zero_()

    @torch.no_grad()
    def after_step(self) -> None:
        """Project what the optimizer changed, if that is asked for."""
        if not self._before:
            return
        for layer, before in zip(self.layers, self._before, strict=False):
            moved = [t - old for t, old in zip(layer.tensors, before, strict=True)]
            kept = layer.parted(self.projected(layer, layer.joined(moved)))
            _copy_(layer.tensors, [old + change for old, change in zip(before, kept, strict=True)])
        _copy_(self.rest, self._before[-1])
        self._before = []

    @torch.no_grad()
    def end_task(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """See `observe`."""
        self.observe(inputs)
        self.tasks += 1

    def state_dict(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"tasks": self.tasks, "tensors": self.tensors()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner`."""
        self.tasks = int(state["tasks"])
        self._load({name: t.to(self.parameters.device) for name, t in state["tensors"].items()})

    @abstractmethod
    def _load(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace what is kept by these tensors, named as in `tensors`."""


def per_layer(what: str, value: float | Sequence[float], layers: Sequence[Layer]) -> list[float]:
    """A setting for each layer, from one number for all or a list. Raises ValueError for a list of another length."""
    values = list(value) if isinstance(value, Sequence) else [value] * len(layers)
    if len(values) != len(layers):
        names = ", ".join(layer.name for layer in layers)
        raise ValueError(f"{what} is one number, or one for each of the {len(layers)} layers ({names}); got {value}")
    return values


def _copy_(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for t, value in zip(tensors, values, strict=True):
        t.copy_(value)
