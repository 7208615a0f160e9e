"""Files outside of docs/ that pages link to become pages of the site, so that their links work there too.

`docs/recipes/peft.md` links to `../../examples/sequential_lora.py`. In a repository browser that is the file; on the
site it is the page `repository/examples/sequential_lora.py.md` with the file's text. A place is a path from the root of
the repository, a uri that of a page below docs/.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s#]*)(#[^)\s]*)?(\))")
FENCE = re.compile(r"^ *(```|~~~)")
FOLDER = "repository"
PROJECT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Always there, and in the navigation."""
SHOWN = 200_000
"""Longer files are named with their size, not shown."""
LANGUAGES = {".py": "python", ".json": "json", ".toml": "toml", ".sh": "bash", ".c": "c", ".js": "javascript"}


def uri_of(place: str) -> str:
    """Where a place is on the site: pages of docs/ at the top, everything else below `repository/`.

    >>> uri_of("docs/lab.md"), uri_of("CHANGELOG.md"), uri_of("examples/ddp.py"), uri_of("results/")
    ('lab.md', 'repository/CHANGELOG.md', 'repository/examples/ddp.py.md', 'repository/results/index.md')
    """
    if place.startswith("docs/") and not place.endswith("/"):
        return place.removeprefix("docs/")
    if place.endswith("/"):
        return f"{FOLDER}/{place}index.md"
    return f"{FOLDER}/{place}" if place.endswith(".md") else f"{FOLDER}/{place}.md"


def place_of(uri: str) -> str:
    """The place of a page with prose: docs/ or a Markdown file of the repository."""
    return uri.removeprefix(FOLDER + "/") if uri.startswith(FOLDER + "/") else "docs/" + uri


def links(text: str, place: str, root: Path) -> Iterator[str]:
    """The places that the page at `place` links to, those of folders with a slash at the end."""
    for line, code in _lines(text):
        if not code:
            for match in LINK.finditer(line):
                if (found := _target(match[2], place, root)) is not None:
                    yield found


def with_links(text: str, place: str, root: Path) -> str:
    """The page at `place` with every link to a file of the repository led to the page of that file."""
    here = posixpath.dirname(uri_of(place))

    def replaced(match: re.Match[str]) -> str:
        found = _target(match[2], place, root)
        if found is None:
            return match[0]
        return f"{match[1]}{posixpath.relpath(uri_of(found), here or '.')}{match[3] or ''}{match[4]}"

    return "\n".join(line if code else LINK.sub(replaced, line) for line, code in _lines(text))


def outside(root: Path) -> list[str]:
    """Every place outside of docs/ that the site shows: what its pages link to, and what those link to."""
    waiting = [f"docs/{path.relative_to(root / 'docs').as_posix()}" for path in sorted((root / "docs").rglob("*.md"))]
    waiting += PROJECT
    seen = set(waiting)
    while waiting:
        place = waiting.pop()
        if place.endswith(".md"):
            new = set(links((root / place).read_text(encoding="utf-8"), place, root)) - seen
            waiting += sorted(new)
            seen |= new
    return sorted(place for place in seen if not place.startswith("docs/"))


def page(place: str, root: Path) -> str:
    """The page of a place outside of docs/: prose as it is, a file as a block of code, a folder as a list."""
    path = root / place
    if place.endswith(".md"):
        return path.read_text(encoding="utf-8")
    if path.is_dir():
        return _page(place, "\n".join(f"* `{name}`" for name in _names(path.iterdir())))
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return _page(place, f"{path.stat().st_size:,} bytes, not text.")
    if len(text) > SHOWN:
        return _page(place, f"{len(text):,} characters, too long to be shown here.")
    return _page(place, f"````{LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n````")


def _page(place: str, body: str) -> str:
    """A page that searches leave out."""
    return f"---\nsearch:\n  exclude: true\n---\n\n# {place}\n\n{body}\n"


def _names(paths: Iterable[Path]) -> list[str]:
    return sorted(path.name + "/" * path.is_dir() for path in paths if not path.name.startswith((".", "__")))


def _target(target: str, place: str, root: Path) -> str | None:
    """The place that a link names; None for other addresses, and for links that lead to nothing."""
    if not target or ":" in target or target.startswith("/"):
        return None
    found = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
    if found.startswith("..") or not (root / found).exists():
        return None
    return found + "/" if (root / found).is_dir() else found


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it belongs to a block of code."""
    code = False
    for line in text.split("\n"):
        fence = FENCE.match(line) is not None
        yield line, code or fence
        code ^= fence
