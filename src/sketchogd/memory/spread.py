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


def moments_of(outputs: Tensor) -> Tensor:
    """What outputs (b,) or (b, …, C) add."""
    z = outputs.detach().double()
    if z.ndim > 1 and z.shape[-1] > 1:
        z = z - z.mean(-1, keepdim=True)
        return torch.stack([z.new_tensor(float(z.numel())), z.new_zeros(()), z.square().sum()])
    return torch.stack([z.new_tensor(float(z.numel())), z.sum(), z.square().sum()])


def energy(moments: Tensor) -> float:
    """Σ (z − z̄)².

    >>> energy(moments_of(torch.tensor([1.0, 2.0, 3.0]))), energy(moments_of(torch.tensor([[1.0, 2.0], [7.0, 6.0]])))
    (2.0, 1.0)
    """
    n, total, squares = moments.tolist()
    return max(0.0, squares - total * total / n) if n else 0.0
