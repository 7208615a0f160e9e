"""Many matrices of one shape computed with at once, where a kernel for each would cost more than what it computes."""

from collections.abc import Hashable, Iterator, Sequence

import torch
from torch import Tensor

STACK_BYTES = 64 << 20
"""About the bytes of a stack; beyond, kernels are large enough by themselves."""


def alike(keys: Sequence[Hashable], nbytes: Sequence[int]) -> Iterator[list[int]]:
    """Yield lists of the places of equal keys, each of at most STACK_BYTES in all or a single one.

    >>> list(alike(["a", "b", "a"], [1, 1, 1]))
    [[0, 2], [1]]
    """
    found: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        found.setdefault(key, []).append(i)
    for places in found.values():
        most = max(1, STACK_BYTES // max(1, nbytes[places[0]]))
        for start in range(0, len(places), most):
            yield places[start : start + most]


def stacked(pieces: Sequence[Tensor]) -> Tensor:
    """Tensors of one number of dimensions as one (L, …), with zeros where one is shorter than another.

    >>> stacked([torch.ones(1, 2), torch.ones(2, 1)])
    tensor([[[1., 1.],
             [0., 0.]],
    <BLANKLINE>
            [[1., 0.],
             [1., 0.]]])
    """
    if len(pieces) == 1:
        return pieces[0][None]
    shapes = [piece.shape for piece in pieces]
    if all(shape == shapes[0] for shape in shapes):
        return torch.stack(list(pieces))
    whole = [max(sizes) for sizes in zip(*shapes, strict=True)]
    out = pieces[0].new_zeros(len(pieces), *whole)
    torch._foreach_copy_(unstacked(out, shapes), list(pieces))
    return out


def unstacked(stack: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Views of a stack, without the zeros that `stacked` filled it up with."""
    return [
        each if each.shape == torch.Size(shape) else each[tuple(slice(n) for n in shape)]
        for each, shape in zip(stack.unbind(), shapes, strict=True)
    ]
