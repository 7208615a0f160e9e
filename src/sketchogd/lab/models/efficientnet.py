"""EfficientNet-lite0 (Tan & Le 2019; its lite form by Google 2020): no squeeze-and-excitation, ReLU6, padding as in
TensorFlow, which gives the odd pixel to the right and below. Names of weights are those of the published PyTorch port.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sketchogd.lab.models.heads import MultiHead
from sketchogd.lab.models.paper import seeded
from sketchogd.seeds import derive_seed

if TYPE_CHECKING:
    from sketchogd.lab.streams.tasks import Stream

STAGES = (
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)
"""Repeats, kernel, stride of the first block, expansion, channels in and out."""
WIDTH = 1280
SIDE = 128
"""Images are enlarged to this before the first layer; the published weights were trained at 224."""


def padded(x: Tensor, convolution: nn.Conv2d) -> Tensor:
    """x (b, i, h, w) with as much padding as gives ⌈h / s⌉ × ⌈w / s⌉ places for a stride of s."""
    (k, _), (s, _) = convolution.kernel_size, convolution.stride
    rows, columns = (max((-(-n // s) - 1) * s + k - n, 0) for n in x.shape[-2:])
    return F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def _depthwise(channels: int, size: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, size, stride, groups=channels, bias=False)


class Block(nn.Module):
    """Expansion by 1 × 1, a depthwise convolution, projection by 1 × 1; added to the input where shapes allow."""

    def __init__(self, size: int, stride: int, expansion: int, i: int, o: int) -> None:
        super().__init__()
        inner = expansion * i
        if expansion > 1:
            self._expand_conv, self._bn0 = nn.Conv2d(i, inner, 1, bias=False), _norm(inner)
        self._depthwise_conv, self._bn1 = _depthwise(inner, size, stride), _norm(inner)
        self._project_conv, self._bn2 = nn.Conv2d(inner, o, 1, bias=False), _norm(o)
        self.expands, self.adds = expansion > 1, stride == 1 and i == o

    def forward(self, x: Tensor) -> Tensor:
        """x (b, i, h, w) → (b, o, ⌈h / stride⌉, ⌈w / stride⌉)."""
        y = F.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = self._bn2(self._project_conv(F.relu6(self._bn1(self._depthwise_conv(padded(y, self._depthwise_conv))))))
        return x + y if self.adds else y


class EfficientNetLite0(nn.Module):
    """Images (b, 3, h, w), normalised with mean 127 / 255 and deviation 128 / 255 → (b, 1280).

    Args:
        side: images are enlarged to this height and width; None for images as they are.
    """

    def __init__(self, side: int | None = SIDE) -> None:
        super().__init__()
        self.side = side
        self._conv_stem, self._bn0 = nn.Conv2d(3, 32, 3, 2, bias=False), _norm(32)
        blocks = [
            Block(size, stride if n == 0 else 1, expansion, i if n == 0 else o, o)
            for repeats, size, stride, expansion, i, o in STAGES
            for n in range(repeats)
        ]
        self._blocks = nn.ModuleList(blocks)
        self._conv_head, self._bn1 = nn.Conv2d(320, WIDTH, 1, bias=False), _norm(WIDTH)

    def load_pretrained(self, weights: Mapping[str, Tensor]) -> None:
        """Load published weights, whose classifier is left out. Raises ValueError if any is missing."""
        missing = self.state_dict().keys() - weights.keys()
        if missing:
            raise ValueError(f"the weights lack {', '.join(sorted(missing)[:3])} …: they are of another network")
        self.load_state_dict({name: weights[name] for name in self.state_dict()})

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        if self.side is not None:
            x = F.interpolate(x, (self.side, self.side), mode="bilinear", align_corners=False)
        x = F.relu6(self._bn0(self._conv_stem(padded(x, self._conv_stem))))
        for block in self._blocks:
            x = block(x)
        return F.relu6(self._bn1(self._conv_head(x))).mean((2, 3))


def efficientnet_for(stream: "Stream", seed: int) -> MultiHead:
    """The network for a stream; the heads' weights are drawn from the seed."""
    with seeded(derive_seed(seed, "model")), torch.no_grad():
        return MultiHead(EfficientNetLite0(), WIDTH, stream.classes, stream.heads)
