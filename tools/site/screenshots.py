"""Pictures of built pages: `python -m tools.site.screenshots site --out pictures`, wide and narrow, light and dark.

    python -m tools.site.screenshots site quickstart.html budget.html --out pictures
    python -m tools.site.screenshots page.html --out pictures --width 1400 --light

A folder is served to the browser from this machine, as search needs it. A page that is wider than its window, or that
asks for anything from elsewhere, is named, and the exit status is 1.
"""

import argparse
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tools.site.browser import Browser, chromium

WIDTHS = (1400, 390)
HEIGHT = 900


class Silent(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder on this machine, as long as the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def pages(target: Path, names: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """The pages of a folder, all of them or those named, or one file: a name for its pictures, and its address."""
    if target.is_file():
        yield [(target.stem, target.resolve().as_uri())]
        return
    with served(target) as address:
        found = names or [path.relative_to(target).as_posix() for path in sorted(target.rglob("*.html"))]
        yield [(name.removesuffix(".html").replace("/", "-"), address + name) for name in found]


def problems(browser: Browser, width: int) -> Iterator[str]:
    """What is wrong with the page that is open in a window of this width."""
    wide = browser.value("document.documentElement.scrollWidth")
    if wide > width:
        yield f"{wide} pixels wide in a window of {width}"
    for address in browser.requested():
        if not address.startswith(("file:", "data:", "blob:", "about:", "http://127.0.0.1:")):
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
    with chromium() as browser, pages(options.target, options.names) as found:
        for name, address in found:
            for width in options.width or WIDTHS:
                for dark in (False,) if options.light else (False, True):
                    browser.size(width, HEIGHT, dark=dark)
                    browser.open(address)
                    browser.value("localStorage.clear()")  # colours that were chosen for the last picture
                    browser.open(address)
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
