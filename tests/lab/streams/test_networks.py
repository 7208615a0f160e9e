"""The streams that networks are trained on: which images and labels they have, and that they come back from bytes."""

import pytest
import torch

from sketchogd.lab.data.datasets import LabelledImages
from sketchogd.lab.streams import BENCHMARKS, Stream, validation
from sketchogd.lab.streams.benchmarks.gpm_permuted_mnist import INPUTS
from sketchogd.lab.streams.benchmarks.gpm_superclasses import ORDERS
from sketchogd.lab.streams.cifar import SUPERCLASSES, superclasses
from sketchogd.lab.streams.transforms import Inputs
from tests.lab.streams.noise import data_of, stream_of


def test_every_class_is_in_one_superclass() -> None:
    assert sorted(c for classes in SUPERCLASSES for c in classes) == list(range(100))
    assert all(sorted(order) == list(range(20)) for order in ORDERS)


def test_superclasses_are_scrambled_as_by_the_loader_of_gpm() -> None:
    images = data_of("cifar100")
    assert isinstance(images, LabelledImages)
    stream = superclasses(images, ORDERS[1], Inputs(0, (0.0,), (1.0,)), scrambled=True)
    x, y = stream.train(0)  # superclass 15
    classes = list(SUPERCLASSES[15])
    rows = [i for i, label in enumerate(images.y_train.tolist()) if label in classes]
    assert y.tolist() == [classes.index(int(images.y_train[i])) for i in rows]
    raw = images.x_train[rows].flatten(1).numpy() / 255.0
    literal = raw.reshape(-1, 32, 32, 3).swapaxes(2, 3).swapaxes(1, 2)
    torch.testing.assert_close(x, torch.from_numpy(literal).float())
    assert stream.recipes[3].head == 3
    assert torch.equal(stream_of(BENCHMARKS["gpm-superclasses"], seed=6).train(0)[0], x)


def test_every_task_of_gpm_s_permuted_mnist_is_permuted_and_a_tenth_is_not_used() -> None:
    known = BENCHMARKS["gpm-permuted-mnist"]
    images = data_of("mnist", per_class=10)
    assert isinstance(images, LabelledImages)
    stream = stream_of(known, per_class=10, seed=3)
    plain = INPUTS.normalised(images.x_train[10:])
    for t in range(known.tasks):
        x, y = stream.train(t)
        assert torch.equal(y, images.y_train[10:])
        assert not torch.equal(x, plain)
        assert torch.equal(x.flatten(1).sort(1).values, plain.flatten(1).sort(1).values)
    longer = known.stream(images, seed=3, tasks=100, n_train=None, n_test=None)
    assert len(longer) == 100
    assert torch.equal(longer.train(9)[0], stream.train(9)[0])


@pytest.mark.parametrize("name", [name for name, known in BENCHMARKS.items() if name != "split-cifar100"])
def test_inputs_come_back_from_their_bytes(name: str) -> None:
    known = BENCHMARKS[name]
    for stream in (stream_of(known), validation(stream_of(known, per_class=4), 0.3)):
        x, _ = stream[1:].train(0)
        encoding = stream[1:].encoding
        assert torch.equal(encoding.decode(encoding.encode(x)), x)
        size = 32 * 2 if known.dataset == "clinc150" else x[0].numel()
        assert encoding.nbytes(x) == size + 2


def test_domains_are_tasks_of_fifteen_intents() -> None:
    stream = stream_of(BENCHMARKS["minilm-clinc150"])
    assert isinstance(stream, Stream)
    x, y = stream.train(2)
    assert (len(stream), stream.heads, stream.classes) == (10, 10, 15)
    assert sorted(set(y.tolist())) == list(range(15))
    sentences = data_of("clinc150")
    assert torch.equal(x, sentences.x_train[(sentences.y_train // 15) == 2])
