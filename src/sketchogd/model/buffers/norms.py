"""Running statistics of norm layers: held after the first task, so that old outputs do not move with new data.

In evaluation a norm layer computes γ (x − μ)/σ + β with running statistics μ, σ, which are no parameters: they follow
the inputs of the present task, and old outputs change with them whatever the weights do. Held, μ and σ stay what they
were when the first task was remembered, in training too, so that a new task is learned with the statistics that it is
tested with. The hand-over is gradual: μ_B, σ_B being the batch's own and λ going from 0 to 1,

    y = γ ((x − μ_B)/σ_B · (σ_B/σ)^λ + λ (μ_B − μ)/σ) + β,

batch norm at 0, the held statistics at 1. The gradient passes through the first μ_B and σ_B, as in batch norm, in a
share that goes from 1 to κ: at κ = 0 nothing normalises any more, and learning rates that batch norm allows diverge.
λ = κ = 1 is the correction of batch renormalisation (Ioffe 2017), there with limits and statistics that move.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _NormBase

_SPATIAL = {nn.InstanceNorm1d: 1, nn.InstanceNorm2d: 2, nn.InstanceNorm3d: 3}


@dataclass(frozen=True)
class HoldStatistics:
    """Hold running statistics from the end of the first task on; `buffers=None` lets them follow new tasks.

    Args:
        handover: over how many optimizer steps of a new task training goes from the batch's statistics to those held,
            as a share of the steps of the task before. 0 holds at once, which can make training diverge where the
            inputs of the tasks differ much.
        batch_gradient: κ, the share of the gradient through the batch's own statistics that stays after the hand-over.
            0 is the plain gradient, which is cheaper to compute and asks for smaller learning rates; 1 is that of batch
            norm, which sees neither the mean nor the scale of a layer's inputs. Above 0 training keeps one more tensor
            of the size of a layer's input.
    """

    handover: float = 0.5
    batch_gradient: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.handover < float("inf"):
            raise ValueError(f"handover is a share of the steps of a task, 0 or more; got {self.handover!r}")
        if not 0 <= self.batch_gradient <= 1:
            raise ValueError(f"batch_gradient is a share from 0 to 1; got {self.batch_gradient!r}")


class NormHooks:
    """The hooks of one norm layer; a copy of them, as in a copied model, does nothing."""

    def __init__(self, batch_gradient: float = 0.0) -> None:
        self.batch_gradient = batch_gradient
        self.held = False
        self.share: Tensor | None = None
        self._switched = False

    def before(self, module: Any, args: Any) -> Any:
        """In training, let the layer use its running statistics, on inputs that `handed_over` gives."""
        if not self.held or not module.training:
            return None
        module.training = False
        self._switched = True
        if not args or (self.share is None and not self.batch_gradient):
            return None  # given by keyword, an input is normalised by what is held at once
        return handed_over(module, args[0], self.share, self.batch_gradient), *args[1:]

    def after(self, module: Any, args: Any, output: Any) -> None:
        """Put the layer's mode back."""
        if self._switched:
            module.training = True
            self._switched = False

    def __deepcopy__(self, memo: Any) -> "NormHooks":
        return NormHooks()

    def __reduce__(self) -> Any:
        return NormHooks, ()


def handed_over(module: Any, x: Tensor, share: Tensor | None, batch_gradient: float) -> Tensor:
    """The x for which a layer in evaluation gives what is in the file's first lines.

    Args:
        module: a norm layer with running statistics.
        x: its input.
        share: λ; None stands for 1, at which the value is exactly x.
        batch_gradient: κ.
    """
    spatial = next((n for kind, n in _SPATIAL.items() if isinstance(module, kind)), None)
    shape, held = x.shape, (module.running_mean, module.running_var)
    if spatial is not None:  # every image has statistics of its own: as so many channels of one example
        images = x.numel() // max(1, module.num_features * math.prod(shape[x.ndim - spatial :]))
        x = x.reshape(1, images * module.num_features, *shape[x.ndim - spatial :])
        held = (held[0].repeat(images), held[1].repeat(images))
    function = _formula if torch.compiler.is_compiling() else _HandOver.apply
    return function(x, share, batch_gradient, *held, module.eps).view(shape)


def _formula(
    x: Tensor, share: Tensor | None, batch_gradient: float, held_mean: Tensor, held_variance: Tensor, eps: float
) -> Tensor:
    """What `_HandOver` computes, for torch.compile, which fuses it."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    variance, mean = torch.var_mean(wide, [i for i in range(x.ndim) if i != 1], correction=0, keepdim=True)
    own = (variance + eps).sqrt()
    through = batch_gradient if share is None else 1 - share * (1 - batch_gradient)
    centred = wide - (through * mean + (1 - through) * mean.detach())
    scale = (own.detach() / own) ** through
    if share is None:
        t = centred * scale
        return x.detach() + (t - t.detach()).to(x.dtype)
    before = _channels(held_mean.to(wide.dtype), x)
    held = _channels((held_variance.to(wide.dtype) + eps).sqrt(), x)
    scale = scale * (held / own.detach()) ** (1 - share)
    return (before + centred * scale + share * (mean.detach() - before)).to(x.dtype)


class _HandOver(torch.autograd.Function):
    """x (b, channels, …) ↦ a (x − μ_B) + μ + λ (μ_B − μ) with a = (σ/σ_B)^(1 − λ) for each channel.

    For a gradient G of the result, the gradient is a (G − τ mean(G) − τ x̂ mean(G ∘ x̂)), x̂ = (x − μ_B)/σ_B, with the
    share τ = 1 − λ (1 − κ) of what batch norm subtracts.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, share: Tensor | None, batch_gradient: float, mean: Tensor, variance: Tensor, eps: float
    ) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        own_variance, own_mean = torch.var_mean(wide, [i for i in range(x.ndim) if i != 1], correction=0)
        inverse = (own_variance + eps).rsqrt()
        ctx.through, ctx.eps = batch_gradient if share is None else 1 - share * (1 - batch_gradient), eps
        if share is None:
            ctx.save_for_backward(x, own_mean, inverse)
            return x.view_as(x)
        a = ((variance.to(wide.dtype) + eps).sqrt() * inverse) ** (1 - share)
        ctx.save_for_backward(x, own_mean, inverse, a)
        offset = torch.lerp(mean.to(wide.dtype), own_mean, share.to(wide.dtype)) - a * own_mean
        return torch.addcmul(_channels(offset, x), wide, _channels(a, x)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
        x, own_mean, inverse, *more = ctx.saved_tensors
        wide, wide_G = (t.to(own_mean.dtype) for t in (x, G))
        batch_norm = torch.ops.aten.native_batch_norm_backward(
            wide_G, wide, 1 / inverse, None, None, own_mean, inverse, True, ctx.eps, [True, False, False]
        )[0]
        found = torch.lerp(wide_G, batch_norm, ctx.through)
        if more:
            found = found * _channels(more[0], x)
        return found.to(G.dtype), None, None, None, None, None


def _channels(t: Tensor, x: Tensor) -> Tensor:
    """A number per channel, to be broadcast to x."""
    return t.view(1, -1, *[1] * (x.ndim - 2))


def has_statistics(module: nn.Module) -> bool:
    """Whether a module is a norm layer with running statistics."""
    return isinstance(module, _NormBase) and module.running_mean is not None and module.running_var is not None


def is_fresh(module: Any) -> bool:
    """Whether statistics are those that a layer begins with: it has seen no data."""
    return bool((module.running_mean == 0).all()) and bool((module.running_var == 1).all())
