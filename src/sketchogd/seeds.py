"""Random numbers determined by a seed alone: the same on every device, in any order, with nothing stored."""

import hashlib
import math

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def derive_seed(*parts: int | str) -> int:
    """Derive a 63-bit seed from integers and strings; different arguments give independent seeds.

    >>> derive_seed(0, "omega") == derive_seed(0, "omega"), derive_seed(0, "omega") == derive_seed(0, "psi")
    (True, False)
    """
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def normal(shape: tuple[int, ...], seed: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Draw standard normal numbers that depend only on the seed, not on the device.

    Args:
        shape: Shape of the result.
        seed: Determines every number.
        dtype: Precision of the result; the numbers are drawn in float32.
        device: Where the result goes; the numbers are drawn on the CPU.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32).to(device=device, dtype=dtype)


def hash32(x: Tensor, seed: int | Tensor) -> Tensor:
    """Hash non-negative int64 numbers to 32 well-mixed bits, returned as int64; the same on every device.

    The seed is one for all numbers, or int64 with one for each.

    Two rounds of xor-shift and odd multiplication. A product may wrap around in 64 bits; the mask keeps its low
    32 bits, which are correct in either case.
    """
    x = (x ^ ((x >> 32) * 0x85EBCA6B) ^ (seed & _MASK)) & _MASK
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = x ^ (x >> shift)
        x = (x * factor) & _MASK
    x = x ^ (x >> 16) ^ ((seed >> 32) & _MASK)
    x = (x * 0x9E3779B1) & _MASK
    return x ^ (x >> 15)


def normal_rows(first: int, rows: int, k: int, seed: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Generate standard normal numbers (rows, k); row i depends only on the seed and on first + i.

    The Box-Muller transform of two hashes of a counter. There is no sequential generator, so that a GPU computes the
    same numbers as a CPU, up to rounding, without a transfer.

    Args:
        first: Index of the first row in the stream.
        rows: Number of rows.
        k: Numbers per row.
        seed: Determines every number.
        dtype: Precision of the result.
        device: Where the numbers are computed.
    """
    half = (k + 1) // 2
    counter = torch.arange(first * half, (first + rows) * half, device=device)
    uniform = [(hash32(counter, derive_seed(seed, word)).double() + 0.5) * 2**-32 for word in ("radius", "angle")]
    radius, angle = (-2 * uniform[0].log()).sqrt(), uniform[1] * (2 * math.pi)
    pair = torch.stack([radius * angle.cos(), radius * angle.sin()]).to(dtype)
    return pair.view(2, rows, half).transpose(0, 1).reshape(rows, 2 * half)[:, :k]
