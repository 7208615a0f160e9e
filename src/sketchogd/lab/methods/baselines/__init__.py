"""Other people's methods, each as in its own paper, behind one small interface: A-GEM, EWC, SI, experience replay.

They have no projector of a remembered subspace, so they are not memories; they act around the steps of training.

for task in tasks:
    for inputs, targets in task.batches:
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        baseline.before_step(inputs, targets)
        optimizer.step()
        baseline.after_step()
    baseline.end_task(task.inputs, task.targets)
"""

from sketchogd.lab.methods.baselines.agem import AGEM
from sketchogd.lab.methods.baselines.ewc import EWC
from sketchogd.lab.methods.baselines.replay import Replay
from sketchogd.lab.methods.baselines.si import SI
from sketchogd.lab.methods.learner import Baseline, Loss

__all__ = ["AGEM", "EWC", "SI", "Baseline", "Loss", "Replay"]
