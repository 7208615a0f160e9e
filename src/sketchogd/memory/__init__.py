"""What is remembered of a model, and which sketches hold it.

* `base`: the interface, and the registry that files refer to
* `metadata`: the form of what files say of memories
* `state`: checking and loading the sketches of a state, and describing a sketch in numbers
* `estimates`: second moments that are known only approximately, in place of rows
* `staging`: gradients computed and checked before they are added
* `blocks`, `gradients`: the paper's memory, a sketch of per-example gradients
* `curvature/`: the two factors of a layer, and what a batch adds to them
* `others`, `layout`, `ranks`: the parameters of no layer, which sketches there are, and how a budget divides their rows
* `layers`: the layer memory
"""

from .base import REGISTRY, Memory
from .gradients import GradientMemory
from .layers import LayerMemory, LayerSketch

__all__ = ["REGISTRY", "GradientMemory", "LayerMemory", "LayerSketch", "Memory"]
