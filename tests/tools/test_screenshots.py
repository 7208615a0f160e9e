"""The images of the report page: taken by Chromium, of the sizes the docs show, and small."""

import numpy as np
import pytest

from sketchogd.lab.records import RunFolder
from tools import chromium, screenshots

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def runs(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "one")
    folder.start({"benchmark": "my stream", "method": "sgd", "seed": 0})
    folder.save_accuracy(np.array([[0.9, np.nan], [0.5, 0.8]]))
    folder.finish(ledger={"nbytes": 0, "entries": []})
    return tmp_path / "runs"


def pixels(path):
    """The brightness of every pixel."""
    with Image.open(path) as image:
        return np.asarray(image.convert("L"))


def test_without_chromium_it_says_what_is_missing(runs, monkeypatch, capsys):
    monkeypatch.setattr(chromium, "path", lambda: None)
    assert screenshots.main([str(runs)]) == 2
    assert "install Chromium" in capsys.readouterr().err


@pytest.mark.skipif(chromium.path() is None, reason=f"none of {', '.join(chromium.NAMES)} is on the path")
def test_images_have_the_widths_of_a_desk_and_of_four_phones(runs, tmp_path):
    assert screenshots.main([str(runs), "--out", str(tmp_path)]) == 0
    assert pixels(tmp_path / "report.png").shape[1] == 1400
    assert pixels(tmp_path / "report-phone.png").shape == (900, 4 * 390 + 3 * 24)
    assert screenshots.main([str(runs), "--look", str(tmp_path / "look")]) == 0
    shots = {path.stem: pixels(path) for path in (tmp_path / "look").iterdir()}
    assert sorted(shots) == ["page-1400-dark", "page-1400-light", "page-390-dark", "page-390-light"]
    for name, shot in shots.items():
        assert shot.shape[1] == int(name.split("-")[1])
        assert (shot.mean() < 100) == ("dark" in name)
