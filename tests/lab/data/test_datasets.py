"""Data sets: what ships, what is read from a folder, and what is refused."""

import gzip
import hashlib
import importlib.util
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from sketchogd.lab.data import datasets, fileformats, sources
from sketchogd.lab.data.fileformats import DataError
from tools.campaign.pickles import published

SCRIPT = Path(__file__).parents[3] / "tools" / "make_mnist_subset.py"


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[np.ndarray]]:
    """A folder with the four files of a set of 60 + 20 images, whose checksums count as the published ones."""
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 256, (60, 28, 28)),
        rng.permutation(np.arange(60) % 10),
        rng.integers(0, 256, (20, 28, 28)),
        np.arange(20) % 10,
    ]
    records = []
    (tmp_path / "mnist").mkdir()
    for array, real in zip(arrays, sources.PUBLISHED["mnist"], strict=True):
        (tmp_path / "mnist" / real.name).write_bytes(gzip.compress(idx(array), mtime=0))
        records.append(sources.Published(real.name, (sha256(idx(array)),)))
    monkeypatch.setitem(sources.PUBLISHED, "mnist", tuple(records))
    return tmp_path, arrays


def test_the_embedded_set_is_the_papers_subset() -> None:
    images = datasets.load("mnist-subset")
    assert images.x_train.shape == images.x_test.shape == (10_000, 1, 28, 28)
    assert images.x_train.dtype == torch.uint8
    assert images.y_train.dtype == torch.int64
    assert torch.bincount(images.y_train).tolist() == [1000] * 10
    # The class counts of MNIST's test set, and how its files begin.
    assert torch.bincount(images.y_test).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert images.y_train[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert images.y_test[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    # File order is kept: 5 is the rarest class, so its thousandth image comes last in the file, after other fives.
    assert images.y_train[-20:].unique().tolist() == [5]


def test_the_embedded_set_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = bytearray(datasets.EMBEDDED.read_bytes())
    data[len(data) // 2] ^= 1
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(data)
    monkeypatch.setattr(datasets, "EMBEDDED", damaged)
    with pytest.raises(DataError, match="SHA-256"):
        datasets.load("mnist-subset")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_mnist_subset", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_takes_the_first_of_each_class_in_file_order(script: ModuleType) -> None:
    assert script.subset(np.array([1, 0, 1, 1, 0, 0, 0]), 2).tolist() == [0, 1, 2, 4]


def test_the_script_makes_the_archive_the_package_reads(
    script: ModuleType, small_mnist: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, (x_train, y_train, x_test, y_test) = small_mnist
    monkeypatch.setattr(script, "PER_CLASS", 2)
    for name in ("one.npz", "two.npz"):
        monkeypatch.setattr("sys.argv", ["make", str(folder), str(tmp_path / name)])
        script.main()
    data = (tmp_path / "one.npz").read_bytes()
    assert data == (tmp_path / "two.npz").read_bytes()
    monkeypatch.setattr(datasets, "EMBEDDED", tmp_path / "one.npz")
    monkeypatch.setattr(datasets, "EMBEDDED_SHA256", sha256(data))
    images = datasets.load("mnist-subset")
    kept = sorted(i for label in range(10) for i in np.flatnonzero(y_train == label)[:2])
    assert np.array_equal(images.x_train[:, 0].numpy(), x_train[kept])
    assert np.array_equal(images.y_train.numpy(), y_train[kept])
    assert np.array_equal(images.x_test[:, 0].numpy(), x_test)
    assert np.array_equal(images.y_test.numpy(), y_test)


@pytest.mark.parametrize("layout", ["subfolder", "plain", "direct", "torchvision"])
def test_idx_files_load_from_every_layout(small_mnist: tuple, layout: str) -> None:
    folder, (x_train, y_train, x_test, y_test) = small_mnist
    if layout == "plain":
        for path in list((folder / "mnist").iterdir()):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
    elif layout == "direct":
        folder = folder / "mnist"
    elif layout == "torchvision":
        (folder / "MNIST").mkdir()
        (folder / "mnist").rename(folder / "MNIST" / "raw")
    images = datasets.load("mnist", folder)
    assert np.array_equal(images.x_train[:, 0].numpy(), x_train)
    assert np.array_equal(images.y_train.numpy(), y_train)
    assert np.array_equal(images.x_test[:, 0].numpy(), x_test)
    assert np.array_equal(images.y_test.numpy(), y_test)
    assert images.classes == 10


def test_the_folder_may_come_from_the_environment(small_mnist: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(datasets.ENVIRONMENT, str(small_mnist[0]))
    assert len(datasets.load("mnist").x_train) == 60
    monkeypatch.delenv(datasets.ENVIRONMENT)
    with pytest.raises(DataError, match="SKETCHOGD_DATA"):
        datasets.load("mnist")


def test_files_with_another_checksum_are_refused(small_mnist: tuple) -> None:
    folder, (_, _, x_test, _) = small_mnist
    path = folder / "mnist" / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx(255 - x_test)))
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte\.gz: the checksum"):
        datasets.load("mnist", folder)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="damaged"):
        datasets.load("mnist", folder)


def test_missing_files_are_named_with_where_to_put_them(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"train-images-idx3-ubyte\.gz.*/fashion-mnist.*sketchogd data --download fashion-mnist"
    ):
        datasets.load("fashion-mnist", tmp_path)
    with pytest.raises(DataError, match=r"cifar-100-python\.tar\.gz"):
        datasets.load("cifar100", tmp_path)
    with pytest.raises(DataError, match="unknown data set 'mnits'"):
        datasets.load("mnits", tmp_path)


@pytest.mark.parametrize("data", [b"", b"\x00\x00", b"\x00\x00\x08\x03\x00\x00\x00\x01", idx(np.zeros((2, 3, 3)))[:-1]])
def test_damaged_idx_data_is_refused(data: bytes) -> None:
    with pytest.raises(DataError):
        fileformats.read_idx(data)


def cifar_batch(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, bytes]:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (n, 3072), dtype=np.uint8)
    labels = rng.integers(0, 100, n)
    batch = {b"batch_label": b"x", b"fine_labels": labels.tolist(), b"coarse_labels": [0] * n, b"data": pixels}
    return pixels, labels, published(batch)


@pytest.mark.parametrize("packed", [True, False])
def test_the_cifar_archive_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    batches = {"train": cifar_batch(30, 0), "test": cifar_batch(10, 1)}
    for split, (_, _, data) in batches.items():
        digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
        monkeypatch.setitem(sources.CIFAR_MEMBERS, split, sources.Published(split, (digest,)))
    if packed:
        archive = tmp_path / "cifar-100-python.tar.gz"
        with tarfile.open(archive, "w:gz") as target:
            for split, (_, _, data) in batches.items():
                info = tarfile.TarInfo(f"cifar-100-python/{split}")
                info.size = len(data)
                target.addfile(info, io.BytesIO(data))
        record = sources.Published(archive.name, (sha256(archive.read_bytes()),), limit=1 << 20)
        monkeypatch.setattr(sources, "CIFAR_ARCHIVE", record)
    else:
        (tmp_path / "cifar100" / "cifar-100-python").mkdir(parents=True)
        for split, (_, _, data) in batches.items():
            (tmp_path / "cifar100" / "cifar-100-python" / split).write_bytes(data)
    images = datasets.load("cifar100", tmp_path)
    pixels, labels, _ = batches["train"]
    assert images.x_train.shape == (30, 3, 32, 32)
    assert images.classes == 100
    # The archive stores 1,024 red, then green, then blue values a row.
    assert np.array_equal(images.x_train[:, 1].flatten(1).numpy(), pixels[:, 1024:2048])
    assert images.y_train.tolist() == labels.tolist()
    assert images.y_test.tolist() == batches["test"][1].tolist()
    monkeypatch.setitem(sources.CIFAR_MEMBERS, "test", sources.Published("test", ("0" * 32,)))
    with pytest.raises(DataError, match="checksum of test"):
        datasets.load("cifar100", tmp_path)


class Command:
    def __reduce__(self) -> tuple:
        return os.mkdir, ("made-by-a-pickle",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({b"data": Command(), b"fine_labels": []}),
        b"\x80\x02cbuiltins\neval\n(T\x04\x00\x00\x001+1 tR.",
        b"cnumpy\nfrombuffer\n.",
        b"cnumpy.core.multiarray\nfromstring\n.",
        published({b"data": np.zeros((2, 3072), np.float64), b"fine_labels": [0, 0]}, kind=b"f8"),
        published({b"data": np.zeros((2, 3), np.uint8), b"fine_labels": [0, 0]}),
        published({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [0]}),
        published({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [0, 100]}),
        b"\x80\x02](K\x01K\x02e.",
        b"junk",
        b"",
    ],
)
def test_other_pickles_are_refused(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError):
        fileformats.read_cifar_batch(data)
    assert not list(tmp_path.iterdir())


def test_arrays_of_other_kinds_are_refused_by_the_reader() -> None:
    with pytest.raises(DataError, match="unsigned bytes"):
        fileformats.read_cifar_batch(published({b"data": np.zeros((2, 3072))}, kind=b"f8"))


def write_parts(folder: Path, parts: int, train_each: int, test_each: int) -> tuple[np.ndarray, np.ndarray]:
    """Parts as they are made by hand: uint8 arrays with channels last, classes in order, an even share a part."""
    per_part = -(-100 // parts)
    labels = np.arange(100).repeat(train_each)
    pixels = (labels[:, None, None, None] + np.zeros((1, 32, 32, 3), int) + 50 * np.arange(3)).astype(np.uint8)
    for part in range(parts):
        inside = labels // per_part == part
        tests = np.arange(100).repeat(test_each)
        tests = tests[tests // per_part == part]
        x_test = np.array(np.zeros((len(tests), 32, 32, 3)) if len(tests) else [], dtype=np.uint8)
        np.savez(
            folder / f"cifar100-{part}.npz",
            x_train=pixels[inside] if inside.any() else np.array([], np.uint8),
            y_train=labels[inside].astype(np.uint8),
            x_test=x_test,
            y_test=tests.astype(np.uint8),
        )
    return pixels, labels


@pytest.mark.parametrize("parts", [1, 4, 30])
def test_npz_parts_are_put_together(tmp_path: Path, parts: int) -> None:
    pixels, labels = write_parts(tmp_path, parts, 3, 1)
    arrays = fileformats.read_parts(sorted(tmp_path.glob("*.npz"), key=lambda path: int(path.stem[9:])))
    assert np.array_equal(arrays["x_train"], pixels.transpose(0, 3, 1, 2))
    assert np.array_equal(arrays["y_train"], labels)
    assert arrays["y_test"].tolist() == list(range(100))


def test_cifar_parts_load_and_must_be_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parts(tmp_path, 4, 3, 1)
    with pytest.raises(DataError, match="500 train images of every class"):
        datasets.load("cifar100", tmp_path)
    monkeypatch.setattr(datasets, "CIFAR_PER_CLASS", {"train": 3, "test": 1})
    images = datasets.load("cifar100", tmp_path)
    assert images.x_train.shape == (300, 3, 32, 32)
    assert [int(images.x_train[299, c, 0, 0]) for c in range(3)] == [99, 149, 199]
    (tmp_path / "cifar100-2.npz").unlink()
    with pytest.raises(DataError, match="of every class"):
        datasets.load("cifar100", tmp_path)


def test_parts_with_objects_or_other_shapes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    good = {"x_train": np.zeros((1, 4, 4, 3), np.uint8), "y_train": np.zeros(1, np.uint8)}
    good |= {"x_test": good["x_train"], "y_test": good["y_train"]}
    bad = [
        {"x_train": np.zeros((1, 4, 4), np.uint8)},
        {"x_train": np.zeros((1, 4, 4, 3), np.float32)},
        {"y_train": np.zeros(2, np.uint8)},
        {"y_test": np.zeros(1)},
        {"x_test": np.array([Command()], dtype=object)},
        {"x_train": np.zeros((0,), np.uint8), "y_train": np.zeros(0, np.uint8)},
    ]
    path = tmp_path / "cifar100-0.npz"
    for change in bad:
        np.savez(path, **(good | change))
        with pytest.raises(DataError):
            fileformats.read_parts([path])
        assert list(tmp_path.iterdir()) == [path]  # no pickle was run
    np.savez(path, **good)
    fileformats.read_parts([path])
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError):
        fileformats.read_parts([path])


def test_download_verifies_before_it_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source.gz"
    source.write_bytes(gzip.compress(idx(np.arange(3))))
    good = sources.Published("labels.gz", (sha256(source.read_bytes()),), source.as_uri())
    monkeypatch.setitem(sources.PUBLISHED, "mnist", (good,))
    (path,) = datasets.download("mnist", tmp_path / "data")
    assert path == tmp_path / "data" / "mnist" / "labels.gz"
    assert path.read_bytes() == source.read_bytes()
    source.unlink()
    assert datasets.download("mnist", tmp_path / "data") == [path]  # verified already: nothing is fetched
    source.write_bytes(b"something else")
    path.write_bytes(b"damaged")
    with pytest.raises(DataError, match="another checksum"):
        datasets.download("mnist", tmp_path / "data")
    assert path.read_bytes() == b"damaged"
    assert [each.name for each in path.parent.iterdir()] == ["labels.gz"]
    with pytest.raises(DataError, match="inside the package"):
        datasets.download("mnist-subset", tmp_path)


def test_downloads_are_over_https_with_sha256() -> None:
    for name, files in sources.PUBLISHED.items():
        for record in files:
            assert record.url.startswith("https://") is (name not in sources.MADE)
            assert any(len(digest) == 64 for digest in record.digests)


def test_available_says_what_is_there(small_mnist: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = small_mnist
    monkeypatch.setattr(datasets, "CIFAR_PER_CLASS", {"train": 3, "test": 1})
    write_parts(folder, 4, 3, 1)
    rows = {row.name: row for row in datasets.available(folder)}
    assert list(rows) == [*datasets.NAMES, *sources.WEIGHTS]
    assert rows["mnist-subset"].ready
    assert rows["mnist"].ready
    assert rows["mnist"].verified
    assert rows["mnist"].where == str(folder / "mnist")
    assert "60 to train" in rows["mnist"].note
    assert not rows["fashion-mnist"].ready
    assert "train-images" in rows["fashion-mnist"].note
    assert rows["cifar100"].ready
    assert not rows["cifar100"].verified
    assert [row.ready for row in datasets.available(folder / "nowhere")] == [True, *[False] * 6]


def test_labelled_images_are_checked() -> None:
    x, y = torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1])
    datasets.LabelledImages(x, y, x, y, "good", 2)
    for bad in ((x.float(), y), (x[0], y), (x, y.int()), (x, y[:1]), (x, y + 1), (x[..., :3], y)):
        with pytest.raises(DataError):
            datasets.LabelledImages(x, y, *bad, "bad", 2)
