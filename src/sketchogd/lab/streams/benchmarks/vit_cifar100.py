"""10-split CIFAR-100 with a small vision transformer: AdamW, one cycle, images shifted and mirrored."""

from functools import partial

from sketchogd.lab.models.heads import MultiHead
from sketchogd.lab.models.vit import vit_for
from sketchogd.lab.streams.benchmark import Benchmark, Training
from sketchogd.lab.streams.cifar import ten_classes
from sketchogd.lab.streams.transforms import CIFAR_INPUTS

VIT_CIFAR100 = Benchmark(
    name="vit-cifar100",
    title="10-split CIFAR-100, ViT",
    dataset="cifar100",
    stream=partial(ten_classes, inputs=CIFAR_INPUTS),
    network=vit_for,
    parameters=2_691_264,
    tasks=10,
    examples=5_000,
    example_nbytes=4 * 3 * 32 * 32 + 16,
    protected=MultiHead.PROTECTED,
    training=Training(
        epochs=12,
        batch=64,
        lr=1e-3,
        optimizer="adamw",
        curve=False,
        schedule="onecycle",
        augment="shift-mirror",
        clip=1.0,
        fresh=True,
    ),
    budget=4 * 2_691_264,
    seeds=3,
    options=frozenset({"per_task", "single_head"}),
)
