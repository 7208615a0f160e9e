"""The linear and convolution layers of a model as matrices: their inputs as rows, their gradients as (out, d).

Methods that work layer by layer share this. `d` is the fan-in, and one more, always 1, where the layer has a bias; `n`
rows: an example gives a linear layer one per position, a convolution one per place of its kernel.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sketchogd.model.batches import call, evaluating
from sketchogd.model.parameters import ProtectedParameters


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer y = W a (+ bias); see `layers_of`.

    Args:
        name: that of the module.
        module: `nn.Linear`, or `nn.Conv2d` with one group and zero padding.
        bias: whether its bias is held too.
    """

    name: str
    module: nn.Linear | nn.Conv2d
    bias: bool

    @property
    def width(self) -> int:
        """d."""
        return self.module.weight[0].numel() + self.bias

    @property
    def tensors(self) -> list[nn.Parameter]:
        """Its weight, and its bias if that is held."""
        return [self.module.weight, *([self.module.bias] if self.bias else [])]  # type: ignore[list-item]

    def rows(self, x: Tensor) -> Tensor:
        """The rows (n, d) of its inputs."""
        module = self.module
        if isinstance(module, nn.Conv2d):
            given = (module.kernel_size, module.dilation, module.padding, module.stride)
            rows = F.unfold(x, *given).transpose(1, 2).flatten(0, 1)  # type: ignore[arg-type]
        else:
            rows = x.flatten(0, -2)
        return torch.cat([rows, rows.new_ones(len(rows), 1)], 1) if self.bias else rows

    def sensitivities(self, g: Tensor) -> Tensor:
        """The gradients of its outputs as rows (n, out), in the order of `rows`."""
        return g.flatten(2).transpose(1, 2).flatten(0, 1) if isinstance(self.module, nn.Conv2d) else g.flatten(0, -2)

    def joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors shaped like weight and bias as a matrix (out, d)."""
        weight = tensors[0].flatten(1)
        return torch.cat([weight, tensors[1][:, None]], 1) if self.bias else weight

    def parted(self, G: Tensor) -> list[Tensor]:
        """A matrix (out, d) as tensors shaped like weight and bias."""
        weight = G[:, : self.width - self.bias].reshape(self.module.weight.shape)
        return [weight, *([G[:, -1]] if self.bias else [])]


def layers_of(parameters: ProtectedParameters) -> tuple[list[Layer], list[nn.Parameter]]:
    """The layers whose weights are held, in the order of the model, and what else is held.

    Norms, embeddings, depthwise convolutions and single tensors are the rest.
    """
    held = {id(t) for t in parameters.tensors}
    found = [
        Layer(name, module, module.bias is not None and id(module.bias) in held)
        for name, module in parameters.model.named_modules()
        if _is_matrix(module) and id(module.weight) in held
    ]
    taken = {id(t) for layer in found for t in layer.tensors}
    return found, [t for t in parameters.tensors if id(t) not in taken]


def _is_matrix(module: nn.Module) -> bool:
    if isinstance(module, nn.Conv2d):
        return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return isinstance(module, nn.Linear)


@contextmanager
def recorded(layers: Sequence[Layer]) -> Iterator[dict[str, list[tuple[Tensor, Tensor]]]]:
    """A block in which the inputs and outputs of every call of a layer are kept, by its name."""
    found: dict[str, list[tuple[Tensor, Tensor]]] = {layer.name: [] for layer in layers}

    def keep(name: str) -> Any:
        return lambda module, inputs, output: found[name].append((inputs[0], output))

    hooks = [layer.module.register_forward_hook(keep(layer.name)) for layer in layers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def inputs_of(model: nn.Module, layers: Sequence[Layer], x: Tensor) -> dict[str, list[Tensor]]:
    """The inputs of each layer, one tensor per call of it, on the examples x, with the model in evaluation mode."""
    with recorded(layers) as found, evaluating(model):
        call(model, x)
    return {name: [a for a, _ in calls] for name, calls in found.items()}
