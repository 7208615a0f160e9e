"""What a release consists of, checked: `make release-check`, or `python -m tools.release_check` with build and twine.

Wheel and sdist are built, `twine check` reads them, the wheel is installed into a clean environment under the
constraints, and from there, outside of the clone, the quickstart of the README and the command line are run.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

NEEDED = ("py.typed", "lab/data/mnist_subset.npz", "linalg/rows.c", "lab/pages/assets/page.html", "cli/app.py")
"""Files of the package without which it does not work as documented; every other tracked one must be there as well."""

QUICKSTART = """
import torch

import sketchogd as so

assert "site-packages" in so.__file__, so.__file__
namespace = {{}}
exec(compile({code!r}, "README.md", "exec"), namespace)
if "train" in namespace:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    tasks = [[(torch.randn(10, 8), torch.randint(0, 3, (10,)))] for _ in range(2)]
    print(namespace["train"](model, tasks, so.LayerMemory(8), epochs=2))
"""


def quickstart(readme: str) -> str:
    """A program that runs the first Python block of the README, and its function `train`, where it has one.

    Raises:
        ValueError: there is no such block.
    """
    found = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    if found is None:
        raise ValueError("README.md has no ```python block; the quickstart begins with one")
    return QUICKSTART.format(code=found[1])


def tracked(*more: str) -> list[str]:
    """The files that git tracks, relative to the root; with "--others" those it does not ignore as well."""
    words = ["git", "ls-files", "--cached", *more, "--exclude-standard"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def in_wheel(path: Path) -> set[str]:
    """The names of the files in a wheel."""
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def in_sdist(path: Path) -> set[str]:
    """The names of the files in a source distribution, below its one folder."""
    with tarfile.open(path) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def wrong_in_wheel(names: set[str], files: list[str]) -> list[str]:
    """What is missing from a wheel, and what should not be in it.

    Args:
        names: its files.
        files: those that git tracks.
    """
    package = {f"sketchogd/{name}" for name in NEEDED}
    package |= {name.removeprefix("src/") for name in files if name.startswith("src/sketchogd/")}
    said = re.compile(r"sketchogd-[^/]+\.dist-info/(METADATA|WHEEL|RECORD|entry_points\.txt|licenses/LICENSE)")
    found = [f"missing: {name}" for name in sorted(package - names)]
    found += [f"should not be there: {name}" for name in sorted(names - package) if not said.fullmatch(name)]
    return found + (["missing: licenses/LICENSE"] if not any(n.endswith("licenses/LICENSE") for n in names) else [])


def wrong_in_sdist(names: set[str], files: list[str]) -> list[str]:
    """What is missing from a source distribution, and what should not be in it: all that is tracked, and PKG-INFO."""
    wanted = {name for name in files if not name.startswith(".ci/")}
    return [f"missing: {name}" for name in sorted(wanted - names)] + [
        f"should not be there: {name}" for name in sorted(names - wanted - {"PKG-INFO"})
    ]


def main() -> None:
    """Build, check, install, run."""
    parser = argparse.ArgumentParser(prog="python -m tools.release_check", description=__doc__)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "release", help="a folder that is made anew")
    parser.add_argument("--constraints", type=Path, default=ROOT / "constraints.txt")
    options = parser.parse_args()
    shutil.rmtree(options.work, ignore_errors=True)
    dist, clean = options.work / "dist", options.work / "clean"
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(ROOT))
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    _run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist))
    wrong = wrong_in_wheel(in_wheel(wheel), tracked()) + wrong_in_sdist(in_sdist(sdist), tracked())
    if wrong:
        raise SystemExit("\n".join(wrong))
    venv.create(clean, with_pip=True)
    pip = [str(clean / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    _run(*pip, "install", "--constraint", str(options.constraints), str(wheel))
    program = options.work / "quickstart.py"
    program.write_text(quickstart((ROOT / "README.md").read_text(encoding="utf-8")), encoding="utf-8")
    _run(str(clean / "bin" / "python"), str(program), cwd=options.work)
    small = ["--tasks", "2", "--epochs", "1", "--n-train", "200", "--n-test", "100"]
    for words in (["--version"], ["data", "--format", "csv"], ["run", "split-mnist", "layer-memory", *small]):
        _run(str(clean / "bin" / "sketchogd"), *words, cwd=options.work)
    print(f"{wheel.name} and {sdist.name} are in {dist}")


def _run(*words: str, cwd: Path = ROOT) -> None:
    print("$", " ".join(words), flush=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(words, cwd=cwd, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode}: {' '.join(words)}")


if __name__ == "__main__":
    main()
