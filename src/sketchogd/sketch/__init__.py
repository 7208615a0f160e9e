"""Sketches: fixed-size summaries of a stream of rows."""

from .additive import Additive
from .base import REGISTRY, Sketch
from .factored import FactoredSketch
from .frequent import FrequentDirections, IncrementalPCA
from .linear import GradientSketch, ProductSketch, SymmetricSketch
from .moment import SecondMoment
from .pca import PCARows
from .rows import AllRows, RandomRows

__all__ = [
    "REGISTRY",
    "Additive",
    "AllRows",
    "FactoredSketch",
    "FrequentDirections",
    "GradientSketch",
    "IncrementalPCA",
    "PCARows",
    "ProductSketch",
    "RandomRows",
    "SecondMoment",
    "Sketch",
    "SymmetricSketch",
]
