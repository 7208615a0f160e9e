"""Several processes against one: basis, projections, final weights and counts, for every sketch and layout."""

import pytest
import torch

from . import cases, workers
from .processes import together

TOLERANCE = {"rtol": 1e-7, "atol": 1e-9}
"""Of float64 results that differ in the order of sums, through a few eigendecompositions."""


SLOW = [pytest.param(size, True, marks=pytest.mark.slow) for size in (1, 3, 4)]


@pytest.mark.parametrize(("size", "all_with_fsdp"), [(1, False), (2, True), (3, False), (4, False), *SLOW])
def test_every_sketch_in_every_layout_is_that_of_one_process(size, all_with_fsdp, tmp_path):
    found = together(workers.every_sketch, size, tmp_path, all_with_fsdp)
    makes = {**cases.SKETCHES, **cases.BLOCKS, **cases.LAYERS}
    for case in found[0]:
        layout, name = case.split(" ")
        way = next((way for way in cases.WAYS if way and name.endswith(way)), "")
        n = workers.FSDP_EXAMPLES if layout == "fsdp" else 24
        expected = cases.single(makes[name.removesuffix(way)], size, n=n, **cases.WAYS[way])
        for rank, result in enumerate(found[r][case] for r in range(size)):
            where = f"{case}, process {rank} of {size}"
            assert result["examples"] == expected["examples"], where
            assert result["rows"] == expected["rows"], where
            for part in ("energy", "parts", "weights"):
                torch.testing.assert_close(result[part], expected[part], **TOLERANCE, msg=lambda m: f"{where}: {m}")  # noqa: B023
            for mine, theirs in zip(result["values"], expected["values"], strict=True):
                near = TOLERANCE
                if name == "pca":  # its directions of equal size may be turned among themselves; values in float32
                    mine, theirs, near = mine.sum(), theirs.sum(), {"rtol": 1e-6, "atol": 0.0}
                torch.testing.assert_close(mine, theirs, **near, msg=lambda m: f"{where}: {m}")  # noqa: B023
            assert result["displacement"] == pytest.approx(expected["displacement"], rel=1e-6), where
            assert torch.equal(result["weights"], found[0][case]["weights"]), where
