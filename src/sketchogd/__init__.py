"""Memory-efficient continual learning: protect any PyTorch training loop from forgetting within a byte budget.

import sketchogd as so

protection = so.protect(model, optimizer, budget="2MB")
...                               # train as ever; every step of the optimizer is projected
protection.remember(task)         # after each task
"""

import importlib
from types import ModuleType

from . import theory
from .errors import NonFiniteError, ProtectionError, ProtectionWarning, StorageError
from .ledger import Ledger
from .memory import GradientMemory, LayerSketch, Memory
from .model.batches import every_logit, log_likelihood, true_logit
from .model.gradients import per_example_gradients
from .model.parameters import ProtectedParameters, excluding
from .model.sensitivities import layer_signals
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

__version__ = "0.1.0"

__all__ = [
    "AllRows",
    "FrequentDirections",
    "Gaussian",
    "GradientMemory",
    "GradientSketch",
    "IncrementalPCA",
    "LayerSketch",
    "Ledger",
    "Memory",
    "NonFiniteError",
    "PCARows",
    "ProductSketch",
    "ProtectedParameters",
    "Protection",
    "ProtectionError",
    "ProtectionWarning",
    "RandomRows",
    "SecondMoment",
    "Sketch",
    "SparseSign",
    "StorageError",
    "SymmetricSketch",
    "every_logit",
    "excluding",
    "layer_signals",
    "log_likelihood",
    "per_example_gradients",
    "protect",
    "theory",
    "true_logit",
]


def __getattr__(name: str) -> ModuleType:
    """`so.distributed`, imported when it is first asked for: it takes a while, and one process does not need it."""
    if name == "distributed":
        return importlib.import_module(".distributed", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
