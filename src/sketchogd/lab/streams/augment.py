"""Random changes of a training batch that keep its labels. `b` images in a batch."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

SHIFT = 4
"""Pixels by which an image is moved at most, in each direction."""


def as_they_are(x: Tensor) -> Tensor:
    """The batch."""
    return x


def shifted_and_mirrored(x: Tensor) -> Tensor:
    """Images (b, C, H, W), each moved by up to 4 pixels, zeros coming in, and mirrored by chance, all on the device."""
    b, _, height, width = x.shape
    mirrored = torch.rand(b, device=x.device) < 0.5
    x = torch.where(mirrored[:, None, None, None], x.flip(3), x)
    start = torch.randint(0, 2 * SHIFT + 1, (2, b, 1), device=x.device)
    rows = start[0] + torch.arange(height, device=x.device)
    columns = start[1] + torch.arange(width, device=x.device)
    padded = F.pad(x, [SHIFT] * 4).permute(0, 2, 3, 1)
    return padded[torch.arange(b, device=x.device)[:, None, None], rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )


AUGMENTATIONS: dict[str, Callable[[Tensor], Tensor]] = {"": as_they_are, "shift-mirror": shifted_and_mirrored}
"""Every augmentation by its name in `Training`."""
