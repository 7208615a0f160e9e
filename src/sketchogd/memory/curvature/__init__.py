"""What a layer memory keeps of a layer's block of Σ vec(G) vec(G)ᵀ, and what a batch adds to it.

* `factors`: the two factors of a layer
* `positions`: what a batch adds to their sketches, for single positions
* `traces`: the same for gradients summed over the positions of an example
* `energies`: the same of single examples, and sensitivities scaled for each
* `kinds`: which of the two is kept, and the eigenpairs that projectors are made of
* `spread`: the unit in which changes of outputs are measured
"""

from .factors import LayerFactors
from .kinds import CURVATURES, RELATIVE_STRENGTH, Curvature, PartialTraces, SinglePositions

__all__ = ["CURVATURES", "RELATIVE_STRENGTH", "Curvature", "LayerFactors", "PartialTraces", "SinglePositions"]
