"""Other people's methods, each as in its own paper: A-GEM, EWC, SI and experience replay.

They project nothing, so they are learners, not memories; their hooks run around the steps of training:

for task in tasks:
    for inputs, targets in task.batches:
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        learner.before_step(inputs, targets)
        optimizer.step()
        learner.after_step()
    learner.end_task(task.inputs, task.targets)

* `examples`: a bounded store of raw examples
* `agem`, `ewc`, `si`, `replay`: one learner each
* `builders`: how they are built from settings
"""

from sketchogd.lab.methods.baselines.agem import AGEM
from sketchogd.lab.methods.baselines.ewc import EWC
from sketchogd.lab.methods.baselines.replay import Replay
from sketchogd.lab.methods.baselines.si import SI
from sketchogd.lab.methods.learner import Learner, Loss

Baseline = Learner
"""The former name of `Learner`, for methods written with it."""

__all__ = ["AGEM", "EWC", "SI", "Baseline", "Learner", "Loss", "Replay"]
