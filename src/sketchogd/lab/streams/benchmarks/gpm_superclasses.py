"""The 20 superclasses of CIFAR-100 with the LeNet of GPM's authors, trained by their rule.

Their loader reads the bytes of an image in another order than they are stored, so that images are scrambled, and
normalises nothing but to [0, 1]. This is reproduced, because the published numbers are of such images.
"""

from sketchogd.lab.data.datasets import LabelledImages
from sketchogd.lab.models.gpm import lenet_for_superclasses
from sketchogd.lab.models.heads import MultiHead
from sketchogd.lab.streams.benchmark import Benchmark, Training
from sketchogd.lab.streams.cifar import superclasses
from sketchogd.lab.streams.tasks import Stream
from sketchogd.lab.streams.transforms import Inputs

INPUTS = Inputs(0, (0.0,), (1.0,))
ORDERS = (
    tuple(range(20)),
    (15, 12, 5, 9, 7, 16, 18, 17, 1, 0, 3, 8, 11, 14, 10, 6, 2, 4, 13, 19),
    (17, 1, 19, 18, 12, 7, 6, 0, 11, 15, 10, 5, 13, 3, 9, 16, 4, 14, 2, 8),
    (11, 9, 6, 5, 12, 4, 0, 10, 13, 7, 14, 3, 15, 16, 8, 1, 2, 19, 18, 17),
    (6, 14, 0, 11, 12, 17, 13, 4, 9, 1, 7, 19, 8, 10, 3, 15, 18, 5, 2, 16),
)
"""The orders of tasks that GPM's authors average over (Yoon et al. 2020); seed s has number s mod 5."""


def stream(images: LabelledImages, *, seed: int, tasks: int | None, n_train: int | None, n_test: int | None) -> Stream:
    """The order of tasks is one of `ORDERS`."""
    order = ORDERS[seed % len(ORDERS)]
    return superclasses(images, order, INPUTS, scrambled=True, tasks=tasks, n_train=n_train, n_test=n_test)


GPM_SUPERCLASSES = Benchmark(
    name="gpm-superclasses",
    title="CIFAR-100 superclasses, LeNet",
    dataset="cifar100",
    stream=stream,
    network=lenet_for_superclasses,
    parameters=20 * 3 * 25 + 50 * 20 * 25 + 3200 * 800 + 800 * 500,
    tasks=20,
    examples=2_500,
    example_nbytes=4 * 3 * 32 * 32 + 16,
    protected=MultiHead.PROTECTED,
    training=Training(epochs=50, batch=64, lr=0.01, curve=False, schedule="plateau", test_batch=64),
    seeded=True,
    goal=0.59,
    budget=4_000_000,
    published={
        "EWC": (46.7, -13.5),
        "GPM": (57.7, -1.2),
        "TRGP, task identity inside the layers": (58.2, -1.7),
    },
    tuned={
        "gpm-published": {"energy": 0.98, "more": 0.001, "samples": [24, 100, 125, 125]},
        "sgp": {"energy": 0.98, "more": 0.001, "samples": [24, 100, 125, 125], "scale": 3.0},
    },
)
