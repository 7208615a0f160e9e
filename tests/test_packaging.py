"""The package as others get it: what wheel and sdist contain, one version, a citation, and constraints that fit."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import sketchogd
from tools import release_check

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    tomllib = None

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A wheel and an sdist of this tree, built without network."""
    pytest.importorskip("hatchling", reason="hatchling builds the package; `make` installs it")
    try:
        release_check.tracked()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a clone: what should be in the package is what git tracks")
    out = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def test_the_wheel_has_the_package_and_nothing_else(built):
    names = release_check.in_wheel(built[0])
    assert release_check.wrong_in_wheel(names, release_check.tracked("--others")) == []
    assert len(names) > 200


def test_the_sdist_has_all_that_is_tracked(built):
    assert release_check.wrong_in_sdist(release_check.in_sdist(built[1]), release_check.tracked("--others")) == []


def test_files_that_are_missing_or_strange_are_named():
    files = ["src/sketchogd/__init__.py", "tests/test_packaging.py", ".ci/run"]
    whole = {f"sketchogd/{name}" for name in (*release_check.NEEDED, "__init__.py")}
    whole |= {"sketchogd-1.dist-info/METADATA", "sketchogd-1.dist-info/licenses/LICENSE"}
    assert release_check.wrong_in_wheel(whole, files) == []
    found = release_check.wrong_in_wheel({*whole, "tests/test_packaging.py"} - {"sketchogd/py.typed"}, files)
    assert found == ["missing: sketchogd/py.typed", "should not be there: tests/test_packaging.py"]
    assert release_check.wrong_in_wheel(whole - {"sketchogd-1.dist-info/licenses/LICENSE"}, files) != []
    assert release_check.wrong_in_sdist({"PKG-INFO", *files[:2]}, files) == []
    assert release_check.wrong_in_sdist({"runs/x"}, files[:1]) == [
        f"missing: {files[0]}",
        "should not be there: runs/x",
    ]


def test_what_the_package_says_of_itself(built):
    import zipfile

    with zipfile.ZipFile(built[0]) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        said = archive.read(name).decode()
        (entry,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
        assert "sketchogd = sketchogd.cli:app" in archive.read(entry).decode()
    assert f"\nVersion: {sketchogd.__version__}\n" in said
    assert "\nLicense-Expression: Apache-2.0\n" in said
    assert "\nClassifier: Typing :: Typed\n" in said
    assert "\nProject-URL: Paper, " in said
    assert "\nRequires-Dist: torch>=2.6\n" in said


def test_the_version_is_written_in_one_place_and_released_in_the_changelog():
    version = sketchogd.__version__
    assert "version =" not in (ROOT / "pyproject.toml").read_text().split("[project.scripts]")[0]
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert released[0] == version
    cited = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {version}\n" in cited
    assert re.search(r"^date-released: (.*)$", cited, re.M)[1] in (ROOT / "CHANGELOG.md").read_text()


def test_the_citation_is_of_the_software_and_of_the_paper():
    yaml = pytest.importorskip("yaml", reason="PyYAML reads CITATION.cff")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "version"} <= cited.keys()
    paper = cited["preferred-citation"]
    assert paper["title"] == "SketchOGD: Memory-Efficient Continual Learning"
    named = [f"{author['given-names']} {author['family-names']}" for author in paper["authors"]]
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert paper["title"] in readme
    assert ", ".join(named) in readme


def pinned(name):
    lines = (ROOT / name).read_text().splitlines()
    return dict(line.lower().split("==") for line in lines if "==" in line and not line.startswith("#"))


@pytest.mark.skipif(tomllib is None, reason="Python 3.10 has no tomllib")
def test_the_lowest_constraints_are_the_lowest_that_are_promised():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["lab"], "pytest>=8"]
    lowest, tested = pinned("constraints-lowest.txt"), pinned("constraints.txt")
    for requirement in asked:
        name, _, least = requirement.partition(">=")
        found = lowest[name.lower()].split(".")
        assert found[: len(least.split("."))] == least.split("."), f"{requirement}: {lowest[name.lower()]}"
        assert name.lower() in tested


def test_the_quickstart_is_the_first_block_of_the_readme():
    program = release_check.quickstart("# x\n\n```python\nANSWER = 42\n```\n\n```python\n1 / 0\n```\n")
    assert "ANSWER = 42" in program
    assert "1 / 0" not in program
    with pytest.raises(ValueError, match="no ```python block"):
        release_check.quickstart("# x\n")


def test_the_quickstart_runs(tmp_path):
    program = release_check.quickstart((ROOT / "README.md").read_text(encoding="utf-8"))
    program = program.replace('assert "site-packages" in so.__file__, so.__file__', "")
    (tmp_path / "quickstart.py").write_text(program, encoding="utf-8")
    done = subprocess.run([sys.executable, "quickstart.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
