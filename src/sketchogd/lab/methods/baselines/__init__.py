"""Other people's methods, each as in its own paper. They are learners, not memories; their hooks run around steps:

for task in tasks:
    for inputs, targets in task.batches:
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        learner.before_step(inputs, targets)
        optimizer.step()
        learner.after_step()
    learner.end_task(task.inputs, task.targets)

* `examples`: a bounded store of raw examples
* `agem`, `replay`, `der`: learners that keep examples
* `l2`, `ewc`, `si`, `laplace`: penalties on moving from old weights
* `lwf`, `averaging`: old answers, and means of weights
* `layers`: linear and convolution layers as matrices
* `projections/`: GPM, SGP, OWM and ORFit
* `builders`: how they are built from settings
"""

from sketchogd.lab.methods.baselines.agem import AGEM
from sketchogd.lab.methods.baselines.averaging import Averaging
from sketchogd.lab.methods.baselines.der import DER
from sketchogd.lab.methods.baselines.ewc import EWC
from sketchogd.lab.methods.baselines.l2 import L2
from sketchogd.lab.methods.baselines.laplace import Laplace
from sketchogd.lab.methods.baselines.lwf import LwF
from sketchogd.lab.methods.baselines.projections import GPM, OWM, SGP, ORFit
from sketchogd.lab.methods.baselines.replay import Replay
from sketchogd.lab.methods.baselines.si import SI
from sketchogd.lab.methods.learner import Learner, Loss

Baseline = Learner
"""The former name of `Learner`, for methods written with it."""

__all__ = [
    "AGEM",
    "DER",
    "EWC",
    "GPM",
    "L2",
    "OWM",
    "SGP",
    "SI",
    "Averaging",
    "Baseline",
    "Laplace",
    "Learner",
    "Loss",
    "LwF",
    "ORFit",
    "Replay",
]
