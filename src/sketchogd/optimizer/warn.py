"""Nothing is lost silently: warnings where steps or copies of an optimizer go past the projection of its updates."""

import warnings
import weakref
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..errors import ProtectionWarning
from ..model.parameters import ProtectedParameters


class Protector(Protocol):
    """What protects parameters: the projection of an optimizer's updates."""

    parameters: ProtectedParameters
    newcomers: "Newcomers"

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer whose steps are projected."""


class Newcomers:
    """Parameters that would be chosen by now and are not among the protected ones; `warn` names each of them once.

    Args:
        parameters: the protected ones.
    """

    def __init__(self, parameters: ProtectedParameters) -> None:
        self._parameters = parameters
        self._told: set[str] = set()

    def warn(self) -> None:
        """Look at the model, and warn of those not told of."""
        new = [name for name in self._parameters.newcomers() if name not in self._told]
        if not new:
            return
        self._told.update(new)
        warnings.warn(
            f"{len(new)} parameter(s) were added to the model, or unfrozen, since it was protected, and are NOT "
            f"PROTECTED: {', '.join(new[:5])}{', …' if len(new) > 5 else ''}. Call protection.adopt(model) if the "
            "model grew; or call protection.detach() and protect it again, with a new memory; or leave them out by "
            "parameters=",
            ProtectionWarning,
            stacklevel=5,
        )


_guards: dict[int, "weakref.ReferenceType[Protector]"] = {}
"""What protects a parameter, by the parameter's id."""
_warned: "weakref.WeakSet[Optimizer]" = weakref.WeakSet()
_innocent: "weakref.WeakKeyDictionary[Optimizer, int]" = weakref.WeakKeyDictionary()
"""Optimizers that move nothing that another one is protected for, with the number of parameters they had then."""
_global_handle: Any = None


def protector(parameter: Tensor) -> Protector | None:
    """The living projection that protects this very tensor; an id alone may be that of a tensor long gone."""
    reference = _guards.get(id(parameter))
    projection = None if reference is None else reference()
    return projection if projection is not None and parameter in projection.parameters else None


def guard(projection: Protector, optimizer: Optimizer) -> None:
    """From now on say so when the parameters are moved, or the optimizer copied, past the projection."""
    global _global_handle
    _innocent.clear()
    for key in [key for key, reference in _guards.items() if reference() is None]:
        del _guards[key]
    reference = weakref.ref(projection)
    for t in projection.parameters.tensors:
        _guards[id(t)] = reference
    if _global_handle is None:
        _global_handle = register_optimizer_step_pre_hook(_watch_other_optimizers)
    # Hooks are not part of an optimizer's state, so a copy has none. Instance attributes are not either: the copy is
    # an ordinary optimizer, and whoever makes it is told.
    optimizer.__reduce_ex__ = _CopyWarning(optimizer)  # type: ignore[method-assign]


def unguard(projection: Protector, optimizer: Optimizer) -> None:
    """Undo `guard`."""
    global _global_handle
    for t in projection.parameters.tensors:
        if protector(t) is projection:
            del _guards[id(t)]
    if not _guards and _global_handle is not None:
        _global_handle.remove()
        _global_handle = None
    vars(optimizer).pop("__reduce_ex__", None)


class _CopyWarning:
    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = weakref.ref(optimizer)

    def __call__(self, protocol: Any) -> Any:
        optimizer = self.optimizer()
        warnings.warn(
            "a protected optimizer is being copied or pickled; hooks do not go along, so THE COPY IS NOT PROTECTED. "
            "Use protection.attach(copy) or so.protect(...) on it, or save optimizer.state_dict() instead",
            ProtectionWarning,
            stacklevel=3,
        )
        return object.__reduce_ex__(optimizer, protocol)


def _watch_other_optimizers(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    held = 0
    for group in optimizer.param_groups:  # a loop, since this runs at every step of every optimizer
        held += len(group["params"])
    if _innocent.get(optimizer) == held or optimizer in _warned:
        return
    own = None
    for group in optimizer.param_groups:
        for p in group["params"]:
            projection = protector(p)
            if projection is None:
                continue
            if projection.optimizer is optimizer:
                own = projection
                continue
            _warned.add(optimizer)
            warnings.warn(
                "an optimizer that is not protected is about to move protected parameters; its steps are NOT "
                "projected. Call protection.attach(optimizer) to protect this one, or protection.detach()",
                ProtectionWarning,
                stacklevel=4,
            )
            return
    _innocent[optimizer] = held
    if own is not None:
        own.newcomers.warn()  # at its first step, and when it was given more parameters


def warn_of_broken_step() -> None:
    """Warn of a step that raised an error after its gradients had been projected."""
    warnings.warn(
        "the last step of the optimizer raised an error midway, so that only some weights moved; that part of a step "
        "is NOT PROTECTED. Go back to weights saved before it",
        ProtectionWarning,
        stacklevel=5,
    )


def warn_of_unprotected_steps(steps: int) -> None:
    """Warn of long training with nothing remembered."""
    warnings.warn(
        f"{steps:,} steps were taken and nothing is remembered yet, so nothing is protected. This is right while a "
        "first task is trained; otherwise call protection.remember(task) after a task, or protection.load(file) before",
        ProtectionWarning,
        stacklevel=5,
    )
