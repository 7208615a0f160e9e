"""Methods that the lab can train with, one name each.

* `learner`: what the training loop calls around a step and after a task
* `registry`: settings, and the builder behind each name
* `outputs`: which output of an example a memory remembers
* `protected`: a `Protection` as a learner
* `both`, `gradient_projection`: two variants to compare with
* `baselines/`: A-GEM, EWC, SI and replay
* `builders`: every name, with how it is built
"""

from sketchogd.lab.methods.builders import protected
from sketchogd.lab.methods.registry import KINDS, Builder, Kind, Method, Setup, build, method, register, unknown

__all__ = ["KINDS", "Builder", "Kind", "Method", "Setup", "build", "method", "protected", "register", "unknown"]
