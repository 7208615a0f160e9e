"""A small vision transformer for images of 32 × 32 (Dosovitskiy et al. 2021): patches of 4 × 4, the mean of tokens."""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sketchogd.lab.models.heads import MultiHead
from sketchogd.lab.models.paper import seeded
from sketchogd.seeds import derive_seed

if TYPE_CHECKING:
    from sketchogd.lab.streams.tasks import Stream


class Attention(nn.Module):
    """Self-attention with one linear layer for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x (b, T, width) → the same shape."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed: Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    """Attention and an MLP, each after a norm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """x (b, T, width) → the same shape."""
        x = x + self.attention(self.norm1(x))
        mixed: Tensor = x + self.mlp(self.norm2(x))
        return mixed


class ViT(nn.Module):
    """Images (b, 3, 32, 32) → (b, width): 64 tokens, `depth` blocks, a norm and the mean over tokens."""

    def __init__(self, width: int = 192, depth: int = 6, heads: int = 3) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, stride=4)
        self.position = nn.Parameter(torch.randn(64, width) * 0.02)
        self.blocks, self.norm = nn.Sequential(*(Block(width, heads) for _ in range(depth))), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.position
        mean: Tensor = self.norm(self.blocks(tokens).mean(1))
        return mean


def vit_for(stream: "Stream", seed: int) -> MultiHead:
    """The network for a stream, 2.7 million weights without heads."""
    with seeded(derive_seed(seed, "model")):
        return MultiHead(ViT(), 192, stream.classes, stream.heads)
