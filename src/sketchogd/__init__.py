"""Memory-efficient continual learning: protect any PyTorch training loop from forgetting within a byte budget.

import sketchogd as so

protection = so.protect(model, optimizer, budget="2MB")
...                               # train as ever; every step of the optimizer is projected
protection.remember(task)         # after each task

Data passes the folders in this order: `model` (what is read off a network), `sketch` (fixed-size summaries of rows, on
`linalg`), `memory` (which rows go into which sketches), `projector` (what training applies to an update), `optimizer`
(applying it), `storage` (files). `distributed` is for several processes, `theory` for the
analysis, `privacy` for memories with a guarantee and for what a memory reveals. Beside the library
are `lab` (data, streams, methods, runs, records, pages), `paper` (SketchOGD's publication) and `cli`.

* `protect`: builds a `Protection` (`protection`), which takes a batch through these folders
* `adopt`: carrying what is remembered over to a model that has grown
* `budget`: from bytes to a memory; `ledger`: every tensor kept, with its bytes
* `seeds`, `errors`: random numbers from a seed alone; what is raised and warned of; `interrupts`: holding Ctrl-C back
"""

from . import distributed, privacy, theory
from .coverage import Coverage
from .errors import NonFiniteError, ProtectionError, ProtectionWarning, StorageError
from .ledger import Ledger
from .memory import GradientMemory, LayerMemory, LayerSketch, Memory
from .model.batches import every_logit, log_likelihood, true_logit
from .model.buffers import HoldStatistics
from .model.gradients import per_example_gradients
from .model.parameters import ProtectedParameters, excluding
from .model.sensitivities import layer_signals
from .privacy import Privacy
from .projector import (
    BasisProjector,
    BlocksProjector,
    LayerProjector,
    LayersProjector,
    Project,
    Projector,
    Pull,
    Rule,
    Shrink,
)
from .protect import protect
from .protection import Protection
from .sketch import (
    AllRows,
    FrequentDirections,
    GradientSketch,
    IncrementalPCA,
    PCARows,
    ProductSketch,
    RandomRows,
    SecondMoment,
    Sketch,
    SymmetricSketch,
)
from .sketch.testmatrix import Gaussian, SparseSign

__version__ = "0.2.0"

__all__ = [
    "AllRows",
    "BasisProjector",
    "BlocksProjector",
    "Coverage",
    "FrequentDirections",
    "Gaussian",
    "GradientMemory",
    "GradientSketch",
    "HoldStatistics",
    "IncrementalPCA",
    "LayerMemory",
    "LayerProjector",
    "LayerSketch",
    "LayersProjector",
    "Ledger",
    "Memory",
    "NonFiniteError",
    "PCARows",
    "Privacy",
    "ProductSketch",
    "Project",
    "Projector",
    "ProtectedParameters",
    "Protection",
    "ProtectionError",
    "ProtectionWarning",
    "Pull",
    "RandomRows",
    "Rule",
    "SecondMoment",
    "Shrink",
    "Sketch",
    "SparseSign",
    "StorageError",
    "SymmetricSketch",
    "distributed",
    "every_logit",
    "excluding",
    "layer_signals",
    "log_likelihood",
    "per_example_gradients",
    "privacy",
    "protect",
    "theory",
    "true_logit",
]
