"""Split MNIST: five tasks of two digits each, relabelled 0 and 1; one head."""

from sketchogd.lab.data.datasets import LabelledImages
from sketchogd.lab.models import mlp_for
from sketchogd.lab.streams.benchmark import Benchmark
from sketchogd.lab.streams.streams import split
from sketchogd.lab.streams.tasks import Stream


def stream(images: LabelledImages, *, seed: int, tasks: int | None, n_train: int | None, n_test: int | None) -> Stream:
    """Two classes per task, in label order; the seed changes nothing."""
    return split(images, 2, tasks=tasks, n_train=n_train, n_test=n_test)


SPLIT_MNIST = Benchmark(
    name="split-mnist",
    title="Split MNIST",
    dataset="mnist-subset",
    stream=stream,
    network=mlp_for,
    parameters=112_802,
    tasks=5,
    examples=2_000,
    example_nbytes=4 * 32 * 32 + 16,
    curves=(1, 3, 5),
    tuned={
        "layer-sketch": {"strength": 4.0, "damping": 0.05},
        "sketchogd-pull": {"strength": 512.0},
        "ewc": {"strength": 1000.0},
        "si": {"strength": 100.0},
    },
)
