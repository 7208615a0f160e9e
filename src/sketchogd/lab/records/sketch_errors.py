"""What sketches of rising rank k leave out of the gradients of a run, as its arrays (`Run.spectra`) have it.

All arrays have one entry per rank; all but `k` are shares of the energy ‖G‖² of the gradients G.
"""

from collections.abc import Iterable, Mapping

import numpy as np

KEYS = (
    "k",
    "error_gradient",
    "error_product",
    "bound_gradient",
    "bound_product_tight",
    "bound_product_printed",
    "optimum",
)
"""Names of the arrays: the ranks, two measured errors, three bounds, and the error of the singular vectors."""


def mean_errors(runs: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray] | None:
    """Means over the runs that have all of these arrays, at the ranks of the first one; None if no run has them."""
    found: list[dict[str, np.ndarray]] = []
    for each in runs:
        if not all(key in each for key in KEYS):
            continue
        arrays = {key: np.asarray(each[key], dtype=float) for key in KEYS}
        first = found[0]["k"] if found else arrays["k"]
        sound = all(a.shape == (first.size,) and np.isfinite(a).all() for a in arrays.values())
        if sound and first.size and (arrays["k"] == first).all():
            found.append(arrays)
    return {key: np.mean([each[key] for each in found], axis=0) for key in KEYS} if found else None
