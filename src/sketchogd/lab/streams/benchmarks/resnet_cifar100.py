"""10-split CIFAR-100 with ResNet-18: momentum, one cycle, images shifted and mirrored."""

from sketchogd.lab.data.datasets import LabelledImages
from sketchogd.lab.models.heads import MultiHead
from sketchogd.lab.models.resnet import resnet18_for
from sketchogd.lab.streams.benchmark import Benchmark, Training
from sketchogd.lab.streams.cifar import ten_classes
from sketchogd.lab.streams.tasks import Stream
from sketchogd.lab.streams.transforms import CIFAR_INPUTS

INPUTS = CIFAR_INPUTS


def stream(
    images: LabelledImages,
    *,
    seed: int,
    tasks: int | None,
    n_train: int | None,
    n_test: int | None,
    per_task: int = 10,
    single_head: bool = False,
) -> Stream:
    """See `ten_classes`; the seed changes nothing."""
    return ten_classes(images, INPUTS, per_task, single_head=single_head, tasks=tasks, n_train=n_train, n_test=n_test)


RESNET_CIFAR100 = Benchmark(
    name="resnet-cifar100",
    title="10-split CIFAR-100, ResNet-18",
    dataset="cifar100",
    stream=stream,
    network=resnet18_for,
    parameters=11_168_832,
    tasks=10,
    examples=5_000,
    example_nbytes=4 * 3 * 32 * 32 + 16,
    protected=MultiHead.PROTECTED,
    training=Training(
        epochs=12,
        batch=64,
        lr=0.05,
        optimizer="momentum",
        curve=False,
        schedule="onecycle",
        augment="shift-mirror",
        weight_decay=5e-4,
        fresh=True,
    ),
    budget=4 * 11_168_832,
    options=frozenset({"per_task", "single_head"}),
)
