"""What a new anchor keeps of an old pull, for layers: against dense matrices."""

import pytest
import torch

from sketchogd.projector import LayerSpectra, Pull, PullingLayer


def layer(seed, r, s, tail=0.2, tail_outputs=0.1, fan_out=5, width=7, damping=0.05):
    g = torch.Generator().manual_seed(seed)
    V = torch.linalg.qr(torch.randn(width, r, generator=g, dtype=torch.float64))[0].T
    U = torch.linalg.qr(torch.randn(fan_out, s, generator=g, dtype=torch.float64))[0].T
    values = [torch.rand(k, generator=g, dtype=torch.float64) + 0.3 for k in (r, s)]
    spectra = LayerSpectra(V, values[0], U, values[1], 1.0, tail, tail_outputs)
    return Pull(2.0, damping=damping).on_layer(spectra, 1.5)


def factors(found):
    """H as a product of two factors, by their dense matrices (fan-out, fan-out) and (width, width)."""
    s = found.spectra
    outputs = s.outputs.T @ torch.diag(s.output_values - s.unseen_outputs) @ s.outputs
    outputs += (s.unseen_outputs + found.everywhere) * torch.eye(s.outputs.shape[1], dtype=torch.float64)
    inputs = s.inputs.T @ torch.diag(s.input_values - s.unseen) @ s.inputs
    inputs += s.unseen * torch.eye(s.inputs.shape[1], dtype=torch.float64)
    return found.weight * outputs, inputs


def times(found, D):
    outputs, inputs = factors(found)
    return outputs @ D @ inputs


KINDS = {
    "tails": {"r": 3, "s": 2},
    "no tails": {"r": 3, "s": 2, "tail": 0.0, "tail_outputs": 0.0, "damping": 0.0},
    "whole": {"r": 7, "s": 5, "tail": 0.0, "tail_outputs": 0.0},
    "inputs whole": {"r": 7, "s": 2, "tail": 0.0},
}


@pytest.mark.parametrize("kind", KINDS)
def test_where_the_old_pull_has_the_same_eigenvectors_it_is_solved_for_exactly(kind):
    """The old H is a function of the new one: its third, and a square that is nowhere larger."""
    layers = [layer(seed, **KINDS[kind]) for seed in (0, 1)]
    stack = PullingLayer.stack(layers)
    D = torch.randn(2, 5, 7, dtype=torch.float64)
    HD = torch.stack([times(found, each) for found, each in zip(layers, D, strict=True)])
    HHD = torch.stack([times(found, each) for found, each in zip(layers, HD, strict=True)])
    known = torch.stack([each - (each - _inside(found, each)) for found, each in zip(layers, D, strict=True)])
    torch.testing.assert_close(stack.relaxed(HD / 3, D), known / 3)
    largest = max(
        float(torch.linalg.eigvalsh(factor).max()) for found in layers for factor in [torch.kron(*factors(found))]
    )
    torch.testing.assert_close(stack.relaxed(HHD / largest, D), HD / largest)


def _inside(found, D):
    """D without what nothing pulls."""
    s = found.spectra
    D = D if s.unseen else D @ s.inputs.T @ s.inputs
    return D if s.unseen_outputs + found.everywhere else s.outputs.T @ s.outputs @ D


@pytest.mark.parametrize("kind", KINDS)
def test_it_never_holds_more_than_the_old_pull_did(kind):
    """D'ᵀ H D' <= yᵀ D', and no coordinate is larger than it was or of the other sign, whatever y is."""
    found = layer(0, **KINDS[kind])
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        y, D = (torch.randn(1, 5, 7, generator=g, dtype=torch.float64) for _ in "yD")
        moved = PullingLayer.stack([found]).relaxed(100.0 * y, D)
        assert float((moved[0] * times(found, moved[0])).sum()) <= float((100 * y * moved).sum()) + 1e-9
        s = found.spectra
        c, d = (s.outputs @ each[0] @ s.inputs.T for each in (moved, D))
        assert bool((c * d >= -1e-9).all())
        assert bool((c.abs() <= d.abs() + 1e-9).all())
        assert moved.norm() <= D.norm() + 1e-9


def test_layers_of_different_ranks_are_relaxed_as_each_alone():
    layers = [layer(0, 3, 2), layer(1, 5, 4), layer(2, 1, 1)]
    y, D = (torch.randn(3, 5, 7, dtype=torch.float64) for _ in "yD")
    alone = [PullingLayer.stack([found]).relaxed(y[i : i + 1], D[i : i + 1]) for i, found in enumerate(layers)]
    torch.testing.assert_close(PullingLayer.stack(layers).relaxed(y, D), torch.cat(alone))


def test_what_is_soft_but_for_rounding_is_left_where_it_is():
    """A direction with a billionth of the largest stiffness is one that nothing pulls."""
    V, U = torch.eye(7, dtype=torch.float64)[:3], torch.eye(5, dtype=torch.float64)[:2]
    values = torch.tensor([1.0, 0.5, 1e-9], dtype=torch.float64), torch.tensor([1.0, 1e-9], dtype=torch.float64)
    found = Pull(2.0, damping=0.0).on_layer(LayerSpectra(V, values[0], U, values[1], 1.0), 1.5)
    D = torch.ones(1, 5, 7, dtype=torch.float64)
    moved = PullingLayer.stack([found]).relaxed(100 * D, D)
    expected = torch.zeros(1, 5, 7, dtype=torch.float64)
    expected[0, 0, :2] = 1.0
    assert torch.equal(moved, expected)
