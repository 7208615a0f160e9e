"""Memories: what is remembered of a model."""

from .base import REGISTRY, Held, Memory
from .gradients import GradientMemory
from .layers import LayerSketch

__all__ = ["REGISTRY", "GradientMemory", "Held", "LayerSketch", "Memory"]
