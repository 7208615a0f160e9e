"""How the inputs of a stream are kept in as few bytes as lose nothing: pixels as bytes, words as numbers of tokens.

`encode` turns inputs (n, …) into what is kept, `decode` turns that back into the very same inputs.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


class Encoding(ABC):
    """A lossless form of inputs, and the type of integers that labels and heads fit into."""

    labels: torch.dtype
    """Of targets and heads."""

    @abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """What is kept of inputs (…)."""

    @abstractmethod
    def decode(self, kept: Tensor) -> Tensor:
        """The inputs."""

    def nbytes(self, x: Tensor) -> int:
        """Bytes that the first of the inputs (n, …) takes with its label and its head."""
        kept = self.encode(x[:1])
        return kept.numel() * kept.element_size() + 2 * self.labels.itemsize


@dataclass(frozen=True)
class AsGiven(Encoding):
    """Inputs as they are, labels in int64."""

    labels = torch.int64

    def encode(self, x: Tensor) -> Tensor:
        """Them."""
        return x

    def decode(self, kept: Tensor) -> Tensor:
        """Them."""
        return kept


AS_GIVEN = AsGiven()


@dataclass(frozen=True)
class Pixels(Encoding):
    """Normalised images (…, C, H, W) as uint8: x = (pixel / 255 − mean) / std, so pixel = 255 (x std + mean)."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    labels = torch.uint8

    def encode(self, x: Tensor) -> Tensor:
        """Raises ValueError for inputs that are no such images."""
        mean, std = _constants(self, x.device)
        kept = ((x * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
        if not torch.allclose(self.decode(kept), x.float(), atol=1e-4):
            raise ValueError("these inputs are not pixels of 0 to 255 with this mean and deviation; keep them as given")
        return kept

    def decode(self, kept: Tensor) -> Tensor:
        """As `Inputs.normalised` computes it."""
        mean, std = _constants(self, kept.device)
        return (kept.to(torch.float32) / 255).sub_(mean).div_(std)


@dataclass(frozen=True)
class Tokens(Encoding):
    """Numbers of tokens (…, L), int64, below 2¹⁵ as int16."""

    labels = torch.uint8

    def encode(self, x: Tensor) -> Tensor:
        """Raises ValueError for numbers that do not fit."""
        if len(x) and int(x.max()) >= 1 << 15:
            raise ValueError(f"numbers of tokens below 32,768 fit into two bytes; got {int(x.max())}")
        return x.to(torch.int16)

    def decode(self, kept: Tensor) -> Tensor:
        """As int64."""
        return kept.to(torch.int64)


@lru_cache(maxsize=16)
def _constants(pixels: Pixels, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and deviation on a device, made once, so that captured graphs find them."""
    mean, std = (torch.tensor(v, device=device).view(-1, 1, 1) for v in (pixels.mean, pixels.std))
    return mean, std
