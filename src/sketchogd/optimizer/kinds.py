"""Whether an object is an optimizer whose steps can be protected."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


def require_optimizer(found: object) -> None:
    """Raise TypeError, with what to give instead, unless `found` is an optimizer that calls torch's hooks at its steps.

    Wrappers (of accelerate, of schedulers) step an optimizer inside them, and have no hooks of their own.
    """
    if isinstance(found, LRScheduler):
        raise TypeError(
            f"expected an optimizer, got the scheduler {type(found).__name__}: protect its optimizer, "
            "scheduler.optimizer, and go on using the scheduler"
        )
    kind = type(found)
    if not isinstance(found, Optimizer):
        inner = next((name for name, value in _attributes(found) if isinstance(value, Optimizer)), None)
        hint = f"the one inside it is .{inner}" if inner else "give the torch.optim.Optimizer that your loop steps"
        raise TypeError(f"expected an optimizer, a torch.optim.Optimizer; got {kind.__name__}: {hint}")
    try:
        found.register_step_pre_hook(_nothing).remove()
    except AttributeError as error:
        inner = next((name for name, value in _attributes(found) if isinstance(value, Optimizer)), "optimizer")
        raise TypeError(
            f"{kind.__module__}.{kind.__name__} wraps an optimizer and does not call the hooks of torch's own: protect "
            f"the optimizer inside it, .{inner}, which is the one that changes the weights"
        ) from error


def _nothing(*_: object) -> None:
    """A hook that does nothing."""


def _attributes(found: object) -> list[tuple[str, object]]:
    return list(getattr(found, "__dict__", {}).items())
