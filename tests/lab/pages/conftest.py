"""Fixtures of the pages' tests: a folder of runs, and a browser."""

import pytest

from tests.lab.pages import records
from tools import chromium


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
