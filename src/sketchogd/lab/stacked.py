"""Weights side by side: the parameters of S equal models as one tensor (S, …) each, and a step that moves all of them.

Letters: S models, b examples in a batch, C logits.
"""

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from sketchogd.lab.configs import OPTIMIZERS, RunConfig
from sketchogd.lab.models import LeNet

Step = Callable[[nn.Module, dict[str, Tensor], Tensor, Tensor, float], Tensor]
"""A step of plain SGD on S models, step_(net, weights, x, y, lr), in place; returns their losses (S,) before it."""


def batched_logits(net: nn.Module, state: dict[str, Tensor], x: Tensor) -> Tensor:
    """Logits (S, b, C) of S models with the weights `state`, each tensor of it (S, …), for their inputs x (S, b, …)."""
    return vmap(lambda weights, inputs: functional_call(net, weights, (inputs,)))(state, x)


def written_out(net: nn.Module, trained: Collection[str], features: bool) -> Step | None:
    """The step that is written out for models like `net`, whose parameters `trained` move, on images or flat features.

    The same as a backward pass through `batched_logits` and a step of torch.optim.SGD, with half as many kernels, and
    no gradient is ever stored: with δ (S, b, fan-out) for each layer, W −= lr δᵀ a is one product. None if there is no
    such step.
    """
    still = [name for name, _ in net.named_parameters() if name not in trained]
    if is_chain(net) and not still:
        return chain_step_
    on_features = isinstance(net, LeNet) and not net.training and features
    return features_step_ if on_features and all(name.startswith("conv") for name in still) else None


def is_chain(net: nn.Module) -> bool:
    """Whether a model is linear layers with ReLUs between them, on flattened inputs."""
    kinds = [type(module) for module in net] if isinstance(net, nn.Sequential) else []
    linear = [nn.Linear] + [nn.ReLU, nn.Linear] * (len(kinds) // 2 - 1)
    return kinds == [nn.Flatten, *linear]


@torch.no_grad()
def chain_step_(net: nn.Module, weights: dict[str, Tensor], x: Tensor, y: Tensor, lr: float) -> Tensor:
    """A `Step` of chains (see `is_chain`)."""
    layers = [(weights[f"{n}.weight"], weights[f"{n}.bias"]) for n, m in net.named_children() if type(m) is nn.Linear]
    a, inputs = x.flatten(2), []
    for i, (W, bias) in enumerate(layers):
        inputs.append(a)
        a = _linear(a, W, bias)
        a = a.relu_() if i + 1 < len(layers) else a
    losses, delta = _losses_and_delta(a, y)
    for i, (W, bias) in reversed(list(enumerate(layers))):
        below = torch.bmm(delta, W).mul_(inputs[i] > 0) if i else delta
        _descend_(W, bias, delta, inputs[i], lr)
        delta = below
    return losses


@torch.no_grad()
def features_step_(net: nn.Module, weights: dict[str, Tensor], x: Tensor, y: Tensor, lr: float) -> Tensor:
    """A `Step` of LeNets in evaluation mode on the features x (S, b, 3200) of their frozen convolutions."""
    assert isinstance(net, LeNet)
    W, bias, scale, shift = (weights[f"wide{name}"] for name in (".weight", ".bias", "_norm.weight", "_norm.bias"))
    mean, variance = (weights[f"wide_norm.running_{name}"].unsqueeze(1) for name in ("mean", "var"))
    head, head_bias = (weights[f"heads.{net.head}.{name}"] for name in ("weight", "bias"))
    inverse = (variance + net.wide_norm.eps).rsqrt_()
    normal = _linear(x, W, bias).sub_(mean).mul_(inverse)
    a = torch.addcmul(shift.unsqueeze(1), normal, scale.unsqueeze(1)).relu_()
    losses, delta = _losses_and_delta(_linear(a, head, head_bias), y)
    below = torch.bmm(delta, head).mul_(a > 0)
    _descend_(head, head_bias, delta, a, lr)
    _descend_(W, bias, below * (inverse * scale.unsqueeze(1)), x, lr)
    scale.sub_(normal.mul_(below).sum(1), alpha=lr)
    shift.sub_(below.sum(1), alpha=lr)
    return losses


def _linear(a: Tensor, W: Tensor, bias: Tensor) -> Tensor:
    return torch.baddbmm(bias.unsqueeze(1), a, W.transpose(1, 2))


def _losses_and_delta(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The losses (S,) of logits (S, b, C), mean cross entropies, and their derivative by the logits."""
    log_p, true = logits.log_softmax(-1), y.unsqueeze(-1)
    losses = -log_p.gather(-1, true).squeeze(-1).mean(1)
    delta = log_p.exp_().scatter_add_(-1, true, torch.full_like(true, -1, dtype=log_p.dtype)).div_(y.shape[1])
    return losses, delta


def _descend_(W: Tensor, bias: Tensor, delta: Tensor, a: Tensor, lr: float) -> None:
    """Move a linear layer with inputs a (S, b, fan-in) along the derivative by its outputs, delta (S, b, fan-out)."""
    W.baddbmm_(delta.transpose(1, 2), a, alpha=-lr)
    bias.sub_(delta.sum(1), alpha=lr)


@torch.no_grad()
def project_on_half_spaces_(gradients: Sequence[Tensor], which: Tensor, reference: Sequence[Tensor | None]) -> None:
    """`agem.project_on_half_space_` for the models `which` (n,) of S, in place; `reference` has theirs only, (n, …)."""
    pairs = [(g, r) for g, r in zip(gradients, reference, strict=True) if r is not None]
    product = torch.stack([(g.index_select(0, which) * r).flatten(1).sum(1) for g, r in pairs]).sum(0)
    size = torch.stack([r.square().flatten(1).sum(1) for _, r in pairs]).sum(0)
    factor = product.clamp(max=0.0) / size.clamp_min(torch.finfo(size.dtype).tiny)
    for g, r in pairs:
        g.index_add_(0, which, r * -factor.view(-1, *[1] * (r.ndim - 1)))


@dataclass(eq=False)
class Stack:
    """Every parameter and buffer of S models as one tensor (S, …): `trained` are leaves, `fixed` the rest."""

    trained: dict[str, Tensor]
    fixed: dict[str, Tensor]

    def lend_gradients(self, s: int, model: nn.Module) -> None:
        """Give model s views of its own gradients, to be changed in place."""
        named = dict(model.named_parameters())
        for name, leaf in self.trained.items():
            assert leaf.grad is not None
            named[name].grad = leaf.grad[s]


def stacked(nets: Sequence[nn.Module]) -> Stack:
    """Stack the weights of equal models, which then have views into the stack instead of tensors of their own."""
    trained, fixed = {}, {}
    for name, first in itertools.chain(nets[0].named_parameters(), nets[0].named_buffers()):
        whole = torch.stack([_named(net)[name].detach() for net in nets])
        for s, net in enumerate(nets):
            _named(net)[name].data = whole[s]
        if isinstance(first, nn.Parameter) and first.requires_grad:
            trained[name] = whole.requires_grad_()
        else:
            fixed[name] = whole
    return Stack(trained, fixed)


def _named(net: nn.Module) -> dict[str, Tensor]:
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}


def stacked_optimizer(leaves: list[Tensor], config: RunConfig) -> torch.optim.Optimizer:
    """The config's optimizer on the stacked weights: all of them work element by element."""
    optimizer = OPTIMIZERS[config.training.optimizer](leaves, lr=config.training.lr)
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = leaves[0].is_cuda
    return optimizer
