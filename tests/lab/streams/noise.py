"""Benchmarks on random images and tokens: their streams and networks at full width, without any data set."""

import torch

from sketchogd.lab.data.datasets import LabelledImages
from sketchogd.lab.data.texts import LabelledTokens
from sketchogd.lab.streams import Benchmark, Stream

SHAPES = {"mnist-subset": (10, (1, 28, 28)), "mnist": (10, (1, 28, 28)), "cifar100": (100, (3, 32, 32))}
"""Classes and shape of the images of each data set that a benchmark uses."""


def data_of(dataset: str, per_class: int = 2) -> LabelledImages | LabelledTokens:
    """Random examples in the shape of a data set, the same to train and to test."""
    g = torch.Generator().manual_seed(1)
    if dataset == "clinc150":
        y = torch.arange(150).repeat(per_class)
        x = torch.randint(1, 30522, (len(y), 32), generator=g)
        x[:, 10:] = 0
        return LabelledTokens(x, y, x, y, dataset, 150, 15)
    classes, shape = SHAPES[dataset]
    y = torch.arange(classes).repeat(per_class)
    x = torch.randint(0, 256, (len(y), *shape), dtype=torch.uint8, generator=g)
    return LabelledImages(x, y, x, y, dataset, classes)


def stream_of(benchmark: Benchmark, per_class: int = 2, seed: int = 0, **options: object) -> Stream:
    """The benchmark's stream on `per_class` examples per class."""
    given: dict = {"seed": seed, "tasks": None, "n_train": None, "n_test": None, **options}
    return benchmark.stream(data_of(benchmark.dataset, per_class), **given)
