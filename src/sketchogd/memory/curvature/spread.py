"""The spread of remembered outputs: the unit in which their changes are measured.

A change of an output by 1 is much where outputs differ by 1 from example to example, and nothing where they differ by
100. Changes are therefore measured against Σ (z − z̄)², over all numbers z that were remembered. Of several logits each
example's mean is taken off, which no softmax sees; of a single output the mean over all examples.
"""

import torch
from torch import Tensor


def empty(device: torch.device) -> Tensor:
    """Nothing yet: how many numbers, their sum and the sum of their squares."""
    return torch.zeros(3, dtype=torch.float64, device=device)


def moments_of(outputs: Tensor, counted: Tensor | None = None) -> Tensor:
    """What outputs (b,), (b, …, C) or (b, C, H, W) add; `counted`, to be broadcast to them, says which count."""
    z = outputs.detach()
    z = z if z.dtype in (torch.float32, torch.float64) else z.float()
    classes = 1 if z.ndim == 4 else z.ndim - 1
    count = None if counted is None else counted.expand_as(z)
    if z.ndim > 1 and z.shape[classes] > 1:
        energies = z.var(classes, correction=0).double() * z.shape[classes]
        kept = torch.ones_like(energies) if count is None else count.select(classes, 0).double()
        return torch.stack([kept.sum() * z.shape[classes], kept.new_zeros(()), (energies * kept).sum()])
    z = z.double()
    kept = torch.ones_like(z) if count is None else count.double()
    return torch.stack([kept.sum(), (z * kept).sum(), (z.square() * kept).sum()])


def scaled(moments: Tensor, factor: float) -> Tensor:
    """The moments of outputs that are multiplied by a number."""
    return moments * moments.new_tensor([1.0, factor, factor * factor])


def energy(moments: Tensor) -> float:
    """Σ (z − z̄)².

    >>> energy(moments_of(torch.tensor([1.0, 2.0, 3.0]))), energy(moments_of(torch.tensor([[1.0, 2.0], [7.0, 6.0]])))
    (2.0, 1.0)
    """
    n, total, squares = moments.tolist()
    return max(0.0, squares - total * total / n) if n else 0.0
