"""A gradient sketch for each block of the parameters, against a float64 twin that cuts and projects by hand."""

import pytest
import torch
from torch import nn

import sketchogd as so
from sketchogd.errors import NonFiniteError, StorageError
from tests import models, reference
from tests.reference import projected

KINDS = {
    "all": so.AllRows,
    "product": lambda: so.ProductSketch(5, seed=3),
    "gradient": lambda: so.GradientSketch(5, seed=3),
    "frequent": lambda: so.FrequentDirections(4, 3),
}


def protected(sketch, blocks, kind="mlp", **options):
    model, x, y = models.make(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    memory = so.GradientMemory(sketch, blocks=blocks, **options)
    return model, optimizer, so.protect(model, optimizer, memory=memory), x, y


def gradients(model, protection, x, y):
    model.eval()
    return reference.gradients_by_loop(model, x, y, so.true_logit, protection.parameters.tensors)


def cuts(p, blocks):
    """The ends of blocks as equal as may be."""
    return [p * i // blocks for i in range(blocks + 1)]


def train(model, optimizer, x, y, steps=4):
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("blocks", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", ["mlp", "cnn", "transformer"])
def test_each_block_is_projected_on_its_own_part_of_the_gradients(kind, blocks):
    model, _, protection, x, y = protected(so.AllRows(), blocks, kind)
    protection.remember([(x, y)])
    G = gradients(model, protection, x, y).double()
    p = G.shape[1]
    v = torch.randn(p, generator=torch.Generator().manual_seed(1))
    expected = v.double().clone()
    for start, stop in zip(cuts(p, blocks), cuts(p, blocks)[1:], strict=False):
        B = reference.orth(G[:, start:stop].T, 1e-6)
        expected[start:stop] -= reference.projector(B) @ expected[start:stop]
    torch.testing.assert_close(projected(protection.projector, v.clone()).double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_a_block_has_the_sketch_of_its_own_columns(name):
    """Three blocks are three sketches with the same settings, each of its columns of the same gradients."""
    model, _, protection, x, y = protected(KINDS[name](), 3)
    protection.remember([(x, y)])
    G = gradients(model, protection, x, y)
    ends = cuts(G.shape[1], 3)
    for start, stop, block in zip(ends, ends[1:], protection.memory.parts, strict=False):
        own = KINDS[name]().bind(stop - start)
        own.observe(G[:, start:stop])
        B, found = own.basis(), block.sketch.basis()
        torch.testing.assert_close(found.T @ found, B.T @ B, rtol=1e-3, atol=1e-4)


def test_training_with_adam_leaves_every_remembered_output_as_it_was_to_first_order():
    model, optimizer, protection, x, y = protected(so.AllRows(), 3)
    protection.remember([(x, y)])
    G = gradients(model, protection, x, y).double()
    before = protection.parameters.flatten().double()
    train(model, optimizer, x.flip(0), y)
    moved = protection.parameters.flatten().double() - before
    assert moved.norm() > 1e-3
    assert float((G @ moved).norm() / (G.norm() * moved.norm())) < 1e-6
    for start, stop in zip(cuts(len(moved), 3), cuts(len(moved), 3)[1:], strict=False):
        assert float((G[:, start:stop] @ moved[start:stop]).norm() / (G.norm() * moved.norm())) < 1e-6
    assert protection.leak < 1e-6
    assert protection.projector.hard
    assert not protection.projector.empty


def test_more_blocks_protect_more_directions_and_never_fewer():
    """The projection with 2 J blocks is part of that with J: what passes the finer one passes the coarser one."""
    model, _, protection, x, y = protected(so.AllRows(), 2)
    _, _, finer, _, _ = protected(so.AllRows(), 4)
    for each in (protection, finer):
        each.remember([(x, y)])
    assert gradients(model, protection, x, y).equal(gradients(finer.parameters.model, finer, x, y))
    v = torch.randn(protection.parameters.p, generator=torch.Generator().manual_seed(2))
    passed = projected(finer.projector, v.clone())
    torch.testing.assert_close(projected(protection.projector, passed.clone()), passed, rtol=1e-4, atol=1e-5)
    assert passed.norm() < projected(protection.projector, v.clone()).norm()


@pytest.mark.parametrize("options", [{}, {"basis_dtype": "bfloat16"}, {"basis_dtype": "bfloat16", "offload": "cpu"}])
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_cost_is_what_the_ledger_counts(blocks, options):
    _, _, protection, x, y = protected(so.ProductSketch(5), blocks, **options)
    protection.remember([(x, y), (x.flip(0), y)])
    assert protection.memory.nbytes == protection.memory.cost(protection.parameters)
    names = {entry.name for entry in protection.ledger()}
    assert ("sketch.1.rows" in names) == (blocks > 1)
    assert ("basis.1" in names) == (blocks > 1 and bool(options))


def test_more_blocks_take_no_more_than_their_factors():
    """(J − 1) k² numbers and k values a block."""
    _, _, one, _, _ = protected(so.ProductSketch(5), 1)
    _, _, four, _, _ = protected(so.ProductSketch(5), 4)
    parameters = one.parameters
    assert four.memory.cost(parameters) - one.memory.cost(parameters) == 3 * (4 * 5 * 5 + 8 * 5)


def test_the_certificate_holds_for_displacements_that_pass():
    model, _, protection, x, y = protected(so.ProductSketch(4), 3)
    protection.remember([(x, y)])
    G = gradients(model, protection, x, y).double()
    c = protection.memory.sensitivity()
    n, p = G.shape
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    # The steepest displacements are those along what the gradients have left after projection.
    for v in [*torch.randn(20, p, generator=generator), *G.float()]:
        passed = projected(protection.projector, v.clone()).double()
        if passed.norm() > 1e-6:
            worst = max(worst, float((G @ passed).norm() / n**0.5 / passed.norm()))
    assert 0 < worst <= c
    left = sum(d["left_out"] for d in protection.diagnostics()["sketches"].values())
    assert c == pytest.approx((left / n) ** 0.5)
    assert protected(so.GradientSketch(4), 3)[2].memory.sensitivity() is None


def test_a_batch_with_a_bad_number_in_a_later_block_changes_no_block():
    model, _, protection, x, y = protected(so.ProductSketch(4), 3)
    protection.remember([(x, y)])
    before = {name: t.clone() for name, t in protection.memory.state_dict()["tensors"].items()}
    rows = gradients(model, protection, x, y)
    rows[1, -1] = float("nan")
    protection.memory.signals.chunks = lambda inputs, targets: iter([rows])
    with pytest.raises(NonFiniteError):
        protection.memory.observe(x, y)
    after = protection.memory.state_dict()["tensors"]
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_merged_blocks_are_those_of_all_examples(tmp_path):
    _, _, first, x, y = protected(so.ProductSketch(4), 3)
    _, _, second, _, _ = protected(so.ProductSketch(4), 3)
    _, _, whole, _, _ = protected(so.ProductSketch(4), 3)
    first.remember([(x[:3], y[:3])])
    second.remember([(x[3:], y[3:])])
    whole.remember([(x, y)])
    second.save(tmp_path / "second.safetensors")
    first.merge(tmp_path / "second.safetensors")
    v = torch.randn(whole.parameters.p, generator=torch.Generator().manual_seed(3))
    merged, expected = (projected(each.projector, v.clone()) for each in (first, whole))
    torch.testing.assert_close(merged, expected, rtol=1e-3, atol=1e-4)
    coarse = protected(so.ProductSketch(4), 2)[2].memory
    with pytest.raises(ValueError, match="2 and 3 blocks"):
        first.memory.merge(coarse)


def test_a_state_that_does_not_fit_changes_no_block():
    _, _, protection, x, y = protected(so.ProductSketch(4), 3)
    protection.remember([(x, y)])
    before = {name: t.clone() for name, t in protection.memory.state_dict()["tensors"].items()}
    other = protected(so.ProductSketch(4), 2)[2]
    other.remember([(x.flip(0), y)])
    with pytest.raises(StorageError, match="2 sketches and the memory 3 blocks"):
        protection.memory.load_state_dict(other.memory.state_dict())
    _, _, source, _, _ = protected(so.ProductSketch(4), 3)
    source.remember([(x.flip(0), y)])
    state = source.memory.state_dict()
    broken = {**state["tensors"], "sketch.2.rows": state["tensors"]["sketch.2.rows"][:, :-1]}
    with pytest.raises(StorageError, match=r"sketch\.2"):
        protection.memory.load_state_dict({"meta": state["meta"], "tensors": broken})
    after = protection.memory.state_dict()["tensors"]
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("blocks", [0, -1, 1.5, True, "auto"])
def test_blocks_are_counted_in_whole_numbers(blocks):
    with pytest.raises(ValueError, match="blocks must be a positive integer"):
        so.GradientMemory(so.ProductSketch(4), blocks=blocks)


def test_there_are_no_more_blocks_than_parameters():
    model = nn.Linear(2, 1)
    with pytest.raises(ValueError, match="3 parameters cannot be cut into 4 blocks"):
        so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=so.GradientMemory(so.AllRows(), blocks=4))
