"""Split CIFAR-100: twenty tasks of five classes each, with a head per task."""

from sketchogd.lab.data.datasets import LabelledImages
from sketchogd.lab.models import LeNet, lenet_for
from sketchogd.lab.streams.benchmark import Benchmark, Training
from sketchogd.lab.streams.streams import split
from sketchogd.lab.streams.tasks import Stream


def stream(images: LabelledImages, *, seed: int, tasks: int | None, n_train: int | None, n_test: int | None) -> Stream:
    """Five classes per task, in label order, relabelled 0 … 4; the seed changes nothing."""
    return split(images, 5, own_heads=True, tasks=tasks, n_train=n_train, n_test=n_test)


SPLIT_CIFAR100 = Benchmark(
    name="split-cifar100",
    title="Split CIFAR-100",
    dataset="cifar100",
    stream=stream,
    network=lenet_for,
    parameters=1_601_500,
    tasks=20,
    examples=2_500,
    example_nbytes=4 * 3 * 32 * 32 + 16,
    protected=LeNet.PROTECTED,
    # The published runs never update the convolutions and stay in evaluation mode after the first step.
    training=Training(frozen=("conv*",), eval_after_first_step=True),
    curves=(2, 9, 18),
    tuned={
        "layer-sketch": {"strength": 1.0, "damping": 0.015},
        "sketchogd-pull": {"strength": 8.0},
        "gpm": {"energy": 0.9},
        "ewc": {"strength": 1.0},
        "si": {"strength": 100.0, "damping": 1.0},
    },
)
