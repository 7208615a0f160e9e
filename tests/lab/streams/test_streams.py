"""Streams: what each task shows, against independent ways to compute it; laziness, reductions, drift."""

import gc
import math
import random
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import pad

from sketchogd.lab import streams
from sketchogd.lab.data import datasets
from sketchogd.lab.data.datasets import LabelledImages
from sketchogd.lab.methods import method
from sketchogd.lab.runs.config import RunConfig, stream_of
from sketchogd.lab.streams import transforms


def turned_by_pillow(image: np.ndarray, degrees: float) -> np.ndarray:
    pillow = pytest.importorskip("PIL.Image", reason="pillow is the independent implementation of rotation")
    return np.asarray(pillow.fromarray(image).rotate(degrees))


def random_images(
    n: int = 40, size: int = 8, channels: int = 1, classes: int = 4, name: str = "noise"
) -> LabelledImages:
    generator = torch.Generator().manual_seed(0)

    def pixels(m: int) -> torch.Tensor:
        return torch.randint(0, 256, (m, channels, size, size), generator=generator, dtype=torch.uint8)

    def labels(m: int) -> torch.Tensor:
        return (torch.arange(m) % classes)[torch.randperm(m, generator=generator)]

    return LabelledImages(pixels(n), labels(n), pixels(n // 2), labels(n // 2), name, classes)


@pytest.fixture(scope="module")
def mnist() -> LabelledImages:
    return datasets.load("mnist-subset")


@pytest.mark.parametrize("size", [7, 8])
def test_quarter_turns_are_exact(size: int) -> None:
    x = random_images(size=size, channels=3).x_train
    for quarters in range(-2, 6):
        assert torch.equal(transforms.rotate(x, 90.0 * quarters), torch.rot90(x, quarters, dims=(-2, -1)))


def rotate_slowly(image: np.ndarray, degrees: float) -> np.ndarray:
    """One pixel at a time: the pixel nearest to where this one comes from, zero if that is outside."""
    height, width = image.shape
    turned = np.zeros_like(image)
    back = complex(math.cos(math.radians(degrees)), math.sin(math.radians(degrees)))
    centre = complex((width - 1) / 2, (height - 1) / 2)
    for row in range(height):
        for column in range(width):
            # On the complex plane with rows downwards, undoing a counter-clockwise turn multiplies by exp(iθ).
            source = (complex(column, row) - centre) * back + centre
            nearest = round(source.real), round(source.imag)
            if 0 <= nearest[0] < width and 0 <= nearest[1] < height:
                turned[row, column] = image[nearest[1], nearest[0]]
    return turned


@pytest.mark.parametrize("degrees", [5.0, 20.0, 45.0, 123.4, -17.0])
@pytest.mark.parametrize("shape", [(32, 32), (9, 14)])
def test_rotation_is_the_nearest_pixel(degrees: float, shape: tuple[int, int]) -> None:
    image = np.random.default_rng(1).integers(1, 256, shape, dtype=np.uint8)
    turned = transforms.rotate(torch.from_numpy(image)[None, None], degrees)[0, 0].numpy()
    assert np.array_equal(turned, rotate_slowly(image, degrees))


@pytest.mark.parametrize("degrees", [5.0 * t for t in range(10)])
def test_rotation_agrees_with_pillow(mnist: LabelledImages, degrees: float) -> None:
    """Pillow rotates in 16-bit fixed point, so a pixel whose source lies on an edge may differ: one or two of 1,024."""
    x = pad(mnist.x_train[:20], [2, 2, 2, 2])
    turned = transforms.rotate(x, degrees)
    numbered = torch.arange(1, 1025, dtype=torch.int32).view(1, 1, 32, 32)
    pillow = turned_by_pillow(numbered[0, 0].numpy(), degrees)
    assert np.count_nonzero(transforms.rotate(numbered, degrees)[0, 0].numpy() != pillow) <= 2
    theirs = np.stack([turned_by_pillow(image[0].numpy(), degrees) for image in x])
    assert np.count_nonzero(turned[:, 0].numpy() != theirs) <= 20


def test_rotated_mnist_is_the_protocols(mnist: LabelledImages) -> None:
    stream = streams.benchmark("rotated-mnist")
    assert len(stream) == 10
    assert (stream.heads, stream.classes, stream.name) == (1, 10, "rotated-mnist")
    task = stream[3]
    assert task.x_train.shape == task.x_test.shape == (10_000, 1, 32, 32)
    assert task.x_train.dtype == torch.float32
    turned = turned_by_pillow(np.pad(mnist.x_test[5, 0].numpy(), 2), 15)
    expected = (turned.astype(np.float64) / 255 - 0.1000) / 0.2752
    different = np.abs(task.x_test[5, 0].numpy() - expected) > 1e-6
    assert np.count_nonzero(different) <= 2
    assert torch.equal(task.y_train, mnist.y_train)
    first = (pad(mnist.x_train, [2, 2, 2, 2]).float() / 255 - 0.1000) / 0.2752
    torch.testing.assert_close(stream[0].x_train, first, rtol=0, atol=1e-6)
    # The constants are the mean and the deviation of padded MNIST: the subset's own differ from them by sampling only.
    assert abs(float(stream.train(0)[0].mean())) < 0.01
    assert abs(float(stream.train(0)[0].std()) - 1) < 0.01


def test_permuted_mnist_is_the_protocols() -> None:
    stream = streams.benchmark("permuted-mnist", seed=3, n_train=50, n_test=20)
    plain = streams.benchmark("rotated-mnist", n_train=50, n_test=20)[0]
    assert len(stream) == 10
    assert torch.equal(stream[0].x_train, plain.x_train)
    orders = []
    for t in range(1, 10):
        generator = torch.Generator().manual_seed(3)
        order = [torch.randperm(1024, generator=generator) for _ in range(t)][-1]
        task = stream[t]
        assert torch.equal(task.x_train.flatten(1), plain.x_train.flatten(1)[:, order])
        assert torch.equal(task.x_test.flatten(1), plain.x_test.flatten(1)[:, order])
        orders.append(tuple(order.tolist()))
    assert len(set(orders)) == 9
    short = streams.benchmark("permuted-mnist", seed=3, tasks=3, n_train=50, n_test=20)
    assert torch.equal(short[2].x_train, stream[2].x_train)
    other = streams.benchmark("permuted-mnist", seed=4, tasks=3, n_train=50, n_test=20)
    assert not torch.equal(short[2].x_train, other[2].x_train)


def test_released_permutations_are_those_of_pythons_own_shuffles() -> None:
    """The published code seeds Python's generator with 1, 2, … and shuffles a list for every task, the first too."""
    given = {"tasks": 3, "n_train": 50, "n_test": 20}
    plain = streams.benchmark("permuted-mnist", seed=4, **given).test(0)[0].flatten(1)
    stream = streams.benchmark("permuted-mnist", seed=4, released=True, **given)
    state = random.getstate()
    random.seed(5)
    for t in range(3):
        order = list(range(1024))
        random.shuffle(order)
        shown = stream.test(t)[0].flatten(1)
        assert torch.equal(shown, plain[:, order] if t else plain)
    random.setstate(state)
    with pytest.raises(ValueError, match="split-mnist has none"):
        stream_of(RunConfig("split-mnist", method("sgd"), released=True))


def test_permutation_is_the_same_for_every_channel() -> None:
    images = random_images(channels=3)
    images = LabelledImages(
        images.x_train[:, :1].repeat(1, 3, 1, 1), images.y_train, images.x_test, images.y_test, "grey", 4
    )
    task = streams.permuted(images, 2, inputs=transforms.Inputs(1, (0.0,) * 3, (1.0,) * 3))[1]
    assert torch.equal(task.x_train[:, 0], task.x_train[:, 2])
    assert sorted(task.x_train[0, 0].flatten().tolist()) == sorted(
        pad(images.x_train[0, 0].float() / 255, [1] * 4).flatten().tolist()
    )


def test_split_mnist_is_the_protocols(mnist: LabelledImages) -> None:
    stream = streams.benchmark("split-mnist")
    assert [recipe.head for recipe in stream.recipes] == [0] * 5
    for t, task in enumerate(stream):
        assert task.classes == 2
        assert torch.bincount(task.y_train).tolist() == [1000, 1000]
        for x, y, all_x, all_y in (
            (task.x_train, task.y_train, mnist.x_train, mnist.y_train),
            (task.x_test, task.y_test, mnist.x_test, mnist.y_test),
        ):
            chosen = (all_y == 2 * t) | (all_y == 2 * t + 1)
            assert torch.equal(y, all_y[chosen] % 2)
            expected = (pad(all_x[chosen], [2, 2, 2, 2]).float() / 255 - 0.1000) / 0.2752
            torch.testing.assert_close(x, expected, rtol=0, atol=1e-6)


def test_split_keeps_labels_or_heads_when_asked() -> None:
    images = random_images(classes=4)
    kept = streams.split(images, 2, relabel=False)
    assert kept[1].y_train.unique().tolist() == [2, 3]
    assert kept[1].classes == 4
    own = streams.split(images, 1, own_heads=True)
    assert [task.head for task in own] == [0, 1, 2, 3]
    assert own.heads == 4
    assert len(streams.split(images, 2, tasks=1)) == 1
    for bad in ({"classes_per_task": 3}, {"classes_per_task": 0}, {"classes_per_task": 2, "tasks": 3}):
        with pytest.raises(ValueError, match=r"classes|at least 1"):
            streams.split(images, **bad)


def test_split_cifar100_is_the_protocols(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    monkeypatch.setattr(datasets, "CIFAR_PER_CLASS", {"train": 3, "test": 1})
    labels = np.arange(100, dtype=np.uint8)
    pixels = rng.integers(0, 256, (300, 32, 32, 3), dtype=np.uint8)
    parts = {"x_train": pixels, "y_train": labels.repeat(3), "x_test": pixels[:100], "y_test": labels}
    np.savez(tmp_path / "cifar100-0.npz", **parts)
    stream = streams.benchmark("split-cifar100", tmp_path)
    assert len(stream) == stream.heads == 20
    task = stream[7]
    assert (task.head, task.classes, task.x_train.shape) == (7, 5, (15, 3, 32, 32))
    assert task.y_train.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    expected = (pixels[105:120] / 255 - np.array([0.507, 0.487, 0.441])) / np.array([0.267, 0.256, 0.276])
    np.testing.assert_allclose(task.x_train.numpy(), expected.transpose(0, 3, 1, 2), atol=1e-6)
    assert streams.benchmark("split-cifar100", tmp_path, tasks=2, n_train=5)[1].y_train.tolist() == [0, 1, 2, 3, 4]


def test_reductions_are_the_first_of_each_class() -> None:
    labels = torch.tensor([0, 0, 0, 1, 0, 2, 1, 1])
    assert transforms.first_of_each(labels, 3).tolist() == [0, 3, 5]
    assert transforms.first_of_each(labels, 5).tolist() == [0, 1, 3, 5, 6]
    assert transforms.first_of_each(labels, 8).tolist() == list(range(8))
    assert transforms.first_of_each(labels, None).tolist() == list(range(8))
    for bad in (0, 9):
        with pytest.raises(ValueError, match=f"{bad} examples"):
            transforms.first_of_each(labels, bad)
    task = streams.benchmark("rotated-mnist", tasks=2, n_train=100, n_test=50)[1]
    assert torch.bincount(task.y_train).tolist() == [10] * 10
    assert torch.bincount(task.y_test).tolist() == [5] * 10


def test_inputs_are_measured_for_other_sets() -> None:
    images = random_images(size=28, channels=2)
    measured = transforms.inputs_for(images)
    assert measured.pad == 2
    x = measured.normalised(measured.padded(images.x_train))
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(2), atol=1e-5, rtol=0)
    assert transforms.inputs_for(random_images(size=8)).pad == 0
    fashion = transforms.inputs_for(random_images(size=28, name="fashion-mnist"))
    assert fashion != transforms.MNIST_INPUTS


def test_tasks_are_built_when_asked_for_and_not_kept() -> None:
    stream = streams.rotated(random_images(), tasks=4)
    first, second = stream[2], stream[2]
    assert torch.equal(first.x_train, second.x_train)
    assert first.x_train.data_ptr() != second.x_train.data_ptr()
    watch = weakref.ref(first.x_train)
    del first
    gc.collect()
    assert watch() is None
    assert torch.equal(stream.test(2)[0], second.x_test)
    assert torch.equal(stream.train(2)[0], second.x_train)
    assert torch.equal(stream[-1].x_test, stream[3].x_test)
    assert [task.name for task in stream[1:3]] == ["rotated 5°", "rotated 10°"]
    with pytest.raises(IndexError):
        stream[4]


def test_building_a_task_leaves_the_images_alone() -> None:
    images = random_images()
    before = images.x_train.clone(), images.y_train.clone()
    own = streams.from_datasets([images])
    for stream in (streams.rotated(images), streams.permuted(images, 3), streams.split(images, 2), own):
        for task in stream:
            task.x_train.zero_()
            task.y_train.add_(1)
    assert torch.equal(images.x_train, before[0])
    assert torch.equal(images.y_train, before[1])


def test_a_list_of_ones_own_is_a_stream() -> None:
    images = random_images()
    task = streams.Task(
        torch.randn(3, 5), torch.tensor([0, 1, 1]), torch.randn(2, 5), torch.tensor([0, 1]), "own", 2, 4
    )
    stream = streams.from_datasets([task, images])
    assert [each.head for each in stream] == [4, 0]
    assert [each.name for each in stream] == ["own", "noise"]
    assert torch.equal(stream[0].x_train, task.x_train)
    inputs = transforms.inputs_for(images)
    assert torch.equal(stream[1].x_test, inputs.normalised(images.x_test))
    assert [each.head for each in streams.from_datasets([task, images], own_heads=True)] == [0, 1]


def marked_stream(tasks: int) -> streams.Stream:
    """Task t has inputs t·100 … t·100 + 49 with labels equal to the last two digits."""
    values = torch.arange(50)
    items = []
    for t in range(tasks):
        x = (values + 100 * t).float()[:, None]
        items.append(streams.Task(x, values, x, values, f"{t}", 50))
    return streams.from_datasets(items)


def test_drift_moves_from_the_first_task_to_the_last() -> None:
    batches = list(streams.drifting(marked_stream(5), steps=401, batch=100, seed=2))
    assert len(batches) == 401
    for x, y in batches:
        assert x.shape == (100, 1)
        assert torch.equal(x[:, 0].long() % 100, y)
    tasks = torch.stack([(x[:, 0] // 100) for x, _ in batches])
    assert torch.equal(tasks[0], torch.zeros(100))
    assert torch.equal(tasks[-1], torch.full((100,), 4.0))
    position = torch.linspace(0, 4, 401)
    # Each example is a coin between two neighbours with mean u and variance ≤ 1/4: five deviations of a mean of 100.
    assert float((tasks.mean(1) - position).abs().max()) < 5 * 0.5 / math.sqrt(100)
    assert bool(((tasks >= position.floor()[:, None] - 1e-6) & (tasks <= position.ceil()[:, None] + 1e-6)).all())
    # Within a task every example is as likely: 40,100 draws over 50 values.
    counts = torch.bincount(torch.cat([y for _, y in batches]), minlength=50).double()
    assert float(((counts - 802).square() / 802).sum()) < 49 + 5 * math.sqrt(2 * 49)


def test_drift_is_repeatable_and_checked() -> None:
    stream = marked_stream(3)

    def draw(seed: int) -> torch.Tensor:
        return torch.cat([x for x, _ in streams.drifting(stream, steps=20, seed=seed)])

    state = torch.get_rng_state()
    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert len(list(streams.drifting(marked_stream(1), steps=1))) == 1
    for bad in ({"steps": 0}, {"steps": 3, "batch": 0}):
        with pytest.raises(ValueError, match="a drift needs"):
            streams.drifting(stream, **bad)
    with pytest.raises(ValueError, match="share one head"):
        streams.drifting(streams.split(random_images(), 2, own_heads=True), steps=3)


def test_unknown_names_and_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown benchmark 'rotated'; did you mean rotated-mnist"):
        streams.benchmark("rotated")
    with pytest.raises(ValueError, match="tasks must be at least 1"):
        streams.benchmark("rotated-mnist", tasks=0)
    with pytest.raises(ValueError, match="permutation of 64"):
        transforms.permute_pixels(random_images().x_train, torch.arange(10))


@pytest.mark.parametrize("name", ["rotated-mnist", "split-mnist"])
def test_validation_holds_out_a_share_of_each_class_and_never_shows_test_data(name):
    whole = streams.benchmark(name, tasks=2, n_train=200, n_test=50)
    held = streams.validation(whole, 0.1)
    assert (len(held), held.name, held.classes, held.heads) == (2, name, whole.classes, whole.heads)
    for t in range(2):
        x, y = whole.train(t)
        kept_x, kept_y = held.train(t)
        out_x, out_y = held.test(t)
        for label in y.unique():
            n = int((y == label).sum())
            assert int((out_y == label).sum()) == round(0.1 * n)
            assert int((kept_y == label).sum()) == n - round(0.1 * n)
            # What is held out are the last ones of the class, in order.
            torch.testing.assert_close(torch.cat([kept_x[kept_y == label], out_x[out_y == label]]), x[y == label])


def test_validation_needs_a_share_and_two_examples_of_a_class():
    stream = streams.benchmark("split-mnist", tasks=1, n_train=2, n_test=2)
    with pytest.raises(ValueError, match="one example"):
        streams.validation(stream, 0.5).train(0)
    for share in (0.0, 1.0, -0.1):
        with pytest.raises(ValueError, match="share"):
            streams.validation(stream, share)


def test_a_config_with_validation_has_a_name_a_record_and_a_stream_of_its_own():
    plain = RunConfig("split-mnist", method("sgd"), tasks=1, n_train=100, n_test=20)
    held = replace(plain, validation=0.1)
    assert "validation" not in plain.record()
    assert held.record() == {**plain.record(), "validation": 0.1}
    assert held.name == "split-mnist/sgd,validation=0.1/seed-0"
    assert [len(y) for _, y in (stream_of(plain).train(0), stream_of(plain).test(0))] == [100, 20]
    assert [len(y) for _, y in (stream_of(held).train(0), stream_of(held).test(0))] == [90, 10]


def test_streams_and_tasks_are_described_in_one_line() -> None:
    stream = streams.benchmark("split-mnist", n_train=40, n_test=20)
    assert repr(stream) == "Stream('split-mnist': 5 tasks, 2 classes, 1 head)"
    assert repr(stream[0]) == "Task('classes 0–1': 40 to train, 20 to test, inputs (1, 32, 32), 2 classes)"
    assert repr(stream[:1]) == "Stream('split-mnist': 1 task, 2 classes, 1 head)"
    own = streams.from_datasets([stream[0], stream[1]], own_heads=True, name="mine")
    assert repr(own) == "Stream('mine': 2 tasks, 2 classes, 2 heads)"
    assert repr(own[1]).endswith("2 classes, head 1)")
