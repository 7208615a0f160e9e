"""Weights side by side: the parameters of S equal models as one tensor (S, …) each, and the passes through all of them.

Letters: S models, b examples in a batch, C logits.
"""

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sketchogd.lab.configs import OPTIMIZERS, RunConfig
from sketchogd.lab.models import LeNet

Heads = tuple[Sequence[int], Tensor]
"""The output heads that occur in batches of S models, and the place (S, b) of each example's head among them."""

Take = Callable[[str | None, str, Tensor, Tensor | None], None]
"""Told of a layer, take(weight, bias, δ, a): the names of its weight (or None) and bias, its inputs a (S, b, fan-in),
and the derivative δ (S, b, fan-out) of the losses by its outputs."""

Backward = Callable[[nn.Module, dict[str, Tensor], Tensor, Tensor, Heads | None, Take], Tensor]
"""The passes of S models written out, backward(net, weights, x, y, heads, take), without autograd. The losses (S,).

`take` is called for one layer after another, from the last, each when nothing will read its weights again. Without
`heads` all examples belong to the head that `net` has in use.
"""


def written_out(net: nn.Module, trained: Collection[str], features: bool) -> Backward:
    """The passes of models like `net`, whose parameters `trained` move, on images or flat features.

    Raises:
        ValueError: passes of such models are not written out; they cannot be trained side by side.
    """
    still = [name for name, _ in net.named_parameters() if name not in trained]
    if is_chain(net) and not still:
        return chain_passes
    on_features = isinstance(net, LeNet) and not net.training and features
    if on_features and all(name.startswith("conv") for name in still):
        return features_passes
    raise ValueError(f"{type(net).__name__} with {', '.join(still) or 'nothing'} frozen cannot be trained side by side")


def is_chain(net: nn.Module) -> bool:
    """Whether a model is linear layers with ReLUs between them, on flattened inputs."""
    kinds = [type(module) for module in net] if isinstance(net, nn.Sequential) else []
    linear = [nn.Linear] + [nn.ReLU, nn.Linear] * (len(kinds) // 2 - 1)
    return kinds == [nn.Flatten, *linear]


def chain_passes(
    net: nn.Module, weights: dict[str, Tensor], x: Tensor, y: Tensor, heads: Heads | None, take: Take
) -> Tensor:
    """`Backward` of chains (see `is_chain`), which have one head."""
    layers = [name for name, module in net.named_children() if type(module) is nn.Linear]
    a, inputs = x.flatten(2), []
    for name in layers:
        inputs.append(a)
        a = _linear(a, weights[f"{name}.weight"], weights[f"{name}.bias"])
        a = a.relu_() if name != layers[-1] else a
    losses, delta = _losses_and_delta(a, y)
    for i, name in reversed(list(enumerate(layers))):
        below = torch.bmm(delta, weights[f"{name}.weight"]).mul_(inputs[i] > 0) if i else delta
        take(f"{name}.weight", f"{name}.bias", delta, inputs[i])
        delta = below
    return losses


def features_passes(
    net: nn.Module, weights: dict[str, Tensor], x: Tensor, y: Tensor, heads: Heads | None, take: Take
) -> Tensor:
    """`Backward` of LeNets in evaluation mode on the features x (S, b, 3200) of their frozen convolutions."""
    assert isinstance(net, LeNet)
    used, place = heads or ([net.head], None)
    scale, shift = (weights[f"wide_norm.{name}"].unsqueeze(1) for name in ("weight", "bias"))
    mean, variance = (weights[f"wide_norm.running_{name}"].unsqueeze(1) for name in ("mean", "var"))
    head, head_bias = (torch.cat([weights[f"heads.{h}.{name}"] for h in used], 1) for name in ("weight", "bias"))
    inverse = (variance + net.wide_norm.eps).rsqrt_()
    normal = _linear(x, weights["wide.weight"], weights["wide.bias"]).sub_(mean).mul_(inverse)
    a = torch.addcmul(shift, normal, scale).relu_()
    logits = _linear(a, head, head_bias)
    if place is None:
        losses, delta = _losses_and_delta(logits, y)
    else:
        of_heads = logits.unflatten(-1, (len(used), -1))
        own = place[..., None, None].expand(*place.shape, 1, of_heads.shape[-1])
        losses, delta_of_own = _losses_and_delta(of_heads.gather(2, own).squeeze(2), y)
        delta = torch.zeros_like(of_heads).scatter_(2, own, delta_of_own.unsqueeze(2)).flatten(2)
    below = torch.bmm(delta, head).mul_(a > 0)
    for h, of_head in zip(used, delta.chunk(len(used), -1), strict=True):
        take(f"heads.{h}.weight", f"heads.{h}.bias", of_head, a)
    take("wide.weight", "wide.bias", below * (inverse * scale), x)
    take(None, "wide_norm.weight", normal.mul_(below), None)
    take(None, "wide_norm.bias", below, None)
    return losses


@torch.no_grad()
def step_(backward: Backward, net: nn.Module, weights: dict[str, Tensor], x: Tensor, y: Tensor, lr: float) -> Tensor:
    """A step of plain SGD on S models, in place; returns their losses (S,) before it.

    The same as that of torch.optim.SGD, but no gradient is ever stored: W −= lr δᵀ a is one product.
    """

    def descend(weight: str | None, bias: str, delta: Tensor, a: Tensor | None) -> None:
        if weight is not None and a is not None:
            weights[weight].baddbmm_(delta.transpose(1, 2), a, alpha=-lr)
        weights[bias].sub_(delta.sum(1), alpha=lr)

    return backward(net, weights, x, y, None, descend)


@torch.no_grad()
def gradients(
    backward: Backward, net: nn.Module, weights: dict[str, Tensor], x: Tensor, y: Tensor, heads: Heads | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The losses (S,) of S models, means over their batches, and the gradients (S, …) of all parameters they reach."""
    found = {}

    def keep(weight: str | None, bias: str, delta: Tensor, a: Tensor | None) -> None:
        if weight is not None and a is not None:
            found[weight] = torch.bmm(delta.transpose(1, 2), a)
        found[bias] = delta.sum(1)

    return backward(net, weights, x, y, heads, keep), found


def _linear(a: Tensor, W: Tensor, bias: Tensor) -> Tensor:
    return torch.baddbmm(bias.unsqueeze(1), a, W.transpose(1, 2))


def _losses_and_delta(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The losses (S,) of logits (S, b, C), mean cross entropies, and their derivative by the logits."""
    log_p, true = logits.log_softmax(-1), y.unsqueeze(-1)
    losses = -log_p.gather(-1, true).squeeze(-1).mean(1)
    delta = log_p.exp_().scatter_add_(-1, true, torch.full_like(true, -1, dtype=log_p.dtype)).div_(y.shape[1])
    return losses, delta


@dataclass(eq=False)
class Stack:
    """Every parameter and buffer of S models as one tensor (S, …) in `weights`; `trained` are leaves in their place."""

    trained: dict[str, Tensor]
    weights: dict[str, Tensor]

    def lend_gradients(self, s: int, model: nn.Module) -> None:
        """Give model s views of its own gradients, to be changed in place."""
        named = dict(model.named_parameters())
        for name, leaf in self.trained.items():
            assert leaf.grad is not None
            named[name].grad = leaf.grad[s]


def stacked(nets: Sequence[nn.Module]) -> Stack:
    """Stack the weights of equal models, which then have views into the stack instead of tensors of their own."""
    trained, weights = {}, {}
    for name, first in itertools.chain(nets[0].named_parameters(), nets[0].named_buffers()):
        whole = torch.stack([_named(net)[name].detach() for net in nets])
        for s, net in enumerate(nets):
            _named(net)[name].data = whole[s]
        weights[name] = whole
        if isinstance(first, nn.Parameter) and first.requires_grad:
            trained[name] = whole.detach().requires_grad_()
    return Stack(trained, weights)


def _named(net: nn.Module) -> dict[str, Tensor]:
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}


def stacked_optimizer(leaves: list[Tensor], config: RunConfig) -> torch.optim.Optimizer:
    """The config's optimizer on the stacked weights: all of them work element by element."""
    optimizer = OPTIMIZERS[config.training.optimizer](leaves, lr=config.training.lr)
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = leaves[0].is_cuda
    return optimizer
