"""Stacked weights: each parameter of S equal models as one tensor (S, …), and the passes through all models at once.

The heads of a LeNet are concatenated into two tensors, "heads.weight" and "heads.bias", so that a batch with examples
of many heads needs no more kernel launches than one of a single head.

Letters: S models, b examples in a batch, C logits of a head, H heads.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sketchogd.lab.models import LeNet, lenet_for, mlp_for
from sketchogd.lab.runs.config import OPTIMIZERS, RunConfig, Training
from sketchogd.lab.streams.benchmark import Network

ALL = slice(None)

Take = Callable[[str | None, str, Tensor, Tensor | None, slice], None]
"""Receives one layer, take(weight, bias, δ, a, rows): the names of its weight (or None) and bias, the derivative δ
(S, b, …) of the losses with respect to its outputs, its inputs a (S, b, fan-in), and the rows of weight and bias that δ
belongs to."""

Backward = Callable[[nn.Module, dict[str, Tensor], Tensor, Tensor, Tensor | None, Take], Tensor]
"""Forward and backward pass of S models without autograd, backward(net, weights, x, y, heads, take) → losses (S, b).

`take` is called layer by layer from the last, each time after the last use of that layer's weights. `heads` (S, b) are
the heads of the examples; None if all belong to the active head of `net`.
"""


def can_be_stacked(network: Network, training: Training) -> bool:
    """Whether `written_out` has the passes of the networks that `network` builds, when they are trained like this."""
    if training.schedule or training.augment or training.fresh or training.test_batch:
        return False
    if training.clip is not None or training.weight_decay is not None:
        return False
    if network is mlp_for:
        return not training.frozen and not training.eval_after_first_step
    if network is lenet_for:
        return training.optimizer == "sgd" and training.eval_after_first_step and training.frozen == ("conv*",)
    return False


def written_out(net: nn.Module, features: bool) -> Backward:
    """The passes of models like `net`, with the same parameters frozen, on images or on flat `features`.

    Raises:
        ValueError: there are no passes for such models; they cannot be trained side by side.
    """
    still = [name for name, p in net.named_parameters() if not p.requires_grad]
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
    net: nn.Module, weights: dict[str, Tensor], x: Tensor, y: Tensor, heads: Tensor | None, take: Take
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
        take(f"{name}.weight", f"{name}.bias", delta, inputs[i], ALL)
        delta = below
    return losses


def features_passes(
    net: nn.Module, weights: dict[str, Tensor], x: Tensor, y: Tensor, heads: Tensor | None, take: Take
) -> Tensor:
    """`Backward` of LeNets in evaluation mode on the features x (S, b, 3200) of their frozen convolutions."""
    assert isinstance(net, LeNet)
    C = weights["heads.bias"].shape[1] // len(net.heads)
    own = ALL if heads is not None else slice(net.head * C, (net.head + 1) * C)
    scale, shift = (weights[f"wide_norm.{name}"].unsqueeze(1) for name in ("weight", "bias"))
    mean, variance = (weights[f"wide_norm.running_{name}"].unsqueeze(1) for name in ("mean", "var"))
    head, head_bias = (weights[f"heads.{name}"][:, own] for name in ("weight", "bias"))
    inverse = (variance + net.wide_norm.eps).rsqrt_()
    normal = _linear(x, weights["wide.weight"], weights["wide.bias"]).sub_(mean).mul_(inverse)
    a = torch.addcmul(shift, normal, scale).relu_()
    logits = _linear(a, head, head_bias)
    if heads is None:
        losses, delta = _losses_and_delta(logits, y)
    else:
        of_heads = logits.unflatten(-1, (-1, C))
        theirs = heads[..., None, None].expand(*heads.shape, 1, C)
        losses, delta_of_theirs = _losses_and_delta(of_heads.gather(2, theirs).squeeze(2), y)
        delta = torch.zeros_like(of_heads).scatter_(2, theirs, delta_of_theirs.unsqueeze(2)).flatten(2)
    below = torch.bmm(delta, head).mul_(a > 0)
    take("heads.weight", "heads.bias", delta, a, own)
    take("wide.weight", "wide.bias", below * (inverse * scale), x, ALL)
    take(None, "wide_norm.weight", normal.mul_(below), None, ALL)
    take(None, "wide_norm.bias", below, None, ALL)
    return losses


@torch.no_grad()
def step_(
    backward: Backward,
    net: nn.Module,
    weights: dict[str, Tensor],
    x: Tensor,
    y: Tensor,
    lr: float,
    heads: Tensor | None = None,
) -> Tensor:
    """One in-place step of plain SGD on the mean losses of S models; returns the losses (S, b) before it.

    It equals that of torch.optim.SGD, but no gradient is stored: W −= lr δᵀ a is one product.
    """

    def descend(weight: str | None, bias: str, delta: Tensor, a: Tensor | None, rows: slice) -> None:
        if weight is not None and a is not None:
            weights[weight][:, rows].baddbmm_(delta.transpose(1, 2), a, alpha=-lr)
        weights[bias][:, rows].sub_(delta.sum(1), alpha=lr)

    return backward(net, weights, x, y, heads, descend)


@torch.no_grad()
def gradients(
    backward: Backward, net: nn.Module, weights: dict[str, Tensor], x: Tensor, y: Tensor, heads: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The losses (S, b) of S models, and the gradients (S, …) of their means with respect to all trained parameters."""
    found = {}

    def keep(weight: str | None, bias: str, delta: Tensor, a: Tensor | None, rows: slice) -> None:
        if weight is not None and a is not None:
            found[weight] = _among(weights[weight], rows, torch.bmm(delta.transpose(1, 2), a))
        found[bias] = _among(weights[bias], rows, delta.sum(1))

    return backward(net, weights, x, y, heads, keep), found


def _among(whole: Tensor, rows: slice, part: Tensor) -> Tensor:
    """A tensor shaped like `whole` (S, …), with `part` in these rows of each model and zeros elsewhere."""
    if rows == ALL:
        return part
    found = torch.zeros_like(whole)
    found[:, rows] = part
    return found


def _linear(a: Tensor, W: Tensor, bias: Tensor) -> Tensor:
    return torch.baddbmm(bias.unsqueeze(1), a, W.transpose(1, 2))


def _losses_and_delta(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropies (S, b) of logits (S, b, C), and the derivative of their means with respect to the logits."""
    log_p, true = logits.log_softmax(-1), y.unsqueeze(-1)
    losses = -log_p.gather(-1, true).squeeze(-1)
    delta = log_p.exp_().scatter_add_(-1, true, torch.full_like(true, -1, dtype=log_p.dtype)).div_(y.shape[1])
    return losses, delta


@dataclass(eq=False)
class Stack:
    """Every parameter and buffer of S models as one tensor (S, …).

    Args:
        trained: the trained parameters as leaves of autograd, on the same memory as in `weights`.
        weights: all of them, by name.
    """

    trained: dict[str, Tensor]
    weights: dict[str, Tensor]

    def lend_gradients(self, s: int, model: nn.Module) -> None:
        """Set the gradients of model s to views into the stacked ones, so that it can change them in place."""
        for name, members in _joined(model).items():
            if name in self.trained:
                gradient = self.trained[name].grad
                assert gradient is not None
                for member, piece in zip(members, _pieces(gradient[s], members), strict=True):
                    member.grad = piece


def stacked(nets: Sequence[nn.Module]) -> Stack:
    """Stack the weights of equal models, whose own tensors become views into the stack."""
    trained, weights = {}, {}
    tensors = [_joined(net) for net in nets]
    for name, members in tensors[0].items():
        whole = torch.stack([_whole(of[name]) for of in tensors])
        for s, of in enumerate(tensors):
            for member, piece in zip(of[name], _pieces(whole[s], members), strict=True):
                member.data = piece
        weights[name] = whole
        if all(isinstance(member, nn.Parameter) and member.requires_grad for member in members):
            trained[name] = whole.detach().requires_grad_()
    return Stack(trained, weights)


def _joined(net: nn.Module) -> dict[str, list[Tensor]]:
    """Parameters and buffers by their names in a stack; those of all heads share one name."""
    found: dict[str, list[Tensor]] = {}
    for name, tensor in itertools.chain(net.named_parameters(), net.named_buffers()):
        found.setdefault(re.sub(r"^heads\.\d+\.", "heads.", name), []).append(tensor)
    return found


def _whole(members: Sequence[Tensor]) -> Tensor:
    return members[0].detach() if len(members) == 1 else torch.cat([member.detach() for member in members])


def _pieces(whole: Tensor, members: Sequence[Tensor]) -> Sequence[Tensor]:
    """The parts of `whole`, a concatenation of `members`, that belong to each of them."""
    return [whole] if len(members) == 1 else whole.split([len(member) for member in members])


def stacked_optimizer(leaves: list[Tensor], config: RunConfig) -> torch.optim.Optimizer:
    """The config's optimizer on the stacked weights; all of `OPTIMIZERS` work element by element."""
    optimizer = OPTIMIZERS[config.training.optimizer](leaves, lr=config.training.lr)
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = leaves[0].is_cuda
    return optimizer
