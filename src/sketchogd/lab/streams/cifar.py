"""Streams of CIFAR-100 in parts: some classes in label order, or the superclasses. `c` classes per task."""

import torch

from sketchogd.lab.data.datasets import LabelledImages
from sketchogd.lab.streams.streams import split
from sketchogd.lab.streams.tasks import Pair, Recipe, Stream
from sketchogd.lab.streams.transforms import Inputs, first_of_each

SUPERCLASSES = (
    *((4, 30, 55, 72, 95), (1, 32, 67, 73, 91), (54, 62, 70, 82, 92), (9, 10, 16, 28, 61), (0, 51, 53, 57, 83)),
    *((22, 39, 40, 86, 87), (5, 20, 25, 84, 94), (6, 7, 14, 18, 24), (3, 42, 43, 88, 97), (12, 17, 37, 68, 76)),
    *((23, 33, 49, 60, 71), (15, 19, 21, 31, 38), (34, 63, 64, 66, 75), (26, 45, 77, 79, 99), (2, 11, 35, 46, 98)),
    *((27, 29, 44, 78, 93), (36, 50, 65, 74, 80), (47, 52, 56, 59, 96), (8, 13, 48, 58, 90), (41, 69, 81, 85, 89)),
)
"""The five classes of each of the 20 superclasses: aquatic mammals, fish, flowers, …, vehicles 2."""


def ten_classes(
    images: LabelledImages,
    *,
    inputs: Inputs,
    seed: int = 0,
    per_task: int = 10,
    single_head: bool = False,
    tasks: int | None = None,
    n_train: int | None = None,
    n_test: int | None = None,
) -> Stream:
    """Tasks of `per_task` classes in label order, each with a head of its own; the seed changes nothing.

    With `single_head` all tasks share one head for all classes, and a test does not say which task it is of
    (class-incremental).
    """
    return split(
        images,
        per_task,
        relabel=not single_head,
        own_heads=not single_head,
        tasks=tasks,
        n_train=n_train,
        n_test=n_test,
        inputs=inputs,
    )


def superclasses(
    images: LabelledImages,
    order: tuple[int, ...],
    inputs: Inputs,
    *,
    scrambled: bool,
    tasks: int | None = None,
    n_train: int | None = None,
    n_test: int | None = None,
) -> Stream:
    """A task for each superclass, in this order, with a head of its own.

    Args:
        images: CIFAR-100.
        order: the superclasses.
        inputs: padding and normalisation.
        scrambled: the 3,072 bytes of an image, a channel after the other, are read as 32 × 32 pixels of three.
        tasks: how many of the tasks to keep, the first ones; None for all.
        n_train: training examples per task, spread evenly over the classes; None for all.
        n_test: test examples per task, likewise.
    """
    chosen = order if tasks is None else order[:tasks]

    def half(x: torch.Tensor, y: torch.Tensor, n: int | None, classes: tuple[int, ...]) -> Pair:
        members = torch.isin(y, torch.tensor(classes)).nonzero().flatten()
        kept = members[first_of_each(y[members], n)]
        pixels = x[kept]
        if scrambled:
            pixels = pixels.flatten(1).view(-1, 32, 32, 3).permute(0, 3, 1, 2).contiguous()
        return inputs.normalised(inputs.padded(pixels)), torch.searchsorted(torch.tensor(classes), y[kept])

    recipes = [
        Recipe(
            f"superclass {s}",
            len(SUPERCLASSES[s]),
            head,
            lambda s=s: half(images.x_train, images.y_train, n_train, SUPERCLASSES[s]),  # type: ignore[misc]
            lambda s=s: half(images.x_test, images.y_test, n_test, SUPERCLASSES[s]),  # type: ignore[misc]
        )
        for head, s in enumerate(chosen)
    ]
    return Stream(f"superclasses-{images.name}", recipes, inputs.encoding)
