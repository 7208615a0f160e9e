"""What was built, looked at again: `python -m tools.site.check site`.

Every link and picture leads to a file of the site, every `#anchor` to an id on that page, no page loads anything from
elsewhere, and every name that an API page asks for is on it. Problems are printed, and the exit status is 1.
"""

import argparse
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("video", "src")}
ADDRESSES = ("http:", "https:", "//")


class Page(HTMLParser):
    """The ids, links and loaded addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag names, links to, or loads."""
        for key, value in attrs:
            if value is None:
                continue
            if key in ("id", "name"):
                self.ids.add(value)
            elif (tag, key) in LOADED and not (tag == "link" and ("rel", "canonical") in attrs):
                self.loaded.append(value)
            elif (tag, key) == ("a", "href"):
                self.links.append(value)


@cache
def page(path: Path) -> Page:
    """A page, read once."""
    return Page(path.read_text(encoding="utf-8"))


def problems(site: Path) -> Iterator[str]:
    """What is wrong with a site, a line each."""
    for path in sorted(site.rglob("*.html")):
        if path.name == "404.html":
            continue  # its links begin with a slash, since it is shown at any address
        name, own = path.relative_to(site).as_posix(), page(path)
        for address in own.loaded:
            if address.startswith(ADDRESSES):
                yield f"{name}: loads {address} from elsewhere"
        for address in [*own.links, *own.loaded]:
            if urlsplit(address).scheme or address.startswith("//"):
                continue
            yield from (f"{name}: {address}: {why}" for why in _wrong(address, path))


def _wrong(address: str, path: Path) -> Iterator[str]:
    """Why a relative address on the page at `path` leads to nothing."""
    parts = urlsplit(address)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        yield "no such file"
    elif parts.fragment and target.suffix == ".html":
        anchor = unquote(parts.fragment)
        if anchor != "__top" and anchor not in page(target).ids:
            yield "no such anchor"


def absent(site: Path, names: set[str]) -> Iterator[str]:
    """The names that no API page of the site has an entry of."""
    ids = {each for path in (site / "api").glob("*.html") for each in page(path).ids}
    yield from sorted(names - ids)


def main(arguments: list[str] | None = None) -> int:
    """Print the problems of a site; 1 if there are any."""
    from tools.site.names import documented, missing

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="the folder that it was built from")
    options = parser.parse_args(arguments)
    site: Path = options.site.resolve()
    names = documented(options.docs / "api")
    found = list(problems(site))
    found += [f"api: {name} has no page" for name in missing(names)]
    found += [f"api: {name} is on no built page" for name in absent(site, names)]
    for line in found:
        print(line)
    print(f"{len(list(site.rglob('*.html')))} pages, {len(names)} names, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
