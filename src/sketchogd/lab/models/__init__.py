"""Networks of the benchmarks. Weights come from a seed or a file; the global random state is left as it was.

* `paper`: the paper's MLP and LeNet
* `heads`: a body with an output head per task, or one for all
* `gpm`: the three networks that GPM's authors train
* `resnet`, `vit`: ResNet-18 and a small vision transformer for 32 × 32 images
* `sentences`: a pretrained MiniLM, whole or with LoRA
* `efficientnet`: EfficientNet-lite0
"""

from sketchogd.lab.models.heads import MultiHead
from sketchogd.lab.models.paper import LeNet, lenet_for, mlp, mlp_for, seeded

__all__ = ["LeNet", "MultiHead", "lenet_for", "mlp", "mlp_for", "seeded"]
