"""Streams of tasks.

* `tasks`: a task, and a sequence of tasks that are built when asked for
* `transforms`: what happens to pixels on their way into a network
* `streams`: rotated, permuted, split and drifting streams, and streams of one's own
"""

from sketchogd.lab.streams.streams import (
    BENCHMARKS,
    Stream,
    Task,
    benchmark,
    drifting,
    from_datasets,
    held_out,
    permuted,
    rotated,
    split,
    validation,
)

__all__ = [
    "BENCHMARKS",
    "Stream",
    "Task",
    "benchmark",
    "drifting",
    "from_datasets",
    "held_out",
    "permuted",
    "rotated",
    "split",
    "validation",
]
