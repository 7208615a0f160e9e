"""`protect`: unwrap the model, choose the parameters and a memory, and attach a `Protection` to the optimizer."""

from typing import TYPE_CHECKING

from torch import nn
from torch.optim import Optimizer

from .budget import memory_for
from .distributed.team import Alone, Team
from .memory import GradientMemory, Memory
from .model.batches import Output
from .model.parameters import ProtectedParameters, Selection
from .model.wrapped import unwrapped_model
from .optimizer.step_size import pulls_updates
from .optimizer.wrapped import unwrapped
from .protection import Protection
from .sketch import Sketch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


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
    inner, group = unwrapped_model(model, group)
    optimizer = unwrapped(optimizer)
    chosen = ProtectedParameters(inner, parameters)
    team = _team(chosen, group, shard)
    reason = None
    if memory is None:
        assert budget is not None
        corrections = every > 1 and not pulls_updates(optimizer, chosen)
        memory, reason = memory_for(budget, chosen, every, seed, corrections, strength)
    elif isinstance(memory, Sketch):
        memory = GradientMemory(memory)
    elif not isinstance(memory, Memory):
        raise TypeError(f"memory is a sketch or a memory such as so.LayerMemory(rank=200); got {memory!r}")
    return Protection(chosen, optimizer, memory, team, output, every, reason)


def _team(parameters: ProtectedParameters, group: "ProcessGroup | None", shard: bool) -> Team:
    """This process alone, or the processes of a group."""
    if group is None and not shard and not parameters.split:
        return Alone()
    from .distributed.processes import Processes  # imports DTensor, which takes a second

    return Processes(parameters, group, shard)
