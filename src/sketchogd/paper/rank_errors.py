"""What sketches of rising rank leave out of the gradients of a run, measured, beside every bound of the paper.

Letters: G (n, d) the gradients as rows, G = C B with orthonormal rows B (r, d) and coordinates C (n, r). Gaussian test
matrices have the same distribution in every orthonormal basis (B Ω is as Gaussian as Ω), so a sketch of the short rows
C has errors of the same law as one of G, and 4,800 gradients of any length take seconds.
"""

import numpy as np
import torch
from torch import Tensor

from sketchogd import AllRows, Gaussian, GradientSketch, ProductSketch, theory
from sketchogd.lab.records.sketch_errors import KEYS

RANKS = (50, 79, 124, 195, 307, 484, 762, 1200)
"""The values of k, evenly spaced on a logarithmic axis; those below the rank r of the gradients are measured."""


def errors_over_rank(sketch: AllRows, ranks: tuple[int, ...] = RANKS, seed: int = 0) -> dict[str, np.ndarray]:
    """Measure the errors for each rank below r; all arrays but `k` are shares of ‖G‖².

    error_gradient, error_product: measured, one draw each, of `GradientSketch` and of `ProductSketch` with a Gaussian
    test matrix. bound_gradient: Theorem 1; bound_product_tight, bound_product_printed: Theorem 3 with either factor;
    optimum: the singular vectors themselves.

    Returns:
        The arrays by the names in `sketch_errors.KEYS`, one entry per rank; empty if no rank is below r.
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


def _error(sketch: GradientSketch | ProductSketch, C: Tensor) -> float:
    sketch.bind(C.shape[1], C.dtype, C.device)
    with torch.no_grad():
        sketch.observe(C)
    return float(theory.reconstruction_error(C, sketch.basis(), relative=True))
