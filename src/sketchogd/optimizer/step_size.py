"""How far a step of an optimizer moves the weights for a gradient of one."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..model.parameters import ProtectedParameters


def step_size(optimizer: Optimizer, parameters: ProtectedParameters) -> float:
    """The learning rate, over 1 − momentum where there is momentum.

    For Adam and its kin the steps of all entries differ: this is Σ u² / Σ u g over the entries, where u = lr g / √v is
    a step and g² about v, so lr over the mean of √v.
    """
    settings = _settings(optimizer, parameters)
    rate = float(settings["lr"])
    moments = [optimizer.state.get(t, {}).get("exp_avg_sq") for t in parameters.tensors]
    seen = [m for m in moments if isinstance(m, Tensor)]
    if seen:
        correction = 1 - settings["betas"][1] ** float(optimizer.state[parameters.tensors[0]].get("step", 1))
        mean = sum(float(m.sqrt().sum()) for m in seen) / sum(m.numel() for m in seen)
        return rate / (mean / max(correction, 1e-8) ** 0.5 + float(settings["eps"]))
    return rate / max(1e-3, 1 - float(settings.get("momentum", 0.0)))


def learning_rate(optimizer: Optimizer, parameters: ProtectedParameters) -> float:
    """The learning rate of the first protected parameter."""
    return float(_settings(optimizer, parameters)["lr"])


def projects_gradients(optimizer: Optimizer, parameters: ProtectedParameters) -> bool:
    """Whether projecting gradients moves the weights exactly as projecting updates would.

    Plain SGD only: no momentum, no weight decay, one learning rate for all protected parameters, dense gradients.
    """
    if type(optimizer) is not torch.optim.SGD:
        return False
    held = {id(t) for t in parameters.tensors}
    groups = [g for g in optimizer.param_groups if any(id(p) in held for p in g["params"])]
    plain = all(g["momentum"] == 0 and g["weight_decay"] == 0 for g in groups)
    same = len({float(g["lr"]) for g in groups}) == 1
    return plain and same and all(t.grad is None or not t.grad.is_sparse for t in parameters.tensors)


def _settings(optimizer: Optimizer, parameters: ProtectedParameters) -> dict[str, Any]:
    """The optimizer's settings for the first protected parameter."""
    first = parameters.tensors[0]
    return next(g for g in optimizer.param_groups if any(p is first for p in g["params"]))
