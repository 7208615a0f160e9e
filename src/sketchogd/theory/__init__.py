"""The analysis as functions: the error of a sketch, bounds on it, limits of training, and advice drawn from them.

* `metric`: how well a basis represents given gradients
* `bounds`: what a sketch of rank k leaves out, from singular values alone
* `advice`: which sketch to choose for a given memory
* `ntk`: where projected training of a linearised model ends, and how much it forgets
* `layers`: the same questions for layer memories

Letters: G (n, d) has one gradient per row, a basis B (r, d) has orthonormal rows, and σ_1 >= σ_2 >= … are the singular
values of G. docs/theory.md lists what holds and how each statement is tested.
"""

from .advice import Candidate, Recommendation, completed_spectrum, recommend, typical_spectrum
from .bounds import (
    Bound,
    bound_gradient_sketch,
    bound_nystrom,
    bound_product_sketch,
    bound_product_sketch_given,
    expected_gradient_sketch,
    expected_product_sketch,
    nystrom_error,
)
from .layers import (
    KroneckerDistance,
    kronecker_distance,
    layer_change_bound,
    layer_residuals,
    soft_layer_objective,
    soft_layer_update,
)
from .metric import captured_energy, principal_angles, reconstruction_error, singular_values, stable_rank
from .ntk import Linearised, forgetting, forgetting_bound, linearise, ntk_limit, ntk_path, step_size_limit

__all__ = [
    "Bound",
    "Candidate",
    "KroneckerDistance",
    "Linearised",
    "Recommendation",
    "bound_gradient_sketch",
    "bound_nystrom",
    "bound_product_sketch",
    "bound_product_sketch_given",
    "captured_energy",
    "completed_spectrum",
    "expected_gradient_sketch",
    "expected_product_sketch",
    "forgetting",
    "forgetting_bound",
    "kronecker_distance",
    "layer_change_bound",
    "layer_residuals",
    "linearise",
    "ntk_limit",
    "ntk_path",
    "nystrom_error",
    "principal_angles",
    "recommend",
    "reconstruction_error",
    "singular_values",
    "soft_layer_objective",
    "soft_layer_update",
    "stable_rank",
    "step_size_limit",
    "typical_spectrum",
]
