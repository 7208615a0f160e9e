"""The documentation site: links to files of the repository, lists, examples, names, what is checked, and a browser."""

import shutil
from pathlib import Path

import pytest

from tools.site import browser, check, examples, lists, names, repository, screenshots

ROOT = Path(__file__).parents[2]


@pytest.fixture
def small(tmp_path):
    """A repository with two pages, one in a folder, and what they link to."""
    for path, text in {
        "docs/index.md": "[r](recipes/a.md) [c](../CHANGELOG.md#new) [gone](../gone.py) [web](https://x.org)",
        "docs/recipes/a.md": "[e](../../examples/e.py) and `[x](../../no.py)`\n\n```\n[e](../../examples/e.py)\n```\n",
        "examples/e.py": '"""```"""\n',
        "CHANGELOG.md": "[data](results/) [page](docs/recipes/a.md)",
        "CONTRIBUTING.md": "",
        "SECURITY.md": "",
        "results/one.json": "{}",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_files_that_pages_link_to_become_pages(small):
    found = repository.outside(small)
    assert found == ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/e.py", "results/"]
    assert "````python\n" in repository.page("examples/e.py", small)
    assert "`one.json`" in repository.page("results/", small)


def test_links_lead_to_these_pages(small):
    def led(place):
        return repository.with_links((small / place).read_text(), place, small)

    assert led("docs/index.md") == (
        "[r](recipes/a.md) [c](repository/CHANGELOG.md#new) [gone](../gone.py) [web](https://x.org)"
    )
    before, code = led("docs/recipes/a.md").split("```\n", 1)
    assert before.startswith("[e](../repository/examples/e.py.md) and")
    assert code == "[e](../../examples/e.py)\n```\n"
    assert led("CHANGELOG.md") == "[data](results/index.md) [page](../recipes/a.md)"


def test_a_list_after_a_paragraph_is_a_list():
    assert lists.spaced("a:\n- b\n- c\n\nd") == "a:\n\n- b\n- c\n\nd"
    assert lists.spaced("a:\n - b\n   c\n - d") == "a:\n\n- b\n  c\n- d"
    assert lists.spaced("```\na:\n- b\n```") == "```\na:\n- b\n```"
    assert lists.spaced("* a\n\n* b\n\n  more\n\nend\n- c") == "* a\n\n* b\n\n  more\n\nend\n\n- c"
    assert lists.spaced("2 - 1\nis 1") == "2 - 1\nis 1"


def test_every_public_name_has_a_page():
    found = names.documented(ROOT / "docs" / "api")
    assert list(names.missing(found)) == []
    assert list(names.unknown(found)) == []


def test_a_name_without_a_page_is_seen():
    found = names.documented(ROOT / "docs" / "api")
    assert list(names.missing(found - {"sketchogd.protect.protect"})) == ["sketchogd.protect"]
    assert "sketchogd.theory.singular_values" in names.missing(found - {"sketchogd.theory.metric"})
    assert list(names.missing(found - {"sketchogd.distributed.cost"})) == ["sketchogd.distributed.cost"]
    assert list(names.unknown({"sketchogd.protect.nothing", "sketchogd.protect.protect"})) == [
        "sketchogd.protect.nothing"
    ]


def test_what_is_wrong_with_a_built_site_is_found(tmp_path):
    head = '<link rel="stylesheet" href="https://elsewhere.org/a.css"><script src="own.js"></script>'
    links = '<a href="b.html#there">1</a><a href="b.html#gone">2</a><a href="c.html">3</a><a href="https://x.org">4</a>'
    (tmp_path / "a.html").write_text(head + links + '<img src="b%20c.png"><a href="#own">5</a>')
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1><a href=".">up</a>')
    (tmp_path / "b c.png").touch()
    (tmp_path / "index.html").touch()
    assert list(check.problems(tmp_path)) == [
        "a.html: loads https://elsewhere.org/a.css from elsewhere",
        "a.html: b.html#gone: no such anchor",
        "a.html: c.html: no such file",
        "a.html: #own: no such anchor",
        "a.html: own.js: no such file",
    ]
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "x.html").write_text('<h2 id="one">one</h2>')
    assert list(check.absent(tmp_path, {"one", "two"})) == ["two"]


def test_examples_in_docstrings_are_fenced():
    text = examples.fenced("Add.\n>>> 1 + 1\n2\n\nArgs:\n    x: a\n\n    >>> x\n    1")
    assert text == ("Add.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nArgs:\n    x: a\n\n    ```pycon\n    >>> x\n    1\n    ```")


@pytest.mark.skipif(not any(map(shutil.which, browser.NAMES)), reason="no chromium: apt-get install chromium")
def test_pictures_of_a_page(tmp_path, capsys):
    wide = tmp_path / "wide.html"
    wide.write_text('<meta name="viewport" content="width=device-width"><div style="width: 600px">wide</div>')
    out = tmp_path / "out"
    assert screenshots.main([str(wide), "--out", str(out), "--width", "700", "--light"]) == 0
    assert capsys.readouterr().out == ""
    assert (out / "wide-700.png").read_bytes()[:4] == b"\x89PNG"
    assert screenshots.main([str(wide), "--out", str(out), "--width", "390"]) == 1
    assert "wide at 390: 608 pixels wide in a window of 390" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {"wide-700.png", "wide-390.png", "wide-390-dark.png"}


def test_without_a_browser_there_is_a_sentence(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(browser.BrowserError, match="apt-get install chromium"), browser.chromium():
        pass
