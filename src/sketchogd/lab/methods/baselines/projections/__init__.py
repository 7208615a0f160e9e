"""Other people's projections of gradients, layer by layer or, in ORFit, of all parameters.

* `projection`: what the layerwise ones share: steps are projected from the second task on, the rest is frozen
* `gpm`, `sgp`: bases of the inputs of each layer, hard and scaled by importance
* `owm`: a recursive projector on what the mean inputs leave free
* `orfit`: one pass, every example fitted in a direction orthogonal to earlier gradients
"""

from sketchogd.lab.methods.baselines.projections.gpm import GPM
from sketchogd.lab.methods.baselines.projections.orfit import ORFit
from sketchogd.lab.methods.baselines.projections.owm import OWM
from sketchogd.lab.methods.baselines.projections.sgp import SGP

__all__ = ["GPM", "OWM", "SGP", "ORFit"]
