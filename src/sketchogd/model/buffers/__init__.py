"""The buffers of a model: running statistics are held after the first task, changes of others are warned of.

* `norms`: a norm layer whose running statistics are held, in training too
* `statistics`: all buffers of a model, which are held and which change
"""

from .norms import HoldStatistics
from .statistics import Statistics, kept_nbytes

__all__ = ["HoldStatistics", "Statistics", "kept_nbytes"]
