"""Modules' parameters of no layer: against dense matrices, and where one sketch of all of them does not see."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sketchogd as so
from sketchogd.optimizer.anchor import TINY
from sketchogd.projector import LayerSpectra, ModulesProjector, Pull

SIZES, GAPS = (6, 4, 6, 3), (0, 2, 0, 1, 2)


def projector(dtype=torch.float64):
    """Four modules, two of one size with different ranks, and parameters between them of which nothing is known."""
    torch.manual_seed(0)
    places, layers, start = [], [], 0
    for size, gap, rank, tail in zip(SIZES, GAPS, (2, 4, 3, 1), (0.3, 0.0, 0.1, 0.0), strict=False):
        start += gap
        V = torch.linalg.qr(torch.randn(size, rank, dtype=dtype))[0].T
        spectra = LayerSpectra(V, torch.rand(rank, dtype=torch.float64) + 0.5, None, None, 1.0, tail, whole=True)
        layers.append(Pull(2.0).on_layer(spectra, 1.5))
        places.append(slice(start, start + size))
        start += size
    return ModulesProjector(places, layers), start + GAPS[-1]


def dense(found, p):
    """H (p, p)."""
    H = torch.zeros(p, p, dtype=torch.float64)
    for place, layer in zip(found.places, found.layers, strict=True):
        V, values, tail = layer.spectra.inputs, layer.spectra.input_values, layer.spectra.unseen
        outside = torch.eye(V.shape[1], dtype=torch.float64) - V.T @ V
        H[place, place] = layer.weight * (V.T @ torch.diag(values) @ V + tail * outside)
    return H


@pytest.mark.parametrize("travelled", [1e-3, 0.7, 50.0])
def test_the_protected_part_is_that_of_a_dense_block_diagonal_matrix(travelled):
    found, p = projector()
    H, v = dense(found, p), torch.randn(p, dtype=torch.float64)
    A = torch.linalg.solve(torch.eye(p, dtype=torch.float64) + travelled * H, travelled * H)
    torch.testing.assert_close(found.protected_part_(v.clone(), travelled), A @ v)


def test_what_is_held_by_a_softer_pull_with_the_same_eigenvectors_is_solved_for_exactly():
    found, p = projector()
    H, D = dense(found, p), torch.randn(p, dtype=torch.float64)
    expected = torch.linalg.pinv(H, rcond=1e-9) @ (0.3 * H @ D)
    torch.testing.assert_close(found.relaxed_(0.3 * H @ D, D.clone()), expected)


def test_no_coordinate_comes_from_farther_than_it_moved():
    found, p = projector()
    D = torch.randn(p, dtype=torch.float64)
    moved = found.relaxed_(1e6 * torch.randn(p, dtype=torch.float64), D.clone())
    for place, layer in zip(found.places, found.layers, strict=True):
        c, d = layer.spectra.inputs @ moved[place], layer.spectra.inputs @ D[place]
        assert bool((c * d >= -1e-12).all())
        assert bool((c.abs() <= d.abs() + 1e-12).all())


class Norms(nn.Module):
    """Norms with little else."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(12) for _ in range(6))
        self.mix = nn.Parameter(torch.linalg.qr(torch.randn(12, 12))[0], requires_grad=False)
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        for norm in self.norms:
            x = torch.tanh(norm(x) @ self.mix)
        return self.head(x)


def forgotten(apart):
    """The change of old logits, in units of their spread, of training norms on another task: predicted, measured."""
    torch.manual_seed(1)
    model, x = Norms(), torch.randn(400, 12)
    labels = x.roll(1, 1)[:, :3].argmax(1), (x[:, 3:6] - x[:, 6:9]).argmax(1)
    optimizer = torch.optim.Adam(model.norms.parameters(), lr=3e-3)
    memory = so.LayerMemory(8, rest=4, apart=apart, strength=30.0)
    protection = so.protect(model, optimizer, memory=memory, parameters=["norms.*"])
    for y in labels:
        for _ in range(150):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        if y is labels[0]:
            protection.remember([(x, y)])
            before = model(x).detach()
    spread = before - before.mean(1, keepdim=True)
    change = model(x).detach() - before
    change -= change.mean(1, keepdim=True)
    return protection.forgetting(), float(change.norm() / spread.norm())


def test_norms_that_move_together_are_seen_by_sketches_of_their_own():
    """Training goes where one sketch of all of them keeps nothing."""
    predicted, measured = forgotten(apart=True)
    of_one, lost = forgotten(apart=False)
    assert measured < 0.8 * lost
    assert lost / of_one > 1.5 * measured / predicted


def test_tension_is_the_pull_for_a_short_way():
    found, p = projector()
    D = torch.randn(p, dtype=torch.float64)
    torch.testing.assert_close(found.protected_part_(D.clone(), TINY) / TINY, dense(found, p) @ D, rtol=1e-6, atol=1e-9)


def test_modules_have_sketches_of_their_own_and_count_as_layers_do():
    model = Norms()
    protection = so.protect(model, torch.optim.SGD(model.parameters(), 0.1), memory=so.LayerMemory(8))
    protection.remember([(torch.randn(20, 12), torch.randint(0, 3, (20,)))])
    names = [name for name, _ in protection.memory.sketches() if name.startswith("rest")]
    assert names == [f"rest:norms.{i}" for i in range(6)]
    assert protection.memory.together == 6 + 1
    assert len(protection.projector.others.layers) == 6
    model = Norms()
    one = so.protect(model, torch.optim.SGD(model.parameters(), 0.1), memory=so.LayerMemory(8, apart=False))
    one.remember([(torch.randn(20, 12), torch.randint(0, 3, (20,)))])
    assert [name for name, _ in one.memory.sketches() if name.startswith("rest")] == ["rest"]
    assert one.memory.together == 1 + 1


def test_norms_are_pulled_outside_of_their_sketches_whatever_form_other_anchors_have():
    model = Norms()
    memory = so.LayerMemory(8, rest=2, anchor_dtype="span")
    protection = so.protect(model, torch.optim.SGD(model.parameters(), 0.1), memory=memory)
    protection.remember([(torch.randn(20, 12), torch.randint(0, 3, (20,)))])
    assert all(layer.spectra.unseen > 0 for layer in protection.projector.others.layers)


def test_a_file_that_does_not_say_has_one_sketch_for_all_modules():
    model = Norms()
    memory = so.LayerMemory(8, apart=False)
    protection = so.protect(model, torch.optim.SGD(model.parameters(), 0.1), memory=memory)
    protection.remember([(torch.randn(20, 12), torch.randint(0, 3, (20,)))])
    state = protection.state_dict()
    del state["meta"]["settings"]["apart"]
    protection.load_state_dict(state)
    assert not protection.memory.apart
    assert torch.equal(protection.memory.others.parts[0].sketch.rows, memory.others.parts[0].sketch.rows)
