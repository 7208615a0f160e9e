"""Settings that are not the same in all processes are named in all of them, at once."""

import pytest
import torch

from sketchogd.distributed import agreement

from . import workers
from .processes import TIMEOUT, together

EXPECTED = {
    "every": ("every is 1 in process 0, 2 in process 1",),
    "output": ("output is", "_first_sum in process 0", "_last_sum in process 1"),
    "shard": ("shard is false in process 0, true in process 1",),
    "seed": ("memory is ProductSketch(", "seed=0", "seed=1"),
    "rule": ("memory is GradientMemory(", "in process 0", "strength=3.0"),
    "kind": ("LayerMemory(3", "in process 1"),
    "budget": ('budget is 9000 in process 0, "25%" in process 1',),
    "strength": ("strength is 2.0 in process 0, 3.0 in process 1",),
    "optimizer": ("SGD in process 0", "RMSprop in process 1"),
    "shapes": ("parameters is", "0.weight (7, 6)", "0.weight (8, 6)"),
    "one of many": ("30.weight (2, 2) torch.float32", "30.weight (3, 2) torch.float32"),
    "parameters": ("parameters is", "in process 1"),
    "version": ('sketchogd is "0', '"9.9" in process 1'),
}
"""What the message says, by what process 1 has otherwise."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return together(workers.disagreements, 2, tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("case", EXPECTED)
def test_a_setting_that_differs_is_named_in_every_process_at_once(found, case):
    for process in found:
        message, seconds = process[case]
        assert message.startswith("all 2 processes must protect the same way, but ")
        for words in EXPECTED[case]:
            assert words in message
        assert seconds < TIMEOUT / 3
        assert len(message) < 1500
    assert found[0][case][0] == found[1][case][0]


class Other:
    """An object whose representation has its address."""

    def __call__(self, output, targets):
        return output


def test_settings_are_described_alike_in_every_process():
    assert agreement.described(Other()) == agreement.described(Other())
    assert agreement.described(torch.optim.SGD) == "torch.optim.sgd.SGD"
    assert agreement.described({"b": 1, "a": (1, 2)}) == agreement.described({"a": [1, 2], "b": 1})
    assert agreement.described(1) != agreement.described("1")
