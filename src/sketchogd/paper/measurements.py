"""What the paper's figures need of a run beside what the lab measures; importing this file registers it."""

import numpy as np

from sketchogd.lab.methods.learner import Learner
from sketchogd.lab.methods.protected import Protected
from sketchogd.lab.runs.measure import register_measurement
from sketchogd.memory import GradientMemory
from sketchogd.paper import rank_errors
from sketchogd.sketch import AllRows


@register_measurement
def errors_of_kept_rows(learner: Learner) -> dict[str, np.ndarray]:
    """`rank_errors.errors_over_rank` of a learner that keeps all rows; empty for other learners."""
    memory = learner.protection.memory if isinstance(learner, Protected) else None
    if not isinstance(memory, GradientMemory) or memory.blocks > 1 or not isinstance(memory.sketch, AllRows):
        return {}
    return rank_errors.errors_over_rank(memory.sketch)
