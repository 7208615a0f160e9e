"""ResNet-18 for images of 32 × 32 (He, Zhang, Ren, Sun 2016): a first convolution of 3 × 3 and no pooling after it."""

import itertools
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sketchogd.lab.models.heads import MultiHead
from sketchogd.lab.models.paper import seeded
from sketchogd.seeds import derive_seed

if TYPE_CHECKING:
    from sketchogd.lab.streams.tasks import Stream


class Block(nn.Module):
    """Two convolutions of 3 × 3 with batch normalisation, added to the input or to its projection."""

    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.norm2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        projection = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))
        self.skip = projection if stride > 1 or i != o else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """x (b, i, h, w) → (b, o, h / stride, w / stride)."""
        inner = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(inner + self.skip(x))


def resnet18(width: int = 64) -> nn.Sequential:
    """Images (b, 3, h, w) → (b, 8 · width): four stages of two blocks, then the mean over places."""
    sizes = [width, width, 2 * width, 4 * width, 8 * width]
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    for stage, (i, o) in enumerate(itertools.pairwise(sizes)):
        layers += [Block(i, o, 2 if stage else 1), Block(o, o, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def resnet18_for(stream: "Stream", seed: int) -> MultiHead:
    """The network for a stream, 11.2 million weights without heads."""
    with seeded(derive_seed(seed, "model")):
        return MultiHead(resnet18(), 512, stream.classes, stream.heads)
