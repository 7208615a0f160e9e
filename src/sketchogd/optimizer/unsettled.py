"""Warn where weights are used while steps wait for their projection: such weights are not yet protected.

Hooks come onto the model with the first step that waits, so they cost nothing where every step is projected at once.
"""

import warnings
import weakref
from typing import Any

import torch
from torch import nn

from ..errors import ProtectionWarning


class UnsettledHooks:
    """Hooks on a model's forward pass and state_dict, which warn once.

    Args:
        model: whose weights wait.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._hook = _Hook(self)
        self._handles: list[Any] = []
        self._warned = False
        self.waiting = False
        self.trains = True

    def arm(self) -> None:
        """Watch the model, after every step that waits; the mode it has then is the one it trains in."""
        self.trains, self.waiting = self._model.training, True
        if not self._handles and not self._warned:
            self._handles = [
                self._model.register_forward_pre_hook(self._hook.forward),
                self._model.register_state_dict_pre_hook(self._hook.state_dict),
            ]

    def disarm(self) -> None:
        """Nothing waits any more."""
        self.waiting = False

    def remove(self) -> None:
        """Leave no trace on the model."""
        self.disarm()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def warn(self, what: str) -> None:
        """Warn, the first time."""
        if self._warned or not self.waiting:
            return
        self._warned = True
        warnings.warn(
            f"the model {what} while optimizer steps wait for their projection (every > 1), so these weights are NOT "
            "YET PROTECTED. Use them in `with protection.settled():`, or call protection.settle() first; `with "
            "protection.preview():` shows what settling would leave without changing anything",
            ProtectionWarning,
            stacklevel=4,
        )


class _Hook:
    """What stands in a model. A copy of the model, made by pickle or deepcopy, has an inert one."""

    def __init__(self, owner: UnsettledHooks | None) -> None:
        self._owner = None if owner is None else weakref.ref(owner)

    def _living(self) -> UnsettledHooks | None:
        return None if self._owner is None else self._owner()

    def _warn(self, what: str) -> None:
        owner = self._living()
        if owner is not None:
            owner.warn(what)

    def forward(self, module: nn.Module, args: Any) -> None:
        if (module.training and torch.is_grad_enabled()) or torch.compiler.is_compiling():
            return
        owner = self._living()
        if owner is not None and (owner.trains or not torch.is_grad_enabled()):
            owner.warn("is evaluated")

    def state_dict(self, module: nn.Module, prefix: str, keep_vars: bool) -> None:
        self._warn("gives its state_dict")

    def __reduce__(self) -> Any:
        self._warn("is copied or pickled")
        return _Hook, (None,)
