"""Streams of tasks.

* `encodings`: inputs in as few bytes as lose nothing
* `tasks`: a task, and a sequence of tasks that are built when asked for
* `transforms`: what happens to pixels on their way into a network
* `streams`: rotated, permuted, split and drifting streams, and streams from your own data
* `augment`: random changes of a batch of images
* `cifar`, `sentences`: parts of CIFAR-100, and sentences by domain
* `benchmark`: what a benchmark is, as one record
* `benchmarks/`: the benchmarks, one file each
* `registration`: a stream of your own as a benchmark
"""

from sketchogd.lab.streams.benchmark import Benchmark, Training
from sketchogd.lab.streams.benchmarks import BENCHMARKS, benchmark, record
from sketchogd.lab.streams.registration import register_stream
from sketchogd.lab.streams.streams import (
    Stream,
    Task,
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
    "Benchmark",
    "Stream",
    "Task",
    "Training",
    "benchmark",
    "drifting",
    "from_datasets",
    "held_out",
    "permuted",
    "record",
    "register_stream",
    "rotated",
    "split",
    "validation",
]
