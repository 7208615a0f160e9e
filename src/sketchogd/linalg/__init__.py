"""Dense linear algebra on a few long rows, or on many small matrices.

* `dense`: Gram matrices, orthonormalisation, Nyström, and the two products of a projection
* `scaling`: sums of squares by powers of four, so that squares of rows do not overflow
* `stacks`: many tensors of one shape at once
* `dispatch`: chooses the kernel for these two products
* `compiled`: compiled C code, and the user's folder of it
* `cpu`: kernels in C (`rows.c`), compiled on demand
* `gpu`: kernels in Triton
"""

from .dense import (
    BLOCK_BYTES,
    RELATIVE_RANK,
    block_bytes,
    coefficients,
    column_blocks,
    combination,
    gram,
    nystrom,
    orthonormal_coordinates,
    orthonormalise_,
    polish_,
    restore_,
    squared_norm,
    transform_,
    whiten,
)

__all__ = [
    "BLOCK_BYTES",
    "RELATIVE_RANK",
    "block_bytes",
    "coefficients",
    "column_blocks",
    "combination",
    "gram",
    "nystrom",
    "orthonormal_coordinates",
    "orthonormalise_",
    "polish_",
    "restore_",
    "squared_norm",
    "transform_",
    "whiten",
]
