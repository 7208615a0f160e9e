"""Records of runs: what is written during a run and read again.

* `metrics`: what an accuracy matrix says
* `spectra`: singular values of remembered gradients
* `sketch_errors`: what sketches of rising rank leave out of them
* `checkpoint`: the state of an interrupted run
* `digests`: which config a run is of
* `schema`: what a record may say
* `lock`: which process works on a run
* `folder`: a run is a folder
* `bundles`: many runs in one file
"""

from sketchogd.lab.records.digests import config_digest, identity, intact
from sketchogd.lab.records.folder import (
    FORMAT,
    Run,
    RunFolder,
    State,
    environment,
    find,
    load,
    plan,
    state,
)
from sketchogd.lab.records.schema import RecordError

__all__ = [
    "FORMAT",
    "RecordError",
    "Run",
    "RunFolder",
    "State",
    "config_digest",
    "environment",
    "find",
    "identity",
    "intact",
    "load",
    "plan",
    "state",
]
