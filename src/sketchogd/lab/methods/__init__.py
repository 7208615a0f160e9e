"""Methods that the lab can train with, one name each.

A `Method` is the settings, plain enough to be written as JSON; a `Learner` is the object that works on one model.

* `learner`: what the training loop calls around a step and after a task
* `registry`: settings, and every method's entry: builder, defaults, title and style
* `outputs`: which output of an example a memory remembers
* `protected`: a `Protection` as a learner, and plain training
* `both`, `gradient_projection`: two variants to compare with
* `memories`: the memory that settings describe
* `builders`: plain training, and the methods that protect a model with a memory
* `baselines/`: A-GEM, EWC, SI and replay
"""

from sketchogd.lab.methods.builders import protected
from sketchogd.lab.methods.learner import Learner
from sketchogd.lab.methods.registry import (
    KINDS,
    Builder,
    Kind,
    Method,
    Setup,
    build,
    keeps_examples,
    listed,
    method,
    register,
    style,
    title,
)
from sketchogd.lab.names import unknown

# isort: split
from sketchogd.lab.methods.baselines import builders as _baselines  # noqa: F401 - registers after the others, like runs

__all__ = [
    "KINDS",
    "Builder",
    "Kind",
    "Learner",
    "Method",
    "Setup",
    "build",
    "keeps_examples",
    "listed",
    "method",
    "protected",
    "register",
    "style",
    "title",
    "unknown",
]
