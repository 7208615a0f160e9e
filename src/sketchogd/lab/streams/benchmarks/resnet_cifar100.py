"""10-split CIFAR-100 with ResNet-18: momentum, one cycle, images shifted and mirrored."""

from functools import partial

from sketchogd.lab.models.heads import MultiHead
from sketchogd.lab.models.resnet import resnet18_for
from sketchogd.lab.streams.benchmark import Benchmark, Training
from sketchogd.lab.streams.cifar import ten_classes
from sketchogd.lab.streams.transforms import CIFAR_INPUTS

RESNET_CIFAR100 = Benchmark(
    name="resnet-cifar100",
    title="10-split CIFAR-100, ResNet-18",
    dataset="cifar100",
    stream=partial(ten_classes, inputs=CIFAR_INPUTS),
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
