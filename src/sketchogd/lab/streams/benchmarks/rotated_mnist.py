"""Rotated MNIST: ten tasks with the same images, each turned by 5 degrees more than the one before."""

from sketchogd.lab.data.datasets import LabelledImages
from sketchogd.lab.models import mlp_for
from sketchogd.lab.streams.benchmark import Benchmark
from sketchogd.lab.streams.streams import rotated
from sketchogd.lab.streams.tasks import Stream

TASKS = 10


def stream(
    images: LabelledImages,
    *,
    seed: int,
    tasks: int | None,
    n_train: int | None,
    n_test: int | None,
    degrees: float = 5.0,
) -> Stream:
    """Task t shows the images turned by t · degrees; the seed changes nothing."""
    return rotated(images, TASKS if tasks is None else tasks, degrees, n_train=n_train, n_test=n_test)


ROTATED_MNIST = Benchmark(
    name="rotated-mnist",
    title="Rotated MNIST",
    dataset="mnist-subset",
    stream=stream,
    network=mlp_for,
    parameters=113_610,
    tasks=TASKS,
    examples=10_000,
    example_nbytes=4 * 32 * 32 + 16,
    curves=(1, 5, 9),
    tuned={
        "layer-sketch": {"strength": 1.0, "damping": 0.015},
        "sketchogd-pull": {"strength": 4.0},
        "gpm": {"energy": 0.97},
    },
    options=frozenset({"degrees"}),
)
