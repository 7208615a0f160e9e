"""Pictures of built pages: `python -m tools.site.screenshots site --out pictures`, wide and narrow, light and dark.

    python -m tools.site.screenshots site quickstart.html budget.html --out pictures
    python -m tools.site.screenshots page.html --out pictures --width 1400 --light

A page that is wider than its window, or that asks for anything from elsewhere, is named, and the exit status is 1.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.site.browser import Browser, chromium

WIDTHS = (1400, 390)
HEIGHT = 900


def pages(target: Path, names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """The pages of a folder, all of them or those named, or one file; each with a name for its pictures."""
    if target.is_file():
        yield target.stem, target
        return
    for path in [target / name for name in names] or sorted(target.rglob("*.html")):
        yield path.relative_to(target).with_suffix("").as_posix().replace("/", "-"), path


def problems(browser: Browser, width: int) -> Iterator[str]:
    """What is wrong with the page that is open in a window of this width."""
    wide = browser.value("document.documentElement.scrollWidth")
    if wide > width:
        yield f"{wide} pixels wide in a window of {width}"
    for address in browser.requested():
        if not address.startswith(("file:", "data:", "blob:", "about:")):
            yield f"asks for {address}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the pictures; 1 if a page has a problem."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path, help="a folder of pages, or one page")
    parser.add_argument("names", nargs="*", help="pages of the folder; without them all")
    parser.add_argument("--out", type=Path, required=True, help="folder for the pictures")
    parser.add_argument("--width", type=int, action="append", help="window width; by default 1400 and 390")
    parser.add_argument("--light", action="store_true", help="light colours only")
    parser.add_argument("--tall", type=int, default=HEIGHT, help="height of the pictures; shorter pages have their own")
    options = parser.parse_args(arguments)
    bad = 0
    with chromium() as browser:
        for name, path in pages(options.target, options.names):
            for width in options.width or WIDTHS:
                for dark in (False,) if options.light else (False, True):
                    browser.size(width, HEIGHT, dark=dark)
                    browser.open(path.resolve().as_uri())
                    browser.value("localStorage.clear()")  # colours that were chosen for the last picture
                    browser.open(path.resolve().as_uri())
                    for problem in problems(browser, width):
                        print(f"{name} at {width}: {problem}")
                        bad += 1
                    if options.tall > HEIGHT:
                        tall = browser.value("document.documentElement.scrollHeight")
                        browser.size(width, min(options.tall, max(HEIGHT, tall)), dark=dark)
                    browser.picture(options.out / f"{name}-{width}{'-dark' if dark else ''}.png")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
