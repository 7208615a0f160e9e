"""The networks of GPM (Saha, Garg, Roy 2021) as in its authors' scripts: no biases, and plain SGD trains them."""

from typing import TYPE_CHECKING

import torch
from torch import nn

from sketchogd.lab.models.heads import MultiHead
from sketchogd.lab.models.paper import seeded
from sketchogd.seeds import derive_seed

if TYPE_CHECKING:
    from sketchogd.lab.streams.tasks import Stream


def perceptron_for(stream: "Stream", seed: int) -> MultiHead:
    """784-100-100-10 with ReLUs for images of 28 × 28 and one head."""
    with seeded(derive_seed(seed, "model")):
        body = nn.Sequential(
            nn.Flatten(), nn.Linear(784, 100, bias=False), nn.ReLU(), nn.Linear(100, 100, bias=False), nn.ReLU()
        )
        return MultiHead(body, 100, stream.classes, stream.heads, bias=False)


def alexnet_for(stream: "Stream", seed: int) -> MultiHead:
    """Convolutions 64 of 4 × 4, 128 of 3 × 3, 256 of 2 × 2, full layers of 2048 and 2048, for images of 32 × 32.

    Each is followed by batch normalisation without running statistics, ReLU, dropout (.2, .2, .5, .5, .5) and, for
    convolutions, max-pooling by 2. As norms use the statistics of whatever batch they see, tests are made in shuffled
    batches (`Training.test_batch`).
    """

    def convolution(i: int, o: int, size: int, drop: float) -> list[nn.Module]:
        norm = nn.BatchNorm2d(o, track_running_stats=False)
        return [nn.Conv2d(i, o, size, bias=False), norm, nn.ReLU(), nn.Dropout(drop), nn.MaxPool2d(2)]

    def full(i: int, o: int) -> list[nn.Module]:
        norm = nn.BatchNorm1d(o, track_running_stats=False)
        return [nn.Linear(i, o, bias=False), norm, nn.ReLU(), nn.Dropout(0.5)]

    with seeded(derive_seed(seed, "model")):
        convolutions = [*convolution(3, 64, 4, 0.2), *convolution(64, 128, 3, 0.2), *convolution(128, 256, 2, 0.5)]
        body = nn.Sequential(*convolutions, nn.Flatten(), *full(1024, 2048), *full(2048, 2048))
        return MultiHead(body, 2048, stream.classes, stream.heads, bias=False)


def lenet_for_superclasses(stream: "Stream", seed: int) -> MultiHead:
    """Convolutions 20 and 50 of 5 × 5, padded by 2, full layers of 800 and 500, for images of 32 × 32.

    Convolutions are followed by ReLU, local response normalisation and max-pooling 3 / 2. Weights of all layers are
    uniform as He et al. 2015 have them for ReLU.
    """

    def convolution(i: int, o: int) -> list[nn.Module]:
        norm = nn.LocalResponseNorm(4, 0.001 / 9.0, 0.75, 1)
        return [nn.Conv2d(i, o, 5, padding=2, bias=False), nn.ReLU(), norm, nn.MaxPool2d(3, 2, padding=1)]

    with seeded(derive_seed(seed, "model")):
        full = [nn.Linear(3200, 800, bias=False), nn.ReLU(), nn.Linear(800, 500, bias=False), nn.ReLU()]
        body = nn.Sequential(*convolution(3, 20), *convolution(20, 50), nn.Flatten(), *full)
        model = MultiHead(body, 500, stream.classes, stream.heads, bias=False)
        for p in model.parameters():
            torch.nn.init.kaiming_uniform_(p, mode="fan_in", nonlinearity="relu")
    return model
