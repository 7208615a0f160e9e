"""10-split CIFAR-100 with the AlexNet of GPM's authors, trained by their rule: plain SGD, halved on plateaus."""

from functools import partial

from sketchogd.lab.models.gpm import alexnet_for
from sketchogd.lab.models.heads import MultiHead
from sketchogd.lab.streams.benchmark import Benchmark, Training
from sketchogd.lab.streams.cifar import ten_classes
from sketchogd.lab.streams.transforms import Inputs

INPUTS = Inputs(0, (125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255))
"""The constants of GPM's authors."""


GPM_CIFAR100 = Benchmark(
    name="gpm-cifar100",
    title="10-split CIFAR-100, AlexNet",
    dataset="cifar100",
    stream=partial(ten_classes, inputs=INPUTS),
    network=alexnet_for,
    parameters=6_508_416,
    tasks=10,
    examples=5_000,
    example_nbytes=4 * 3 * 32 * 32 + 16,
    protected=MultiHead.PROTECTED,
    training=Training(epochs=200, batch=64, lr=0.01, curve=False, schedule="plateau", test_batch=64),
    goal=0.765,
    tuned={
        "gpm-published": {"energy": 0.97, "more": 0.003, "samples": [24, 100, 100, 125, 125]},
        "sgp": {"energy": 0.97, "more": 0.003, "samples": [24, 100, 100, 125, 125], "scale": 10.0},
    },
    budget=8_000_000,
    published={
        "multitask": (79.58, None),
        "EWC": (68.80, -2.0),
        "OWM": (50.94, -30.0),
        "GPM": (72.48, -0.9),
        "TRGP, task identity inside the layers": (74.46, -0.9),
        "CUBER": (75.54, 0.13),
        "SGP": (76.05, None),
        "QGPM, 8 bit": (70.70, -0.81),
    },
    options=frozenset({"per_task", "single_head"}),
)
