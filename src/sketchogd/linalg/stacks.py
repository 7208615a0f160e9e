"""Many tensors of one shape computed with at once, where a kernel for each would cost more than what it computes."""

from collections.abc import Hashable, Iterator, Sequence

import torch
from torch import Tensor

STACK_BYTES = 32 << 20
"""About the bytes of a stack on a GPU; beyond, kernels are large enough by themselves."""

CPU_STACK_BYTES = 1 << 20
"""On a CPU, where stacks are to stay in its cache."""


def alike(keys: Sequence[Hashable], nbytes: Sequence[int], device: torch.device) -> Iterator[list[int]]:
    """Yield lists of the places of equal keys, each of about as many bytes as a stack may have, or a single one.

    >>> list(alike(["a", "b", "a"], [1, 1, 1], torch.device("cpu")))
    [[0, 2], [1]]
    """
    found: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        found.setdefault(key, []).append(i)
    for places in found.values():
        for some in portions([nbytes[i] for i in places], device):
            yield [places[i] for i in some]


def portions(nbytes: Sequence[int], device: torch.device) -> Iterator[list[int]]:
    """Yield consecutive places in lists, each of about as many bytes as a stack may have, or a single one.

    >>> list(portions([4, CPU_STACK_BYTES - 4, 1], torch.device("cpu")))
    [[0, 1], [2]]
    """
    most, total = CPU_STACK_BYTES if device.type == "cpu" else STACK_BYTES, 0
    found: list[int] = []
    for i, size in enumerate(nbytes):
        if found and total + size > most:
            yield found
            found, total = [], 0
        found.append(i)
        total += size
    if found:
        yield found


def stacked(pieces: Sequence[Tensor]) -> Tensor:
    """Tensors of one number of dimensions as one (L, …), with zeros where one is shorter than another.

    A single one is not copied.

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


def converted(tensors: Sequence[Tensor], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Tensors as others of this dtype on this device; those that are so already are not copied."""
    same = [t.dtype == dtype and t.device == device for t in tensors]
    found = [
        t if is_same else torch.empty_like(t, dtype=dtype, device=device)
        for t, is_same in zip(tensors, same, strict=True)
    ]
    changed = [(new, old) for new, old, is_same in zip(found, tensors, same, strict=True) if not is_same]
    if changed:
        torch._foreach_copy_([new for new, _ in changed], [old for _, old in changed])
    return found
