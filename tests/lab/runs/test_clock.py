"""The clock of a run, on a time that is given to it."""

import pytest
import torch

from sketchogd.lab.runs import clock


@pytest.fixture
def times(monkeypatch):
    """The list from which every look at the time takes the next entry."""
    left: list[float] = []
    monkeypatch.setattr(clock.time, "perf_counter", lambda: left.pop(0))
    return left


def test_time_is_counted_by_kind_and_shared(times):
    times += [0.0, 1.0, 4.0, 10.0, 12.0, 20.0, 21.0, 25.0, 30.0]
    made = clock.Clock("cpu")
    for what in ("train", "evaluate", "train"):
        with made.measuring(what):
            pass
    assert made.spent == {"train": 4.0, "evaluate": 2.0}
    assert made.last("train") == 1.0
    assert made.since("train") == 4.0
    assert made.since("checkpoint") == 30.0
    assert made.last("checkpoint") == 0.0
    assert made.timings() == {"train": 4.0, "evaluate": 2.0, "total": 6.0}
    assert made.timings(4) == {"train": 1.0, "evaluate": 0.5, "total": 1.5}


def test_a_block_that_raises_is_not_counted(times):
    times += [0.0, 1.0, 2.0]
    made = clock.Clock("cpu")

    def failing():
        with made.measuring("train"):
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        failing()
    assert made.spent == {}


def test_a_gpu_is_waited_for_on_both_sides(times, monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waited.append(str(device)))
    times += [0.0, 1.0, 2.0]
    with clock.Clock("cuda:1").measuring("train"):
        assert waited == ["cuda:1"]
    assert waited == ["cuda:1"] * 2
    clock.synchronize(torch.device("cpu"))
    assert len(waited) == 2
