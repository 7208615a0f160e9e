"""How far a step of an optimizer moves the weights for a gradient of one."""

from torch import Tensor
from torch.optim import Optimizer

from ..model.parameters import ProtectedParameters


def step_size(optimizer: Optimizer, parameters: ProtectedParameters) -> float:
    """By how much a step moves the weights for a gradient of one: the learning rate, over 1 − momentum where there is.

    For Adam and its kin the steps of all entries differ: this is Σ u² / Σ u g over the entries, where u = lr g / √v is
    a step and g² about v, so lr over the mean of √v.
    """
    group = next(g for g in optimizer.param_groups if any(p is parameters.tensors[0] for p in g["params"]))
    rate = float(group["lr"])
    moments = [optimizer.state.get(t, {}).get("exp_avg_sq") for t in parameters.tensors]
    seen = [m for m in moments if isinstance(m, Tensor)]
    if seen:
        correction = 1 - group["betas"][1] ** float(optimizer.state[parameters.tensors[0]].get("step", 1))
        mean = sum(float(m.sqrt().sum()) for m in seen) / sum(m.numel() for m in seen)
        return rate / (mean / max(correction, 1e-8) ** 0.5 + float(group["eps"]))
    return rate / max(1e-3, 1 - float(group.get("momentum", 0.0)))
