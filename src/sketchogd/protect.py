"""`protect`: unwrap the model, choose the parameters and a memory, and attach a `Protection` to the optimizer."""

import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from .budget import memory_for
from .distributed.team import Alone, Team
from .errors import ProtectionWarning
from .memory import GradientMemory, LayerMemory, Memory
from .model.batches import Output
from .model.buffers import HoldStatistics, kept_nbytes
from .model.parameters import ProtectedParameters, Selection
from .model.wrapped import unwrapped_model
from .optimizer.joint import corrections_kept
from .optimizer.kinds import require_optimizer
from .optimizer.wrapped import unwrapped
from .privacy import Privacy
from .protection import Protection
from .sketch import Sketch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


HOLD = HoldStatistics()


def protect(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    budget: str | int | None = None,
    memory: Memory | Sketch | None = None,
    parameters: Selection = None,
    output: Output | None = None,
    every: int = 1,
    seed: int = 0,
    group: "ProcessGroup | None" = None,
    shard: bool = False,
    strength: float | None = None,
    buffers: HoldStatistics | None = HOLD,
    privacy: Privacy | None = None,
) -> "Protection":
    """Protect what a model has learned: from now on every step of the optimizer spares what was remembered.

    With several processes (docs/distributed.md), each remembers its own examples and all get the same protection.

    Args:
        model: the model; it may be wrapped by DDP, FSDP2 or torch.compile, or prepared by accelerate or Fabric.
        optimizer: any torch optimizer that holds the parameters to protect, or accelerate's or Fabric's around it.
        budget: "2MB", "25%" (of the bytes of the protected parameters), or bytes: the best memory that fits, all bytes
            counted.
        memory: in place of a budget a `LayerMemory`, a `GradientMemory`, or a sketch, which means a gradient memory.
        parameters: what is protected, by default all parameters that require gradients.
        output: the scalar of an example that must not change; by default the true logit for gradient memories and
            every logit for layer memories.
        every: project the joint displacement of so many steps.
        seed: for the memory that a budget picks.
        group: the process group, for models that are neither DDP nor FSDP2.
        shard: split a gradient sketch over the processes, each keeping p / R of its columns; a budget is then that of
            one process.
        strength: with a budget, the weight of what is remembered against the new loss (`Pull`); a memory has its own.
        buffers: running statistics of norm layers are held once the first task is remembered: from then on training
            goes over from the batch's statistics to these. None lets them follow new tasks, as PyTorch does.
        privacy: `so.Privacy(epsilon, delta)` for a memory that is differentially private (docs/privacy.md): noise is
            added once for each call of `remember`. In one process only.

    >>> import torch, sketchogd as so
    >>> model = nn.Linear(4, 2)
    >>> protection = so.protect(model, torch.optim.Adam(model.parameters()), memory=so.ProductSketch(8))
    >>> protection.remember([(torch.randn(16, 4), torch.randint(0, 2, (16,)))])
    >>> protection.memory.examples
    16
    """
    if (budget is None) == (memory is None):
        raise ValueError('give exactly one of budget= (such as "2MB") and memory= (such as so.LayerMemory(rank=200))')
    if strength is not None and memory is not None:
        raise ValueError(
            "strength= goes with budget=; a memory has its own: so.LayerMemory(rank, rule=so.Pull(strength))"
        )
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"every is the number of steps between projections, at least 1; got {every!r}")
    optimizer = unwrapped(optimizer)
    _require_kinds(model, optimizer)
    inner, group = unwrapped_model(model, group)
    chosen = ProtectedParameters(inner, parameters)
    asked = {"budget": budget, "strength": strength, "memory": memory, "every": every, "output": output, "seed": seed}
    team = _team(chosen, group, shard, {**asked, "optimizer": type(optimizer)})
    if privacy is not None and not isinstance(team, Alone):
        raise ValueError(
            "privacy= works in one process: others would sum what has no noise yet. Remember in one process"
        )
    reason = None
    if memory is None:
        assert budget is not None
        corrections = corrections_kept(optimizer, chosen, every)
        memory, reason = memory_for(budget, chosen, every, seed, corrections, strength, kept_nbytes(inner, buffers))
    elif isinstance(memory, Sketch):
        memory = GradientMemory(memory)
    elif not isinstance(memory, Memory):
        raise TypeError(f"memory is a sketch or a memory such as so.LayerMemory(rank=200); got {memory!r}")
    if privacy is not None and isinstance(memory, LayerMemory):
        memory.apart = False  # one sum, to which noise is added once
    return Protection(chosen, optimizer, memory, team, output, every, reason, buffers, privacy)


def _require_kinds(model: object, optimizer: object) -> None:
    """Raise TypeError unless these are a model and an optimizer with torch's hooks, ValueError in inference mode."""
    if torch.is_inference_mode_enabled():
        raise ValueError("call so.protect outside torch.inference_mode(), in which nothing can be trained")
    if not isinstance(model, nn.Module):
        swapped = isinstance(model, Optimizer) and isinstance(optimizer, nn.Module)
        hint = "the model comes first: so.protect(model, optimizer, …)" if swapped else "give the torch.nn.Module"
        raise TypeError(f"expected a model, a torch.nn.Module; got {type(model).__name__}: {hint}")
    require_optimizer(optimizer)


def _team(
    parameters: ProtectedParameters, group: "ProcessGroup | None", shard: bool, settings: Mapping[str, Any]
) -> Team:
    """This process alone, or the processes of a group, which compare these settings."""
    if group is None and not shard and not parameters.split:
        _warn_if_wrapped_elsewhere()
        return Alone()
    from .distributed.processes import Processes  # imports DTensor, which takes a second

    return Processes(parameters, group, shard, settings)


def _warn_if_wrapped_elsewhere() -> None:
    """Warn where several processes run and the model does not tell whether they train it together."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    if distributed.get_world_size() > 1:
        warnings.warn(
            f"{distributed.get_world_size()} processes run, and the model is neither DDP nor FSDP2, so that this "
            "process protects it alone. If they train one model together (if this is the module inside of a wrapped "
            "one, for instance), replicas would drift apart: pass the wrapped model, or "
            "group=torch.distributed.group.WORLD. If each trains a model of its own, filter this warning",
            ProtectionWarning,
            stacklevel=4,
        )
