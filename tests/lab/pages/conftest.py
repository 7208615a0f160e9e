"""Fixtures of the pages' tests: a folder of runs, a browser, and the page in it."""

import pytest

from sketchogd.lab.pages import report
from sketchogd.paper.published import PAPER
from tests.lab.pages import records
from tools import chromium, screenshots


@pytest.fixture
def runs(tmp_path):
    """Three methods on two benchmarks, one with spectra, and a failed run."""
    return records.methods(tmp_path / "runs")


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Headless Chromium."""
    if chromium.path() is None:
        pytest.skip(f"none of {', '.join(chromium.NAMES)} is on the path")
    browser = chromium.Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def page(browser, runs, tmp_path):
    """Opens the page of the runs, its figures drawn."""

    def opened(width=1400, dark=False):
        path = report.write_html(runs, tmp_path / "page.html", "A title & more", PAPER)
        screenshots.show(browser, path.as_uri(), width, dark)
        return path

    return opened
