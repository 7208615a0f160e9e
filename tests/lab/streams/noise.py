"""Benchmarks on random images: their streams and networks at full width, without any data set."""

import torch

from sketchogd.lab.data.datasets import LabelledImages
from sketchogd.lab.streams import Benchmark, Stream

SHAPES = {"mnist-subset": (10, (1, 28, 28)), "cifar100": (100, (3, 32, 32))}
"""Classes and shape of the images of each data set that a benchmark uses."""


def stream_of(benchmark: Benchmark, per_class: int = 2, seed: int = 0, **options: object) -> Stream:
    """The benchmark's stream on `per_class` images per class, the same to train and to test."""
    classes, shape = SHAPES[benchmark.dataset]
    y = torch.arange(classes).repeat(per_class)
    x = torch.randint(0, 256, (len(y), *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    images = LabelledImages(x, y, x, y, benchmark.dataset, classes)
    return benchmark.stream(images, seed=seed, tasks=None, n_train=None, n_test=None, **options)
