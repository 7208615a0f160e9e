"""Permuted MNIST: ten tasks with the same images, their pixels in an order of its own in each but the first."""

from sketchogd.lab.data.datasets import LabelledImages
from sketchogd.lab.models import mlp_for
from sketchogd.lab.streams.benchmark import Benchmark
from sketchogd.lab.streams.streams import permuted
from sketchogd.lab.streams.tasks import Stream

TASKS = 10


def stream(
    images: LabelledImages,
    *,
    seed: int,
    tasks: int | None,
    n_train: int | None,
    n_test: int | None,
    released: bool = False,
) -> Stream:
    """The permutations are drawn from the seed; with `released`, as the paper's released code draws them."""
    return permuted(images, TASKS if tasks is None else tasks, seed, n_train=n_train, n_test=n_test, released=released)


PERMUTED_MNIST = Benchmark(
    name="permuted-mnist",
    title="Permuted MNIST",
    dataset="mnist-subset",
    stream=stream,
    network=mlp_for,
    parameters=113_610,
    tasks=TASKS,
    examples=10_000,
    example_nbytes=4 * 32 * 32 + 16,
    seeded=True,
    curves=(1, 5, 9),
    tuned={
        "layer-sketch": {"strength": 1.0, "damping": 0.015},
        "sketchogd-pull": {"strength": 2.0},
        "gpm": {"energy": 0.97},
        "si": {"strength": 10.0, "damping": 1.0},
    },
    options=frozenset({"released"}),
)
