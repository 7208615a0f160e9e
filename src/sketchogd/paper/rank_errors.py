"""What sketches of rising rank leave out of the gradients of a run, beside every bound: data of one figure.

Letters: G (n, d) the gradients as rows, G = C B with orthonormal rows B (r, d) and coordinates C (n, r). Gaussian test
matrices look the same in every orthonormal basis (B Ω is as Gaussian as Ω), so a sketch of the short rows C has errors
of the same law as one of G, and 4,800 gradients of any length take seconds.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from sketchogd import AllRows, Gaussian, GradientSketch, ProductSketch, theory

RANKS = (50, 79, 124, 195, 307, 484, 762, 1200)
"""k, evenly spaced in logarithms; those below the number of directions of the gradients are taken."""

KEYS = (
    "k",
    "error_gradient",
    "error_product",
    "bound_gradient",
    "bound_product_tight",
    "bound_product_printed",
    "optimum",
)


def errors_over_rank(sketch: AllRows, ranks: tuple[int, ...] = RANKS, seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays by the names in `KEYS`, one entry for each rank below r; all but k are shares of ‖G‖².

    error_gradient, error_product: measured, one draw each, of `GradientSketch` and of `ProductSketch` with a Gaussian
    test matrix. bound_gradient: Theorem 1; bound_product_tight, bound_product_printed: Theorem 3 with either factor;
    optimum: the singular vectors themselves. Empty where no rank is below r.
    """
    values, _ = sketch.spectrum()
    assert sketch.factor is not None or not len(values)
    ranks = tuple(k for k in ranks if k < len(values))
    if not ranks or sketch.factor is None:
        return {}
    C, squares = sketch.factor, values.cpu().clamp_min(0)
    s, energy = squares.sqrt(), float(squares.sum())
    tails = squares.flip(0).cumsum(0).flip(0)
    found: dict[str, list[float]] = {key: [] for key in KEYS}
    for k in ranks:
        found["k"].append(k)
        found["error_gradient"].append(_error(GradientSketch(k, seed=seed), C))
        found["error_product"].append(_error(ProductSketch(k, seed=seed, test_matrix=Gaussian()), C))
        found["bound_gradient"].append(theory.bound_gradient_sketch(s, k).value / energy)
        found["bound_product_tight"].append(theory.bound_product_sketch(s, k).value / energy)
        found["bound_product_printed"].append(theory.bound_product_sketch(s, k, tight=False).value / energy)
        found["optimum"].append(float(tails[k]) / energy)
    return {key: np.array(column) for key, column in found.items()}


def mean_of(spectra: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray] | None:
    """Means over those that hold all of these arrays, for the ranks of the first; None where none does."""
    found: list[dict[str, np.ndarray]] = []
    for each in spectra:
        if not all(key in each for key in KEYS):
            continue
        arrays = {key: np.asarray(each[key], dtype=float) for key in KEYS}
        first = found[0]["k"] if found else arrays["k"]
        sound = all(a.shape == (first.size,) and np.isfinite(a).all() for a in arrays.values())
        if sound and first.size and (arrays["k"] == first).all():
            found.append(arrays)
    return {key: np.mean([each[key] for each in found], axis=0) for key in KEYS} if found else None


def _error(sketch: GradientSketch | ProductSketch, C: Tensor) -> float:
    sketch.bind(C.shape[1], C.dtype, C.device)
    with torch.no_grad():
        sketch.observe(C)
    return float(theory.reconstruction_error(C, sketch.basis(), relative=True))
