"""Sketches: fixed-size summaries of a stream of rows that can return an orthonormal basis of their dominant span.

* `columns`: which columns of a sketch this process holds
* `stored`: what a stored state must look like
* `testmatrix`: random test matrices, generated from a seed
* `base`: the interface of a sketch
* `additive`: sketches that add up over processes
* `factored`: sketches that store their basis in place of their rows
* `linear`: the paper's three sketches, SketchOGD-1, -2 and -3
* `flat_tail`: a product sketch that knows a flat tail
* `moment`: the exact second moment, for short rows
* `rows`: all rows (OGD) or a uniform sample of them (RandomOGD)
* `pca`: principal components of a sample of each task (PCA-OGD)
* `frequent`: frequent directions and incremental PCA
"""

from .additive import Additive
from .base import REGISTRY, Sketch
from .factored import FactoredSketch
from .flat_tail import FlatTailSketch
from .frequent import FrequentDirections, IncrementalPCA
from .linear import GradientSketch, ProductSketch, SketchedMoment, SymmetricSketch
from .moment import SecondMoment
from .pca import PCARows
from .rows import AllRows, RandomRows

__all__ = [
    "REGISTRY",
    "Additive",
    "AllRows",
    "FactoredSketch",
    "FlatTailSketch",
    "FrequentDirections",
    "GradientSketch",
    "IncrementalPCA",
    "PCARows",
    "ProductSketch",
    "RandomRows",
    "SecondMoment",
    "Sketch",
    "SketchedMoment",
    "SymmetricSketch",
]
