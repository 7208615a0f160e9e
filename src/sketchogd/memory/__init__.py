"""Memories: what is remembered of a model."""

from ..ledger import Held
from .base import REGISTRY, Memory
from .gradients import GradientMemory
from .layers import LayerSketch

__all__ = ["REGISTRY", "GradientMemory", "Held", "LayerSketch", "Memory"]
