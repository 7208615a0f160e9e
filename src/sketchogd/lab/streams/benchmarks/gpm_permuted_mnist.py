"""Permuted MNIST as GPM's authors have it: every task permuted, 54,000 images of 28 × 28 each, one head, no biases."""

from sketchogd.lab.data.datasets import LabelledImages
from sketchogd.lab.models.gpm import perceptron_for
from sketchogd.lab.streams.benchmark import Benchmark, Training
from sketchogd.lab.streams.streams import permuted
from sketchogd.lab.streams.tasks import Stream
from sketchogd.lab.streams.transforms import Inputs

TASKS = 10
INPUTS = Inputs(0, (0.1307,), (0.3081,))
UNUSED = 0.1
"""The first tenth of the training data is set apart for validation by the authors, who do not use it."""


def stream(images: LabelledImages, *, seed: int, tasks: int | None, n_train: int | None, n_test: int | None) -> Stream:
    """The permutations are drawn from the seed."""
    first = int(UNUSED * len(images.y_train))
    kept = LabelledImages(
        images.x_train[first:], images.y_train[first:], images.x_test, images.y_test, images.name, images.classes
    )
    count = TASKS if tasks is None else tasks
    whole = permuted(kept, count + 1, seed, n_train=n_train, n_test=n_test, inputs=INPUTS)
    return Stream(whole.name, whole.recipes[1:], whole.encoding)  # the first of them is not permuted


GPM_PERMUTED_MNIST = Benchmark(
    name="gpm-permuted-mnist",
    title="Permuted MNIST (GPM)",
    dataset="mnist",
    stream=stream,
    network=perceptron_for,
    parameters=784 * 100 + 100 * 100 + 100 * 10,
    tasks=TASKS,
    examples=54_000,
    example_nbytes=4 * 28 * 28 + 16,
    training=Training(epochs=5, batch=10, lr=0.01, curve=False),
    seeded=True,
    goal=0.965,
    budget=1_300_000,
    published={
        "multitask": (96.70, None),
        "EWC": (89.97, -4.0),
        "OWM": (90.71, -1.0),
        "GPM": (93.91, -3.0),
        "TRGP, task identity inside the layers": (96.34, -0.8),
        "CUBER": (97.25, -0.02),
    },
    tuned={"gpm-published": {"energy": [0.95, 0.99, 0.99], "samples": 300}},
)
