"""The user's folder of compiled code: what is loaded from it, what is built anew, and what happens without one."""

import os
import shutil
import sys
import time
import warnings
from pathlib import Path

import pytest

from sketchogd.errors import ProtectionWarning
from sketchogd.linalg import compiled

COMPILER = shutil.which(os.environ.get("CC", "cc"))
pytestmark = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux", reason="needs a C compiler with OpenMP on Linux"
)


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A file of C, and a compiler that notes each call in the file `calls` before it runs."""
    script = tmp_path / "cc"
    script.write_text(f'#!/bin/sh\necho >> {tmp_path}/calls\nexec {COMPILER} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "rows.c"
    path.write_text("int answer(void) { return 42; }\n")
    return path


def calls(source):
    path = source.with_name("calls")
    return len(path.read_text()) // 2 if path.exists() else 0


def planted(source, number):
    """The bytes of a library that returns another number."""
    other = source.with_name(f"planted-{number}.c")
    other.write_text(f"int answer(void) {{ return {number}; }}\n")
    path = compiled.compiled(COMPILER, other, (), source.parent)
    return path.read_bytes()


def files(source):
    return sorted((source.parent / "cache" / "sketchogd").iterdir())


def test_what_was_compiled_is_found_again(source):
    assert compiled.load(source).answer() == 42
    assert compiled.load(source).answer() == 42
    assert calls(source) == 1
    (path,) = files(source)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    compiled.load(source, ("-DOTHER",))
    source.write_text("int answer(void) { return 43; }\n")
    assert compiled.load(source).answer() == 43
    assert calls(source) == 3


def test_another_compiler_or_processor_is_another_key(source, monkeypatch):
    keys = {compiled.key_of(str(source.with_name("cc")), source, ())}
    os.utime(source.with_name("cc"), (1, 1))
    keys |= {compiled.key_of(str(source.with_name("cc")), source, ())}
    monkeypatch.setattr(compiled, "processor", lambda: "another")
    assert len(keys | {compiled.key_of(str(source.with_name("cc")), source, ())}) == 3


@pytest.mark.parametrize(
    "damage", ["flipped", "cut", "empty", "other contents", "writable", "foreign", "link", "folder"]
)
def test_broken_and_foreign_files_are_not_loaded_but_built_anew(source, damage):
    """Each is a file under the name of the right one; loading a cut one would end the process."""
    assert compiled.load(source).answer() == 42
    (path,) = files(source)
    content = path.read_bytes()
    if damage == "foreign":
        if os.geteuid():
            pytest.skip("only root can give a file away")
        os.chown(path, 12345, 12345)
    elif damage == "writable":
        path.chmod(0o666)
    elif damage == "link":
        path.rename(source.with_name("elsewhere.so"))
        path.symlink_to(source.with_name("elsewhere.so"))
    elif damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.unlink()  # a loaded library is mapped: its file must not change
        forms = {"flipped": flipped, "cut": content[:middle], "empty": b"", "other contents": planted(source, 13)}
        path.write_bytes(forms[damage])
        path.chmod(0o600)
    before = calls(source)
    assert compiled.load(source).answer() == 42
    assert calls(source) == before + 1
    if damage != "folder":  # that one stays in the way, and the library is loaded from elsewhere
        assert compiled.load(source).answer() == 42
        assert calls(source) == before + 1
        assert [each.read_bytes() == content or damage == "other contents" for each in files(source)] == [True]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_from_a_folder_that_others_can_write_nothing_is_loaded(source, mode):
    """A file with the right name, a checksum that fits and the right owner: who can write the folder can make that."""
    folder = source.parent / "cache" / "sketchogd"
    folder.mkdir(parents=True)
    bad = source.with_name("bad.so")
    bad.write_bytes(planted(source, 13))
    compiled.install(bad, folder, compiled.key_of(str(source.with_name("cc")), source, ()))
    assert compiled.load(source).answer() == 13  # it would be loaded from a folder that is safe
    folder.chmod(mode)
    for call in (1, 2):
        with pytest.warns(ProtectionWarning, match="chmod 700"):
            assert compiled.load(source).answer() == 42
        assert calls(source) == call
    assert len(files(source)) == 1
    folder.chmod(0o700)
    folder.parent.chmod(0o777)
    with pytest.warns(ProtectionWarning, match="chmod 700"):
        assert compiled.load(source).answer() == 42


@pytest.mark.parametrize("home", ["none", "unknown user", "a file", "read-only"])
def test_without_a_folder_it_is_compiled_for_this_process_alone(source, monkeypatch, home):
    monkeypatch.delenv("XDG_CACHE_HOME")
    place = source.with_name("home")
    if home == "none":
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(compiled.Path, "home", classmethod(lambda cls: (_ for _ in ()).throw(RuntimeError("none"))))
    elif home == "unknown user":
        monkeypatch.setenv("HOME", "/proc/nobody")
    elif home == "a file":
        place.write_text("")
        monkeypatch.setenv("HOME", str(place))
    else:
        monkeypatch.setenv("HOME", str(place))
        monkeypatch.setattr(compiled, "install", lambda *_: (_ for _ in ()).throw(OSError(30, "read-only")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled.load(source).answer() == 42
        assert compiled.load(source).answer() == 42
    assert calls(source) == 2


def test_a_compiler_that_hangs_is_ended_with_all_that_it_started(source, monkeypatch):
    script, noted = source.with_name("cc"), source.with_name("pid")
    script.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {noted}\nwait\n")
    monkeypatch.setattr(compiled, "SECONDS", 0.5)
    began = time.monotonic()
    with pytest.warns(ProtectionWarning, match=r"did not finish within .* SKETCHOGD_KERNELS=0"):
        assert compiled.load(source) is None
    assert time.monotonic() - began < 10
    child = Path(f"/proc/{noted.read_text().strip()}/stat")
    for _ in range(100):
        if not child.exists() or ") Z " in child.read_text():
            return
        time.sleep(0.02)
    pytest.fail("the compiler's child goes on")


def test_a_build_that_cannot_be_installed_leaves_nothing(source, monkeypatch):
    def refuse(*_):
        raise OSError(28, "no space left")

    monkeypatch.setattr(compiled.os, "replace", refuse)
    assert compiled.load(source).answer() == 42
    assert files(source) == []


def test_the_cache_is_the_users(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert compiled.cache_folder() == Path("/somewhere/sketchogd")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert compiled.cache_folder() == Path.home() / ".cache" / "sketchogd"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert compiled.cache_folder() == Path.home() / ".cache" / "sketchogd"
