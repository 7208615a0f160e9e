"""Random signs of logits: a scalar Σ ± logit_c, whose expected squared gradient is that of all logits together.

E[g gᵀ] = Σ_c g_c g_cᵀ for g = Σ_c ε_c g_c, since E[ε_c ε_c'] = 0 for c ≠ c'. Where an example has one row of few
logits, its combinations are different rows of a Hadamard matrix, with signs of the columns at random; as many
combinations as columns have the second moment of all logits exactly. For sequences, whose logits are many, the signs of
one position are a stretch of a random row, at a random place and with a random sign: any two signs of an example are
still independent in pairs, and no number is drawn for each logit.

Letters: b examples, T positions of one (all axes of its logits but the last), V logits of a position.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..seeds import derive_seed, hash32
from .batches import logits_of

PLACES = 4096
"""Number of places in the random row from which a position takes its signs."""

FEW = 16
"""Up to so many logits an example, signs are drawn for each."""

ORTHOGONAL = 64
"""Up to so many logits in a row, combinations are orthogonal; of more they nearly are."""


def sign_rows(logits: Tensor, count: int, seed: int, counted: Tensor | None = None) -> Iterator[Tensor]:
    """Yield `count` tensors (b, …) of random entries ±1/√count shaped like the logits, the same on every device.

    One tensor of that size is made at a time.

    Args:
        logits: logits (b, C), or of sequences (b, …, V).
        count: number of tensors.
        seed: determines every sign.
        counted: which logits count, booleans that can be broadcast to the logits; others have 0. None counts all.
    """
    few = logits.ndim <= 2 or logits[0].numel() <= FEW
    for row in (_drawn if few else _of_sequences)(logits, count, seed):
        yield row if counted is None else row.mul_(counted)


def _drawn(logits: Tensor, count: int, seed: int) -> Iterator[Tensor]:
    """One after the other; of few logits they are ± t_r h_r(c) s_c with signs t and s of an example's own.

    h_r(c) = (−1)^(bits that r and c have in common), so that rows r are orthogonal over a power of two of columns c.
    """
    generator = torch.Generator().manual_seed(seed)
    b, size = len(logits), max(1, logits[0].numel())
    few = size <= ORTHOGONAL
    if few:
        order = 1 << max(size - 1, count - 1).bit_length()
        rows = torch.randint(0, order, (b, 1), generator=generator)
        columns = torch.randint(0, 2, (b, size), generator=generator)
    for i in range(count):
        bits = torch.randint(0, 2, (b, 1 if few else size), generator=generator, dtype=torch.int8)
        if few:  # rows r = first XOR i are distinct
            bits = (bits + columns + _common_bits(rows ^ i, size)) & 1
        yield (1 - 2 * bits).to(device=logits.device, dtype=logits.dtype).view(logits.shape) * count**-0.5


def _common_bits(rows: Tensor, size: int) -> Tensor:
    """Whether the number of bits that rows (b, 1) and columns 0 … size − 1 have in common is odd."""
    common = rows & torch.arange(size)
    for shift in (8, 4, 2, 1):
        common = common ^ (common >> shift)
    return common & 1


def _of_sequences(logits: Tensor, count: int, seed: int) -> Iterator[Tensor]:
    numbers = torch.arange(len(logits), device=logits.device)
    for i in range(count):
        signs = position_signs(numbers, logits[0], derive_seed(seed, i))
        yield signs.mul_(count**-0.5).view(logits.shape)


def position_signs(numbers: Tensor, logits: Tensor, seed: int) -> Tensor:
    """Return signs ±1 (*numbers.shape, T, V) for examples with the given numbers, from their numbers and the seed.

    Args:
        numbers: numbers of the examples, int64.
        logits: one example's logits (…, V), for their shape, dtype and device.
        seed: determines all signs of an example.
    """
    V = logits.shape[-1]
    T = logits.numel() // V
    row = _sign(hash32(torch.arange(V + PLACES - 1, device=logits.device), derive_seed(seed, "row")), logits.dtype)
    bits = hash32((numbers[..., None] << 32) + torch.arange(T, device=logits.device), seed)
    stretches = row.unfold(0, V, 1)[(bits >> 1) % PLACES]
    return stretches.mul_(_sign(bits, logits.dtype)[..., None])


def _sign(bits: Tensor, dtype: torch.dtype) -> Tensor:
    return (1 - 2 * (bits & 1)).to(dtype)


def signed_sum(output: Any, target: dict[str, Tensor | None]) -> Tensor:
    """Return Σ ± logit_c of one example over the logits that count.

    Args:
        output: what the model returned for it.
        target: its "number", from which the signs follow, and which of its positions are "counted", None for all.
    """
    logits = logits_of(output)
    number, counted = target["number"], target["counted"]
    assert number is not None
    if logits.ndim <= 1:  # a position of a sequence needs not more than its place in a row, a single row has no other
        index = torch.arange(logits.numel(), device=logits.device)
        signs = _sign(hash32((number << 32) + index, derive_seed("signs")), logits.dtype).view(logits.shape)
    else:
        signs = position_signs(number, logits, derive_seed("signs")).view(logits.shape)
    mask = None if counted is None else mask_of(counted[None], logits[None])
    if mask is not None:
        signs = signs * mask[0]
    return (logits * signs).sum()


def mask_of(counted: Tensor | None, logits: Tensor) -> Tensor | None:
    """Return which logits count, broadcast to logits (b, T, V) or (b, C, H, W); None where all do.

    Positions (b, T) say nothing of outputs that have no such positions, as those of a sequence classifier.
    """
    if counted is None or logits.ndim != counted.ndim + 1:
        return None
    last = logits.shape[:-1] == counted.shape
    first = logits.shape[0] == counted.shape[0] and logits.shape[2:] == counted.shape[1:]
    if last and not (first and counted.ndim > 2):
        return counted.unsqueeze(-1)
    return counted.unsqueeze(1) if first else None
