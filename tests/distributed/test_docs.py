"""The figures of docs/distributed.md are those of the cost model; one process imports nothing of all this."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sketchogd.distributed import cost

DOCS = Path(__file__).parents[2] / "docs" / "distributed.md"
UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


def number(text):
    value, unit = text.split(" ")
    return float(value) * UNITS[unit]


def rows():
    for line in DOCS.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 9 and re.fullmatch(r"[\d,]+", cells[1]):
            yield cells


def test_the_figures_for_seven_billion_parameters():
    found = list(rows())
    assert len(found) == 10
    for name, p, k, R, layout, b, kept, step, remember in found:
        p, k, R, b = (int(cell.replace(",", "")) for cell in (p, k, R, b))
        for shown, expected in (
            (kept, cost.memory(p, k, 1 if layout == "whole" else R)),
            (step, cost.step(p, k, R, layout=layout).sent(R)),
            (remember, cost.remember(p, k, R, 1024, b, layout=layout).sent(R)),
        ):
            assert number(shown) == pytest.approx(expected, rel=6e-3), (name, R, shown, expected)


def llama(k):
    """The linear maps of 32 blocks, none of which has a bias."""
    d, h = 4096, 11008
    for o, i in [*[(d, d)] * 4, (h, d), (h, d), (d, h)] * 32:
        yield cost.Layer(o, i, k, k, bias=False)


def test_the_figures_for_a_layer_memory_of_seven_billion_parameters():
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in DOCS.read_text().splitlines()]
    found = [cells for cells in found if len(cells) == 6 and cells[0].isdecimal()]
    assert len(found) == 5
    for k, R, *shown in found:
        k, R, layers = int(k), int(R), list(llama(int(k)))
        factors = sum(cost.memory(layer.o, k) + cost.memory(layer.w, k) for layer in layers)
        anchor = sum(-(-layer.o // R) * (layer.w + 4) for layer in layers)
        numbers = sum(k * (layer.o + layer.w) for layer in layers)
        refresh = cost.layers_refresh(numbers, 2 * len(layers), sums=3)
        expected = factors, anchor, cost.layers_step(layers, 0).sent(R), refresh.sent(R)
        assert [number(cell) for cell in shown] == pytest.approx(expected, rel=6e-3), (k, R)


def test_one_process_does_not_wait_for_imports_that_only_several_need():
    """The whole path of a protection in one process goes without DTensor, which takes a second to import."""
    code = """
import sys, torch, sketchogd as so
model = torch.nn.Linear(3, 2)
protection = so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=so.ProductSketch(4))
protection.remember([(torch.randn(5, 3), torch.randint(0, 2, (5,)))])
slow = ("sketchogd.distributed.processes", "sketchogd.distributed.shards")
print([m for m in sys.modules if m in slow])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
