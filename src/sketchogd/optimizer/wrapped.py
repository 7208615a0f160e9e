"""The torch optimizer inside the wrappers of training frameworks: it is the one whose hooks run at every step."""

from typing import Any

from torch.optim import Optimizer

WRAPPERS = ("accelerate", "lightning", "pytorch_lightning", "lightning_fabric")
"""Packages whose wrappers call the step of the optimizer they hold and move no weights themselves.

Others that hold an optimizer (Lookahead, SAM) move weights beside its steps, and are protected as they are.
"""


def unwrapped(optimizer: Any) -> Optimizer:
    """The optimizer inside accelerate's `AcceleratedOptimizer`, Lightning's and Fabric's; any other one itself."""
    while True:
        packages = {kind.__module__.partition(".")[0] for kind in type(optimizer).__mro__}
        inner = getattr(optimizer, "optimizer", None) if packages.intersection(WRAPPERS) else None
        if not isinstance(inner, Optimizer):
            return optimizer
        optimizer = inner
