"""The pages that say where things are: the files, names and pages that they point to exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import sketchogd

ROOT = Path(__file__).parents[1]
SOURCE = Path(sketchogd.__file__).parent
PAGES = ("docs/architecture.md", "CONTRIBUTING.md")

SPAN = re.compile(r"`([^`\n]+)`")
PLACE = re.compile(r"([\w./-]+(?:\.py|/))(?:: ([\w.]+))?")
"""A file or a folder and, after a colon, a name in the file: `budget.py: memory_for`."""
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


def found(path):
    """A path relative to the package or to the repository; None where there is no such file or folder."""
    whole = [base / path for base in (SOURCE, ROOT)]
    return next((each for each in whole if (each.is_dir() if path.endswith("/") else each.is_file())), None)


@cache
def names(path):
    """What a file defines: functions, classes, constants, and Class.member."""

    def defined(body, prefix):
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from defined(node.body, f"{prefix}{node.name}.")
            for target in getattr(node, "targets", [getattr(node, "target", None)]):
                if isinstance(target, ast.Name):
                    yield prefix + target.id

    return frozenset(defined(ast.parse(path.read_text(encoding="utf-8")).body, ""))


def wrong_places(text):
    """The places in backticks that do not exist."""
    for span in SPAN.findall(text):
        place = PLACE.fullmatch(span)
        if place is None:
            continue
        path = found(place[1])
        if path is None or (place[2] is not None and place[2] not in names(path)):
            yield span


def wrong_links(page, text):
    """The links to files, and to headings of pages, that lead nowhere; code has none."""
    for target, heading in LINK.findall(re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)):
        path = (page.parent / target).resolve() if target else page
        if not path.exists():
            yield target
        elif heading:
            titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            if heading not in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}:
                yield f"{target}#{heading}"


@pytest.mark.parametrize("name", PAGES)
def test_everything_that_a_page_points_to_exists(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert sum(PLACE.fullmatch(span) is not None for span in SPAN.findall(text)) > 10
    assert list(wrong_places(text)) == []
    assert list(wrong_links(ROOT / name, text)) == []


@pytest.mark.parametrize("name", ["docs/reliability.md", "SECURITY.md"])
def test_places_and_links_of_pages_with_few_of_them_exist(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert list(wrong_places(text)) == []
    assert list(wrong_links(ROOT / name, text)) == []


def test_what_does_not_exist_is_seen():
    text = "`budget.py: memory_for` `ledger.py: Ledger.of` `memory/` `memory.observe`"
    text += " `budget.py: nothing` `nothing.py` `nothing/` `protect.py/`"
    assert list(wrong_places(text)) == ["budget.py: nothing", "nothing.py", "nothing/", "protect.py/"]
    links = "[a](docs/lab.md#methods) [b](docs/lab.md#nothing) [c](nothing.md) [d](https://nothing)"
    assert list(wrong_links(ROOT / "README.md", links)) == ["docs/lab.md#nothing", "nothing.md"]


def test_every_folder_of_the_package_is_on_the_page():
    text = (ROOT / PAGES[0]).read_text(encoding="utf-8") + (ROOT / "docs/images/architecture.svg").read_text()
    for path in SOURCE.rglob("__init__.py"):
        folder = path.parent.relative_to(SOURCE).as_posix()
        assert folder == "." or f"{folder}/" in text, f"docs/architecture.md does not name {folder}/"


EVERY_PAGE = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.relative_to(ROOT / "docs").as_posix())
def test_pages_have_python_that_parses_and_links_that_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        ast.parse(block)
    assert list(wrong_links(page, text)) == []


def test_every_page_is_in_the_navigation():
    named = set(re.findall(r"^ +- (?:.*: )?([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    there = {page.relative_to(ROOT / "docs").as_posix() for page in EVERY_PAGE}
    assert there == {name for name in named if not name.startswith("repository/")}
