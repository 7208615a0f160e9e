"""Saving: permissions, links, faults of the disk, and what killed saves leave."""

import errno
import os
import stat
import subprocess
import sys
import time

import pytest

from sketchogd.storage import atomic

posix = pytest.mark.skipif(os.name == "nt", reason="permissions and links of POSIX")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@posix
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_permissions_that_the_umask_leaves(umask, tmp_path):
    before = os.umask(umask)
    try:
        atomic.write_bytes(tmp_path / "new", b"x")
        (tmp_path / "plain").write_bytes(b"x")
    finally:
        os.umask(before)
    assert mode(tmp_path / "new") == mode(tmp_path / "plain") == 0o666 & ~umask


@posix
@pytest.mark.parametrize("kept", [0o600, 0o640, 0o400, 0o664])
def test_an_existing_file_keeps_its_permissions(kept, tmp_path):
    path = tmp_path / "m"
    path.write_bytes(b"old")
    path.chmod(kept)
    with atomic.replacing(path) as temporary:
        temporary.write_bytes(b"new")
        assert mode(temporary) & ~kept & 0o077 == 0  # nobody reads it before it is done
    assert (path.read_bytes(), mode(path)) == (b"new", kept)


@posix
def test_a_link_is_followed_and_stays(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "target").write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to("elsewhere/target")
    atomic.write_bytes(link, b"new")
    assert link.is_symlink()
    assert (folder / "target").read_bytes() == b"new"
    dangling = tmp_path / "dangling"
    dangling.symlink_to("elsewhere/made")
    atomic.write_bytes(dangling, b"new")
    assert dangling.is_symlink()
    assert (folder / "made").read_bytes() == b"new"
    assert {path.name for path in folder.iterdir()} == {"target", "made"}


@pytest.mark.parametrize("length", [1, 200, 240, 255])
def test_every_name_that_a_file_system_takes_can_be_written(length, tmp_path):
    path = tmp_path / ("ä" + "x" * (length - 2) if length > 1 else "x")
    for content in (b"old", b"new"):
        atomic.write_bytes(path, content)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_says_so(name, tmp_path, monkeypatch):
    path = tmp_path / "m"
    path.write_bytes(b"old")

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, name, full)
    with pytest.raises(
        OSError, match=r"No space left on device.*a file that was there is as it was.*free some"
    ) as caught:
        atomic.write_bytes(path, b"new")
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@posix
def test_paths_that_cannot_be_written_are_said(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, kind, match in [
        (tmp_path, IsADirectoryError, "it is a folder; add a file name"),
        (tmp_path / "none" / "m", FileNotFoundError, "there is no folder .* make it first"),
        (tmp_path / ("x" * 300), OSError, "choose a shorter name"),
        (tmp_path / "pipe", OSError, "a device or a pipe"),
    ]:
        with pytest.raises(kind, match=match):
            atomic.write_bytes(atomic.Path(path), b"new")
        with pytest.raises(kind, match=match):
            atomic.require_writable(path)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


HELD = """
import sys, time
from pathlib import Path
from sketchogd.storage import atomic
with atomic.replacing(Path(sys.argv[1])) as temporary:
    temporary.write_bytes(b"half")
    print(temporary, flush=True)
    time.sleep(60)
"""


@posix
def test_what_killed_saves_leave_goes_and_what_others_write_stays(tmp_path):
    path = tmp_path / "m"

    def start():
        process = subprocess.Popen([sys.executable, "-c", HELD, str(path)], stdout=subprocess.PIPE, text=True)
        return process, atomic.Path(process.stdout.readline().strip())

    killed, left = start()
    killed.kill()
    killed.wait()
    killed.stdout.close()
    running, used = start()  # which cleans up already
    assert not left.exists()
    not_ours = [
        tmp_path / name for name in (".m.notes.tmp", ".other.0123abcd-1-0123456789abcdef.tmp", ".m.tmp", "m.tmp")
    ]
    elsewhere = tmp_path / ".m.0123abcd-1-0123456789abcdef.tmp"  # of another machine, which may be at work
    ancient = tmp_path / ".m.abcd_123.tmp"  # as version 0.1 named them
    for each in (*not_ours, elsewhere, ancient):
        each.write_bytes(b"half")
    os.utime(ancient, (time.time() - 2 * atomic.OLD,) * 2)
    atomic.write_bytes(path, b"new")
    assert used.exists()
    assert elsewhere.exists()
    assert all(each.exists() for each in not_ours)
    assert not ancient.exists()
    running.kill()
    running.wait()
    running.stdout.close()


@posix
@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="needs the rights to become somebody else")
def test_without_rights_it_is_said_who_may(tmp_path):
    from sketchogd import storage

    path = tmp_path / "m"
    path.write_bytes(b"secret")
    path.chmod(0o600)
    tmp_path.chmod(0o755)
    for parent in list(tmp_path.parents)[:2]:
        parent.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(PermissionError, match="you may not read this file"):
            storage.read(path)
        with pytest.raises(PermissionError, match="you may not write there"):
            atomic.write_bytes(path, b"new")
    finally:
        os.seteuid(0)
    assert path.read_bytes() == b"secret"
