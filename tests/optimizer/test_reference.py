"""Copies of weights: in full, and rounded to one byte a number."""

import pytest
import torch

from sketchogd.optimizer.reference import Copy, copies_nbytes
from sketchogd.projector import Anchor

SHAPES = [(), (1,), (7,), (5, 3), (4, 2, 3, 3), (0, 3), (3, 0)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("anchor", [Anchor(), Anchor("int8")])
def test_a_copy_is_near_what_was_copied_and_has_its_bytes(shape, dtype, anchor):
    generator = torch.Generator().manual_seed(0)
    t = torch.randn(shape, generator=generator).to(dtype)
    copy = Copy.of(t, anchor)
    assert sum(part.nbytes for _, part in copy.parts()) == copies_nbytes([t], anchor)
    for values in (t, 3 * t + 1):  # the second in the place of the first
        copy.take_(values)
        left = values.double().clone()
        copy.subtract_from_(left)
        rows = values.double().flatten(1) if len(shape) > 1 else values.double().reshape(1, -1)
        largest = rows.abs().amax(1, keepdim=True) if rows.numel() else rows.new_zeros(len(rows), 1)
        # off by half a step of 1 / 127 of the row's largest, with room for the rounding of scales
        bound = largest / 127 * (0.5 + 1e-4) if anchor.dtype else largest * 0
        assert bool((left.reshape(rows.shape).abs() <= bound.expand(rows.shape)).all())


def test_each_row_has_its_own_scale():
    t = torch.tensor([[1.0, -0.5], [1e-6, 3e-7]])
    left = t.clone()
    Copy.of(t, Anchor("int8")).subtract_from_(left)
    assert float(left[1].abs().max()) < 1e-8


def test_rows_of_zeros_and_the_largest_numbers_stay_finite():
    t = torch.tensor([[0.0, 0.0], [3e38, -3e38], [1e-38, 0.0]])
    left = t.clone()
    Copy.of(t, Anchor("int8")).subtract_from_(left)
    assert bool(left.isfinite().all())
    assert float(left[0].abs().max()) == 0
    assert float((left[1] / 3e38).abs().max()) < 1e-5


def test_a_copy_is_of_a_moment():
    t = torch.ones(3, 2)
    for anchor in (Anchor(), Anchor("int8")):
        copy = Copy.of(t, anchor)
        with torch.no_grad():
            moved = t + 1
        copy.subtract_from_(moved)
        torch.testing.assert_close(moved, torch.ones(3, 2))
    full = Copy.of(t)
    t += 5
    assert float(full.numbers.max()) == 1
