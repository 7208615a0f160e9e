"""What training applies to an update: Δw ← Δw − A Δw.

* `span`: a parameter by its coordinates in some directions
* `base`: the interface, and where an update is counted from
* `basis`: projectors on the basis of a sketch of gradients
* `kronecker`: projectors of one layer, or of alike ones at once
* `layer_parts`: where layers are among the parameters, also where these are split over processes
* `modules`: what belongs to no layer, module by module
* `layers`: all layers of a layer memory
* `rules`: `Project`, `Shrink` and `Pull`, which turn what is remembered into one of these
"""

from .base import Anchor, Projector
from .basis import BasisProjector, BlocksProjector, PullingBasis
from .kronecker import LayerProjector, LayerSpectra, PullingLayer, ShrinkingLayer
from .layer_parts import LayerPlace
from .layers import LayersProjector
from .modules import ModulesProjector
from .rules import BasisSpectra, Project, Pull, Rule, Shrink

__all__ = [
    "Anchor",
    "BasisProjector",
    "BasisSpectra",
    "BlocksProjector",
    "LayerPlace",
    "LayerProjector",
    "LayerSpectra",
    "LayersProjector",
    "ModulesProjector",
    "Project",
    "Projector",
    "Pull",
    "PullingBasis",
    "PullingLayer",
    "Rule",
    "Shrink",
    "ShrinkingLayer",
]
