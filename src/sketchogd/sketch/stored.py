"""What the stored state of a sketch must look like; checked before a sketch is allocated for it.

Letters: d row length, r rank of a stored basis.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import schema
from ..linalg.dense import combination, squared_norm
from .columns import Columns

RANK = schema.whole(1)
SEED = schema.whole(-(1 << 63), 1 << 64)
EXPONENT = schema.maybe(schema.whole(-511, 511))
"""Of scaled sums: 4 to this power is a number."""

NOT_ORTHONORMAL = 0.01
"""By what share a combination of stored basis rows may be longer or shorter than its coefficients."""

PROBES = 4

NOT_NEGATIVE = ("values", "keys", "counts")
"""Names of tensors without negative numbers: eigenvalues, random keys, token counts."""

MANY = 1 << 62
"""More rows than there can be."""

_TEST_MATRICES = {
    "sparse": schema.record({"kind": schema.text, "zeta": schema.whole(1, 1024)}, {"apart": schema.flag}),
    "gaussian": schema.record({"kind": schema.text, "stored": schema.flag}),
}


def matrix_settings(value: Any, where: str) -> None:
    """Settings of a test matrix."""
    schema.record({"kind": schema.word(*_TEST_MATRICES)}, more=True)(value, where)
    _TEST_MATRICES[value["kind"]](value, where)


@dataclass(frozen=True)
class Part:
    """A tensor of a state: its shape, in which a range stands for any size in it, and its dtype."""

    shape: tuple[int | range, ...]
    dtype: torch.dtype

    def fits(self, t: Tensor) -> bool:
        """Whether a tensor is like this."""
        sizes = zip(t.shape, self.shape, strict=False)
        return (
            t.dtype == self.dtype
            and t.ndim == len(self.shape)
            and all(n in size if isinstance(size, range) else n == size for n, size in sizes)
        )

    def __str__(self) -> str:
        sizes = [f"{n.start} to {n.stop - 1}" if isinstance(n, range) else str(n) for n in self.shape]
        return f"({', '.join(sizes)}) of {str(self.dtype).removeprefix('torch.')}"


def up_to(n: int) -> range:
    """Any size from 0 to n."""
    return range(n + 1)


def size_of(tensors: Mapping[str, Tensor], name: str, dim: int) -> int:
    """The size of a tensor that may be missing or have fewer dimensions; 0 then."""
    t = tensors.get(name)
    return t.shape[dim] if t is not None and t.ndim > dim else 0


def require_parts(parts: Mapping[str, Part], tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless the tensors are these, by name, shape and dtype."""
    missing = [name for name in parts if name not in tensors]
    extra = [name for name in tensors if name not in parts]
    if missing or extra:
        what = f"lacks the tensor {missing[0]!r}" if missing else f"has a tensor {extra[0]!r} that it should not have"
        raise ValueError(f"the state {what}")
    for name, part in parts.items():
        t = tensors[name]
        if not part.fits(t):
            dtype = str(t.dtype).removeprefix("torch.")
            raise ValueError(f"the state's {name} has shape {tuple(t.shape)} of {dtype}, expected {part}")


def require_numbers(tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless all numbers are finite, and those not negative that never are."""
    for name, t in tensors.items():
        if not bool(t.isfinite().all()):
            raise ValueError(f"tensor {name!r} of the state contains NaN or infinity")
        if name.rpartition(".")[2] in NOT_NEGATIVE and bool((t < 0).any()):
            raise ValueError(f"tensor {name!r} of the state contains negative numbers")


def require_orthonormal(B: Tensor, columns: Columns) -> None:
    """Raise ValueError unless the rows (r, d) of a stored basis are orthonormal, by ‖cᵀ B‖ = ‖c‖ for random c."""
    if not len(B):
        return
    generator = torch.Generator().manual_seed(len(B))
    v = torch.empty(B.shape[1], dtype=B.dtype, device=B.device)
    for _ in range(PROBES):
        c = torch.randn(len(B), generator=generator, dtype=torch.float64)
        combination(B, c.to(v), out=v)
        size = columns.total(torch.tensor(squared_norm(v[None]), dtype=torch.float64, device=B.device))
        if not abs(float(size) / float(c @ c) - 1) < NOT_ORTHONORMAL:
            raise ValueError("the stored basis is not orthonormal, so that it would not protect what was remembered")
