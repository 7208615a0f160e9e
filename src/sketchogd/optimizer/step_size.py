"""How far a step of an optimizer moves the weights for a gradient of one."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..linalg.stacks import alike
from ..model.parameters import ProtectedParameters, local
from .finite import numbers_in

UNKNOWN_RATE = 1e-3
"""The step size where an optimizer has no learning rate."""


def step_size(optimizer: Optimizer, parameters: ProtectedParameters) -> float:
    """The learning rate, over 1 − momentum and times 1 − dampening where there are such.

    For Adam and its kin the steps of all entries differ: this is Σ u² / Σ u g over the entries, where u = lr g / √v is
    a step and g² about v, so lr over the mean of √v. Entries that never had a gradient, as of tokens that do not occur,
    take no steps and do not count.
    """
    groups = _groups(optimizer, parameters)
    rates = [float(g["lr"]) for g in groups if g.get("lr") is not None]
    rate = max(rates, default=UNKNOWN_RATE) or UNKNOWN_RATE  # all zero: nothing moves, and no size is wrong
    settings = groups[0]
    seen = [m for t in parameters.tensors if isinstance(m := optimizer.state.get(t, {}).get("exp_avg_sq"), Tensor)]
    if seen and "betas" in settings:
        first = next(t for t in parameters.tensors if "exp_avg_sq" in optimizer.state.get(t, {}))
        roots, count, steps = numbers_in([*_sums(seen, parameters), optimizer.state[first].get("step", 1)])
        correction = 1 - settings["betas"][1] ** steps
        return rate / (roots / max(1.0, count) / max(correction, 1e-8) ** 0.5 + float(settings["eps"]))
    taken = 1 - float(settings.get("dampening", 0.0))
    return rate * taken / max(1e-3, 1 - float(settings.get("momentum", 0.0)))


def _sums(squares: Sequence[Tensor], parameters: ProtectedParameters) -> tuple[Tensor, Tensor]:
    """Σ √v over the entries of some tensors, in all processes, and how many are positive."""
    device = squares[0].device
    squares = [local(v) for v in squares]
    roots, counts = [], []
    for places in alike([(v.dtype, v.device) for v in squares], [v.nbytes for v in squares], device):
        v = torch.cat([squares[i].flatten() for i in places]) if len(places) > 1 else squares[places[0]]
        wide = torch.promote_types(v.dtype, torch.float32)
        roots.append(v.sqrt().sum(dtype=wide).to(device))
        counts.append((v > 0).sum().to(device))
    total, count = torch.stack(roots).sum(), torch.stack(counts).sum()
    if not parameters.split:
        return total, count
    both = parameters.columns.vector_total(torch.stack([total.double(), count.double()]))
    return both[0], both[1]


def learning_rate(optimizer: Optimizer, parameters: ProtectedParameters) -> float:
    """The learning rate of the first protected parameter."""
    return float(_settings(optimizer, parameters)["lr"])


def projects_gradients(optimizer: Optimizer, parameters: ProtectedParameters) -> bool:
    """Whether projecting gradients moves the weights exactly as projecting updates would.

    Plain SGD only: no momentum, no weight decay, one learning rate for all protected parameters, dense gradients.
    """
    if type(optimizer) is not torch.optim.SGD:
        return False
    groups = _groups(optimizer, parameters)
    plain = all(g["momentum"] == 0 and g["weight_decay"] == 0 for g in groups)
    same = len({float(g["lr"]) for g in groups}) == 1
    return plain and same and all(t.grad is None or not t.grad.is_sparse for t in parameters.tensors)


def pulls_updates(optimizer: Optimizer, parameters: ProtectedParameters) -> bool:
    """Whether the steps of an optimizer are those of SGD with one learning rate, or must be taken as they are.

    Then a pull after the step balances the new loss. Sparse gradients cannot have a dense correction added either.
    """
    if any(t.grad is not None and t.grad.is_sparse for t in parameters.tensors):
        return True
    if type(optimizer) is not torch.optim.SGD:
        return False
    groups = _groups(optimizer, parameters)
    return len({float(g["lr"]) for g in groups}) == 1 and all(g["dampening"] == 0 for g in groups)


def _groups(optimizer: Optimizer, parameters: ProtectedParameters) -> list[dict[str, Any]]:
    """The parameter groups that hold protected parameters."""
    held = {id(t) for t in parameters.tensors}
    return [g for g in optimizer.param_groups if any(id(p) in held for p in g["params"])]


def _settings(optimizer: Optimizer, parameters: ProtectedParameters) -> dict[str, Any]:
    """The optimizer's settings for the first protected parameter."""
    first = parameters.tensors[0]
    return next(g for g in optimizer.param_groups if any(p is first for p in g["params"]))
