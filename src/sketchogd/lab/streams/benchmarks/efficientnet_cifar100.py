"""10-split CIFAR-100 with EfficientNet-lite0, pretrained on ImageNet: AdamW, one cycle, images mirrored and shifted."""

from functools import partial

from sketchogd.lab.models.efficientnet import efficientnet_for
from sketchogd.lab.models.heads import MultiHead
from sketchogd.lab.streams.benchmark import Benchmark, Training
from sketchogd.lab.streams.cifar import ten_classes
from sketchogd.lab.streams.transforms import Inputs

INPUTS = Inputs(0, (127 / 255,) * 3, (128 / 255,) * 3)
"""What the published weights were trained with."""


EFFICIENTNET_CIFAR100 = Benchmark(
    name="efficientnet-cifar100",
    title="10-split CIFAR-100, EfficientNet-lite0",
    dataset="cifar100",
    stream=partial(ten_classes, inputs=INPUTS),
    network=efficientnet_for,
    parameters=3_371_008,
    tasks=10,
    examples=5_000,
    example_nbytes=4 * 3 * 32 * 32 + 16,
    protected=MultiHead.PROTECTED,
    training=Training(
        epochs=5,
        batch=64,
        lr=1e-3,
        optimizer="adamw",
        curve=False,
        schedule="onecycle",
        augment="shift-mirror",
        clip=1.0,
        fresh=True,
    ),
    weights="efficientnet-lite0",
    budget=4 * 3_371_008,
    options=frozenset({"per_task", "single_head"}),
)
