"""Screenshots of the report page: for docs/images, and all widths and colours for the eye.

python -m tools.screenshots sketchogd-demo          # docs/images/report.png and report-phone.png, of the demo's runs
python -m tools.screenshots RUNS --look FOLDER      # the whole page at 1400 and 390 pixels, light and dark, into FOLDER

They need Chromium; --out names another folder than docs/images.
"""

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sketchogd.lab.pages.report import write_html
from sketchogd.paper.published import PAPER
from sketchogd.storage import atomic
from tools import chromium

if TYPE_CHECKING:
    from PIL import Image

DESK, PHONE = 1400, 390
COLOURS = 256
"""Of the images in the docs; the page has few colours, and so many take half of the space."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the screenshots that the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.screenshots", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, help="a folder with run folders or bundles at or below it")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="where the images of the docs go")
    parser.add_argument("--look", type=Path, help="write whole pages into this folder instead")
    options = parser.parse_args(arguments)
    if chromium.path() is None:
        print(f"none of {', '.join(chromium.NAMES)} is on the path; install Chromium", file=sys.stderr)
        return 2
    for path in look(options.runs, options.look) if options.look else write(options.runs, options.out):
        print(path)
    return 0


def write(runs: Path, out: Path) -> list[Path]:
    """The two images of the docs: the page on a desk down to the matrices, and the first four screens of a phone."""
    from PIL import Image  # only here: drawing the pages of the tests does without

    paths = [out / "report.png", out / "report-phone.png"]
    with opened(runs) as (browser, url):
        show(browser, url, DESK)
        bottom = browser.js("document.querySelector('[data-kind=matrix]').getBoundingClientRect().bottom")
        browser.screenshot(paths[0], (0, 0, DESK, bottom + 16))
        show(browser, url, PHONE)
        browser.screenshot(paths[1], (0, 0, PHONE, 4 * browser.js("innerHeight")))
    _save(Image.open(paths[0]), paths[0])
    _save(_side_by_side(Image.open(paths[1]), 4), paths[1])
    return paths


def look(runs: Path, out: Path) -> list[Path]:
    """The whole page at both widths in both colours."""
    paths = []
    with opened(runs) as (browser, url):
        for width in (DESK, PHONE):
            for dark in (False, True):
                show(browser, url, width, dark)
                paths.append(out / f"page-{width}-{'dark' if dark else 'light'}.png")
                browser.screenshot(paths[-1], whole=True)
    return paths


def _side_by_side(image: "Image.Image", count: int, gap: int = 24) -> "Image.Image":
    """A tall image cut into pieces of equal height, which stand beside each other."""
    from PIL import Image

    width, height = image.size[0], image.size[1] // count
    out = Image.new("RGB", (count * width + (count - 1) * gap, height), "#d9dad6")
    for i in range(count):
        out.paste(image.crop((0, i * height, width, (i + 1) * height)), (i * (width + gap), 0))
    return out


def _save(image: "Image.Image", path: Path) -> None:
    """Write an image with few colours as PNG, whole or not at all."""
    from PIL import Image

    few = image.convert("RGB").quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    few.save(buffer, "png", optimize=True)
    atomic.write_bytes(path, buffer.getvalue())


@contextlib.contextmanager
def opened(runs: Path) -> Iterator[tuple[chromium.Browser, str]]:
    """A browser, and the address of the report page of the runs."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page = write_html(runs, Path(folder) / "report.html", reference=PAPER)
        browser = chromium.Browser(Path(folder) / "profile")
        try:
            yield browser, page.as_uri()
        finally:
            browser.close()


def show(browser: chromium.Browser, url: str, width: int, dark: bool = False) -> None:
    """Open the page with all of its figures drawn, scrolled to the top."""
    browser.open(url, width, dark)
    draw(browser)


def draw(browser: chromium.Browser) -> None:
    """Wait until the figures of every benchmark shown are drawn, which they are when they come near the window."""
    shown = "[...document.querySelectorAll('.bench:not([hidden])')]"
    for i in range(browser.js(f"{shown}.length")):
        browser.js(f"{shown}[{i}].scrollIntoView()")
        browser.until(f"{shown}[{i}].dataset.width")
    browser.js("scrollTo(0, 0)")
    browser.settle()


if __name__ == "__main__":
    sys.exit(main())
