"""Damaged, forged and endless data files: refused with a `DataError`, within bounded memory and time."""

import gzip
import http.server
import io
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sketchogd.lab.data import datasets, downloads, fileformats, pickles, sources
from sketchogd.lab.data.fileformats import DataError
from tools.campaign.__main__ import campaign
from tools.campaign.children import BAD
from tools.campaign.pickles import published

BATCH = {b"fine_labels": [3, 99], b"data": np.arange(6144).reshape(2, 3072).astype(np.uint8)}


# ---------------------------------------------------------------- pickles


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_damaged_pickles_are_read_or_refused_and_end_no_process() -> None:
    """With numpy's __setstate__ these ended the process (SIGSEGV)."""
    found = campaign({"files": 0, "kills": 0, "pickles": 2000, "faults": 0}, 3)["parts"]["pickles"]
    assert {kind: found[kind] for kind in BAD} == dict.fromkeys(BAD, 0), found["first bad"]
    assert min(found["accepted"], found["refused"]) > 200


def test_a_batch_of_either_set_is_read() -> None:
    pixels, labels = fileformats.read_cifar_batch(published(BATCH))
    assert np.array_equal(pixels.reshape(2, 3072), BATCH[b"data"])
    assert labels.tolist() == [3, 99]
    ten = {b"labels": [0, 9], b"data": BATCH[b"data"], b"filenames": [b"a.png"] * 300}
    assert fileformats.read_cifar_batch(published(ten))[1].tolist() == [0, 9]
    with pytest.raises(DataError, match="from 0 to 9"):
        fileformats.read_cifar_batch(published(ten | {b"labels": [0, 10]}))


def test_every_opcode_reads_as_pickle_reads_it() -> None:
    """Numbers, byte strings, containers and the memo, in the forms that Python 2 wrote."""
    import pickle

    data = (
        b"\x80\x02}q\x01(U\x01aq\x02]q\x03(K\x05M\x00\x01J\xff\xff\xff\xff\x8a\x02\x00\x01h\x02j\x02\x00\x00\x00e"
        b"U\x01bN\x85U\x01c\x88\x89\x86U\x01dK\x01K\x02K\x03\x87r\x00\x01\x00\x00U\x01e(K\x01tU\x01f)"
        b"uU\x01g](K\x01K\x02e K\x04as."
    ).replace(b" ", b"")
    assert pickles.read(data) == pickle.loads(data, encoding="bytes")
    for end in range(len(data)):
        with pytest.raises(pickles.PickleError):
            pickles.read(data[:end])


@pytest.mark.parametrize("name", [b"os\nsystem\n", b"numpy\nload\n", b"numpy.core.multiarray\nscalar\n"])
@pytest.mark.parametrize("use", [b"", b"U\x04exit\x85R", b"Nb"])
def test_other_names_are_refused_wherever_they_stand(name: bytes, use: bytes) -> None:
    """Also where nothing is done with them."""
    with pytest.raises(pickles.PickleError, match="refused: a name other than those of numpy's arrays"):
        pickles.read(b"\x80\x02}U\x01ac" + name + use + b"s.")


def test_a_small_pickle_of_a_large_tree_is_refused_at_once() -> None:
    """Sixty lists, each twice in the next: written out they have 2 ** 60 entries."""
    bomb = b"\x80\x02}U\x06labels" + b"]" + b"q\x01](h\x01h\x01e" * 60
    began = time.monotonic()
    for end in (b"s.", b"R.", b"b.", b"."):
        with pytest.raises(DataError) as error:
            fileformats.read_cifar_batch(bomb + end)
        assert len(str(error.value)) < 200
    assert time.monotonic() - began < 1


# ---------------------------------------------------------------- archives


def archive_of(folder: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    path = folder / "cifar-100-python.tar.gz"
    with tarfile.open(path, "w:gz") as target:
        for info, content in members:
            info.size = len(content)
            target.addfile(info, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


GOOD = [(member(f"cifar-100-python/{name}"), name.encode()) for name in ("train", "test")]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (member("cifar-100-python/train", tarfile.SYMTYPE, "test"), "is a link"),
        (member("cifar-100-python/train", tarfile.LNKTYPE, "cifar-100-python/test"), "is a link"),
        (member("cifar-100-python/pipe", tarfile.FIFOTYPE), "is a link or a device"),
        (member("/etc/passwd"), "outside the archive's folder"),
        (member("cifar-100-python/../../x"), "outside the archive's folder"),
        (member("..\\x"), "outside the archive's folder"),
    ],
)
def test_links_and_names_outside_the_folder_are_refused(tmp_path: Path, bad: tarfile.TarInfo, reason: str) -> None:
    assert fileformats.read_cifar_archive(archive_of(tmp_path, *GOOD)) == {"train": b"train", "test": b"test"}
    path = archive_of(tmp_path, GOOD[1], (bad, b""), GOOD[0])
    with pytest.raises(DataError, match=reason):
        fileformats.read_cifar_archive(path)


def test_archives_that_unpack_to_more_than_they_can_hold_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fileformats, "CIFAR_BYTES", 100_000)
    path = archive_of(tmp_path, *GOOD, (member("cifar-100-python/more"), bytes(200_000)))
    with pytest.raises(DataError, match="unpacks to more than 100,000 bytes"):
        fileformats.read_cifar_archive(path)
    whole = archive_of(tmp_path, *GOOD).read_bytes()
    for end in (0, 10, len(whole) // 2):
        path.write_bytes(whole[:end])
        with pytest.raises(DataError):
            fileformats.read_cifar_archive(path)


def test_gzip_and_npz_files_that_unpack_to_more_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="more than 1,000 bytes"):
        fileformats.unpacked(gzip.compress(bytes(1001)), 1000)
    assert fileformats.unpacked(gzip.compress(bytes(1000)), 1000) == bytes(1000)
    np.savez_compressed(tmp_path / "large.npz", x=np.zeros(100_000), y=np.zeros(1))
    with pytest.raises(DataError, match="more than 10,000 bytes"):
        fileformats.read_npz(tmp_path / "large.npz", limit=10_000)
    assert len(fileformats.read_npz(tmp_path / "large.npz", ["y"], limit=10_000)["y"]) == 1


@pytest.mark.parametrize("dtype", ["|O", "<U4", "<M8[s]", [("a", "<f8")], "<c16"])
def test_arrays_of_anything_but_real_numbers_are_refused(tmp_path: Path, dtype: object) -> None:
    np.savez(tmp_path / "odd.npz", x=np.zeros(2, np.dtype(dtype)))  # type: ignore[call-overload]
    with pytest.raises(DataError, match="says that it is"):
        fileformats.read_npz(tmp_path / "odd.npz")


def test_an_array_whose_header_asks_for_more_than_its_bytes_is_refused(tmp_path: Path) -> None:
    """Room for what a header claims is not asked for."""
    array = io.BytesIO()
    np.save(array, np.zeros((3, 4)))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", array.getvalue().replace(b"(3, 4)", b"(9, 9)"))
    with pytest.raises(DataError, match="96 bytes says that it is"):
        fileformats.read_npz(tmp_path / "x.npz")


def test_an_idx_header_whose_size_overflows_is_refused() -> None:
    sizes = (2**31).to_bytes(4, "big") * 2 + (4).to_bytes(4, "big")
    with pytest.raises(DataError, match="bytes; there are 16"):
        fileformats.read_idx(b"\x00\x00\x08\x03" + sizes)  # the product is 2 ** 64, which is 0 in 64 bits


def test_files_too_large_to_be_the_published_ones_are_not_read(tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / "cifar-100-python").mkdir(exist_ok=True)
        with open(tmp_path / "cifar-100-python" / name, "wb") as file:
            file.truncate(1 << 40)  # a sparse file of a terabyte
    with pytest.raises(DataError, match="are more than"):
        datasets.load("cifar100", tmp_path)
    assert not datasets.available(tmp_path)[-1].ready


# ---------------------------------------------------------------- downloads


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server on this machine whose only answer is the function that the test gives."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            request.param(self)

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(http.server.ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # a client that goes away is what is tested

    found = Quiet(("127.0.0.1", 0), Handler)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{found.server_port}/x"
    found.shutdown()
    found.server_close()


def cut(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"x" * 10)


def cut_in_a_chunk(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.protocol_version = "HTTP/1.1"
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b"400\r\nshort")
    handler.close_connection = True


def endless(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(10_000):
        handler.wfile.write(b"x" * 1000)


def slow(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(100):
        handler.wfile.write(b"x")
        time.sleep(0.05)


def silent(handler: http.server.BaseHTTPRequestHandler) -> None:
    time.sleep(2)


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (cut, "cut off after 10 of 1,000 bytes"),
        (cut_in_a_chunk, "cut off"),
        (endless, "more than the 50,000 bytes"),
        (slow, "too slow"),
        (silent, "timed out"),
    ],
    indirect=["server"],
)
def test_bad_downloads_end_with_the_documented_error(
    server: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "SECONDS", 0.4)
    monkeypatch.setattr(downloads, "PAUSE", 0.5)
    monkeypatch.setitem(sources.PUBLISHED, "mnist", (sources.Published("x.gz", ("0" * 64,), server, limit=50_000),))
    began = time.monotonic()
    with pytest.raises((DataError, OSError), match=reason):
        datasets.download("mnist", tmp_path)
    assert time.monotonic() - began < 5
    assert not list((tmp_path / "mnist").iterdir())
