"""The lab: a workbench for experiments in continual learning, built on the library, which never imports it.

    from sketchogd.lab import Training, benchmark, fit, method, mlp

    result = fit(benchmark("rotated-mnist"), mlp(), method("layer-sketch", budget=2_000_000), Training(epochs=5))

* `data`: labelled images, embedded, from a folder or downloaded
* `streams`: sequences of tasks made from them
* `models`: the paper's two networks
* `methods`: what keeps a network from forgetting, one name each
* `runs`: a method trained on a stream, and grids of runs
* `records`: what is kept of a run
* `pages`: reports and figures
* `speed`: how fast the library is

`names` has the message about an unknown name.
"""

from sketchogd.lab.methods import Learner, build, method, register
from sketchogd.lab.models import LeNet, mlp
from sketchogd.lab.runs.config import RunConfig, Training
from sketchogd.lab.runs.grid import run_grid
from sketchogd.lab.runs.train import fit, run
from sketchogd.lab.streams import Stream, Task, benchmark, from_datasets, register_stream

__all__ = [
    "LeNet",
    "Learner",
    "RunConfig",
    "Stream",
    "Task",
    "Training",
    "benchmark",
    "build",
    "fit",
    "from_datasets",
    "method",
    "mlp",
    "register",
    "register_stream",
    "run",
    "run_grid",
]
