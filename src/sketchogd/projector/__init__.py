"""What training applies to an update: Δw ← Δw − A Δw.

* `base`: the interface
* `basis`: projectors on the basis of a sketch of gradients
* `layers`: projectors of a layer memory
* `rules`: `Project`, `Shrink` and `Pull`, the three ways to choose A from what is remembered
"""

from .base import Projector, soft_share
from .basis import BasisProjector, BlocksProjector
from .layers import LayerProjector, LayersProjector, Pull, energy_threshold, soft_weights

__all__ = [
    "BasisProjector",
    "BlocksProjector",
    "LayerProjector",
    "LayersProjector",
    "Projector",
    "Pull",
    "energy_threshold",
    "soft_share",
    "soft_weights",
]
