"""The paper's networks, an MLP with one head and a LeNet with a head per task; `mlp_for`, `lenet_for` fit a stream.

Any `nn.Module` can be used in the lab; these two are what the published numbers were measured on. Weights come from the
seed given, and the global random state is left as it was. `p` protected parameters, `b` examples in a batch.
"""

import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from sketchogd.model.batches import evaluating
from sketchogd.seeds import derive_seed

if TYPE_CHECKING:
    from sketchogd.lab.streams.tasks import Stream


@contextlib.contextmanager
def seeded(seed: int, device: str | torch.device = "cpu") -> Iterator[None]:
    """Run a block with PyTorch's generators of CPU and device seeded with `seed`; they are restored afterwards."""
    chosen = torch.device(device)
    places = [chosen.index or 0] if chosen.type == "cuda" else []
    with torch.random.fork_rng(devices=places):
        torch.default_generator.manual_seed(seed)
        if places:
            torch.cuda.manual_seed(seed)
        yield


def mlp(inputs: int = 1024, hidden: Sequence[int] = (100, 100), outputs: int = 10, *, seed: int = 0) -> nn.Sequential:
    """ReLU network inputs → hidden… → outputs with biases; images of any shape are flattened inside.

    With the defaults p = 1024·100 + 100 + 100·100 + 100 + 100·10 + 10 = 113,610, all protected. Layers are named
    linear1, linear2, …; x (b, …) → logits (b, outputs).
    """
    sizes = [inputs, *hidden, outputs]
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    with seeded(seed):
        for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes), start=1):
            layers[f"linear{i}"] = nn.Linear(fan_in, fan_out)
            if i < len(sizes) - 1:
                layers[f"relu{i}"] = nn.ReLU()
    return nn.Sequential(layers)


class LeNet(nn.Module):
    """Two convolutions and a wide layer, each with batch normalisation, then a linear head per task.

    conv 5×5 pad 2, 3→20, BN, ReLU, pool 2; conv 20→50, BN, ReLU, pool 2; Linear(3200, 500), BN, ReLU; head 500→classes.
    x (b, 3, 32, 32) → logits (b, classes_per_head) of the active head, which `use_head` selects; head 0 at first.

    The paper protects `LeNet.PROTECTED`, the wide layer and its normalisation: 3200·500 + 500 + 2·500 = 1,601,500
    parameters. `heads=1` gives a single head for all tasks.

    Raises:
        ValueError: no heads, or no classes.
    """

    PROTECTED = "wide*"
    """Glob of the parameter names that the paper protects."""

    def __init__(self, heads: int, classes_per_head: int = 5, *, seed: int = 0) -> None:
        super().__init__()
        if heads < 1 or classes_per_head < 1:
            raise ValueError(f"at least one head and one class are needed, got {heads} and {classes_per_head}")
        with seeded(seed):
            self.conv1 = nn.Conv2d(3, 20, 5, padding=2)
            self.conv1_norm = nn.BatchNorm2d(20)
            self.conv2 = nn.Conv2d(20, 50, 5, padding=2)
            self.conv2_norm = nn.BatchNorm2d(50)
            self.wide = nn.Linear(3200, 500)
            self.wide_norm = nn.BatchNorm1d(500)
            self.heads = nn.ModuleList(nn.Linear(500, classes_per_head) for _ in range(heads))
        self.pool = nn.MaxPool2d(2)
        self.head = 0

    def use_head(self, head: int) -> None:
        """Make `head` the one whose logits `forward` returns.

        Raises:
            IndexError: there is no such head.
        """
        if not 0 <= head < len(self.heads):
            raise IndexError(f"this network has heads 0 to {len(self.heads) - 1}, not {head}")
        self.head = head

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Input of the heads: images (b, 3, 32, 32), or their `convolved` features (b, 3200) → (b, 500)."""
        return torch.relu(self.wide_norm(self.wide(x if x.ndim == 2 else self.convolved(x))))

    def convolved(self, x: torch.Tensor) -> torch.Tensor:
        """Input of the wide layer: x (b, 3, 32, 32) → (b, 3200)."""
        x = self.pool(torch.relu(self.conv1_norm(self.conv1(x))))
        x = self.pool(torch.relu(self.conv2_norm(self.conv2(x))))
        return x.flatten(1)

    @torch.no_grad()
    def frozen_features(self, x: torch.Tensor) -> torch.Tensor:
        """`convolved` in evaluation mode, in chunks; replaces the images where the convolutions are frozen."""
        with evaluating(self):
            return torch.cat([self.convolved(piece) for piece in x.split(1000)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (b, classes_per_head) of the active head."""
        logits: torch.Tensor = self.heads[self.head](self.features(x))
        return logits


def mlp_for(stream: "Stream", seed: int) -> nn.Sequential:
    """The MLP for a stream with one head; its weights are derived from the seed of the run.

    Raises:
        ValueError: the stream has several heads.
    """
    if stream.heads > 1:
        raise ValueError("the MLP has one head; for a stream with several give `fit` a model with use_head(head)")
    shape = stream.test(0)[0].shape[1:]
    return mlp(shape.numel(), outputs=stream.classes, seed=derive_seed(seed, "model"))


def lenet_for(stream: "Stream", seed: int) -> LeNet:
    """The LeNet for a stream of images (3, 32, 32); its weights are derived from the seed of the run."""
    return LeNet(stream.heads, stream.classes, seed=derive_seed(seed, "model"))
