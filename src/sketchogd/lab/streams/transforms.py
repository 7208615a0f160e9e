"""What happens to pixels on their way into a network: padding, rotation, permutation, normalisation.

Pure functions on tensors; images are (n, C, H, W). Rotation and padding act on bytes, before normalisation.
"""

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import pad as pad_tensor

from sketchogd.lab.data.datasets import LabelledImages
from sketchogd.lab.streams.encodings import Pixels


@dataclass(frozen=True)
class Inputs:
    """How images become inputs: x = (pixel / 255 − mean) / std after `pad` zero pixels on each side.

    mean, std: one number per channel, in units of the scaled pixel.
    """

    pad: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def encoding(self) -> Pixels:
        """What turns inputs back into pixels."""
        return Pixels(self.mean, self.std)

    def padded(self, images: torch.Tensor) -> torch.Tensor:
        """Images uint8 (n, C, H, W) → (n, C, H + 2 pad, W + 2 pad)."""
        return pad_tensor(images, [self.pad] * 4) if self.pad else images

    def normalised(self, images: torch.Tensor) -> torch.Tensor:
        """Images uint8 (n, C, H, W), padded already → float32 of the same shape."""
        mean = torch.tensor(self.mean).view(1, -1, 1, 1)
        std = torch.tensor(self.std).view(1, -1, 1, 1)
        return (images.to(torch.float32) / 255).sub_(mean).div_(std)


MNIST_INPUTS = Inputs(pad=2, mean=(0.1000,), std=(0.2752,))
"""28×28 padded to 32×32; mean and deviation of the padded training images."""

CIFAR_INPUTS = Inputs(pad=0, mean=(0.507, 0.487, 0.441), std=(0.267, 0.256, 0.276))

_PAPER = {"mnist-subset": MNIST_INPUTS, "mnist": MNIST_INPUTS, "cifar100": CIFAR_INPUTS}


def inputs_for(images: LabelledImages) -> Inputs:
    """The paper's constants for its own data sets; otherwise measured on the training images, 28×28 padded to 32×32.

    mean_c and std_c are those of all scaled pixels of channel c, padding included.
    """
    if images.name in _PAPER:
        return _PAPER[images.name]
    pad = 2 if tuple(images.x_train.shape[-2:]) == (28, 28) else 0
    pixels = Inputs(pad, (), ()).padded(images.x_train)
    # A histogram of the 256 values is exact and needs no floating-point copy of the images.
    values = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in pixels.unbind(1)])
    weights = counts / counts.sum(1, keepdim=True).clamp(min=1)
    mean = weights.double() @ values
    std = (weights.double() @ values.square() - mean.square()).clamp(min=0).sqrt()
    return Inputs(pad, tuple(mean.tolist()), tuple(s if s > 0 else 1.0 for s in std.tolist()))


def rotation_sources(height: int, width: int, degrees: float) -> torch.Tensor:
    """Flat index (H·W,) int64 of the source of each pixel of the rotated image, −1 where it lies outside.

    Counter-clockwise by θ about the centre, nearest neighbour. With u = column − (W − 1)/2 and v = row − (H − 1)/2,
    rows counted downwards, the pixel at (u, v) shows the source at (u cos θ − v sin θ, u sin θ + v cos θ), rounded
    half up.
    """
    theta = math.radians(degrees % 360.0)
    cosine, sine = math.cos(theta), math.sin(theta)
    centre_x, centre_y = (width - 1) / 2, (height - 1) / 2
    v, u = torch.meshgrid(
        torch.arange(height, dtype=torch.float64) - centre_y,
        torch.arange(width, dtype=torch.float64) - centre_x,
        indexing="ij",
    )
    x = torch.floor(u * cosine - v * sine + centre_x + 0.5).long()
    y = torch.floor(u * sine + v * cosine + centre_y + 0.5).long()
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    return torch.where(inside, y * width + x, -1).flatten()


def rotate(images: torch.Tensor, degrees: float) -> torch.Tensor:
    """Images (n, C, H, W) of any type, turned counter-clockwise by `degrees`, zero where there is no source pixel.

    Nearest neighbour, so no new values appear; 0° is the identity and, for square images, 90° is `torch.rot90`.
    """
    height, width = images.shape[-2:]
    source = rotation_sources(height, width, degrees)
    turned = images.flatten(-2).index_select(-1, source.clamp(min=0))
    turned[..., source < 0] = 0
    return turned.unflatten(-1, (height, width))


def permute_pixels(images: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Images (n, C, H, W) with pixel i taken from pixel order[i]; order (H·W,) int64, the same for every channel."""
    height, width = images.shape[-2:]
    if order.shape != (height * width,):
        raise ValueError(f"a permutation of {height * width} pixels is needed, this one has shape {tuple(order.shape)}")
    return images.flatten(-2).index_select(-1, order).unflatten(-1, (height, width))


def first_of_each(labels: torch.Tensor, n: int | None) -> torch.Tensor:
    """Indices, increasing, of `n` examples spread evenly over the classes, the first of each in order; labels (m,).

    All of them when n is None. Classes that run out are made up for by the others.

    Raises:
        ValueError: n is not between 1 and m.
    """
    if n is None:
        return torch.arange(len(labels))
    if not 1 <= n <= len(labels):
        raise ValueError(f"{n} examples are asked for; there are {len(labels)}")
    rank = torch.empty_like(labels)
    for label in labels.unique():
        members = (labels == label).nonzero().flatten()
        rank[members] = torch.arange(len(members))
    return torch.argsort(rank, stable=True)[:n].sort().values
