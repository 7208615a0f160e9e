"""Dividing a budget's rows over sides of layers by their spectra."""

import copy
import itertools

import pytest
import torch
from torch import nn

import sketchogd as so
from sketchogd.budget import parse_bytes
from sketchogd.memory.ranks import Side, divided


def sides(seed: int) -> list[Side]:
    """Three short sides with all their eigenvalues: a steep one, one that falls slowly, and a flat one."""
    generator = torch.Generator().manual_seed(seed)
    falls = [torch.linspace(0, 6, 9), torch.linspace(0, 2, 8), torch.zeros(7)]
    found = []
    for i, fall in enumerate(falls):
        values = torch.exp(-fall) * (1 + 0.01 * torch.rand(len(fall), generator=generator))
        values = values.sort(descending=True).values.double()
        found.append(Side(f"side{i}", len(values), values, float(values.sum()), 1 / 3, copies=4 * i))
    return found


@pytest.mark.parametrize("nbytes", [780, 850, 1000])
def test_no_other_ranks_of_the_same_bytes_have_a_smaller_error(nbytes: int) -> None:
    """Against all combinations: a price per byte finds the best of those that use no more bytes than it does."""
    each = sides(0)
    found = divided(each, nbytes)
    assert found is not None
    at = [side.ranks.tolist().index(found[side.name]) for side in each]
    used = sum(float(side.bytes[i]) for side, i in zip(each, at, strict=True))
    error = sum(float(side.errors[i]) for side, i in zip(each, at, strict=True))
    assert used <= nbytes
    for other in itertools.product(*(range(len(side.ranks)) for side in each)):
        if sum(float(side.bytes[i]) for side, i in zip(each, other, strict=True)) <= used:
            assert sum(float(side.errors[i]) for side, i in zip(each, other, strict=True)) >= error - 1e-12


def test_errors_are_those_of_a_spectrum_written_out() -> None:
    values = torch.tensor([8.0, 4.0, 2.0, 1.0, 1.0], dtype=torch.float64)
    known = Side("a", 6, values[:4], 16.0, 0.5)  # the last λ and one that is 0 are seen by their sum only
    spread = torch.tensor([8.0, 4.0, 2.0, 1.0, 0.5, 0.5], dtype=torch.float64)
    for r, error in zip(known.ranks.tolist(), known.errors.tolist(), strict=True):
        rest = spread[r:]
        assert error == pytest.approx(float((rest - rest.mean()).abs().sum()) / 16 * 0.5)
    dropped = Side("a", 6, values[:4], 16.0, 0.5, dropped=True)
    assert dropped.errors.tolist() == pytest.approx([float(spread[r:].sum()) / 32 for r in dropped.ranks.tolist()])


def test_a_flat_side_costs_next_to_nothing_and_too_few_bytes_divide_nothing() -> None:
    flat = Side("flat", 64, torch.ones(64), 64.0, 0.5)
    steep = Side("steep", 64, torch.exp(-torch.arange(64.0) / 8), 8.5, 0.5)
    found = divided([flat, steep], 12_000)
    assert found is not None
    assert found["flat"] == 4
    assert found["steep"] > 20
    assert divided([flat, steep], 1000) is None


class Net(nn.Module):
    """A wide layer with few used inputs, and a narrow one."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(400, 60), nn.Linear(60, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(torch.relu(self.wide(x)))


def task(seed: int, n: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 12, generator=generator) @ torch.randn(12, 400, generator=generator), torch.arange(n) % 10


@pytest.mark.parametrize("budget", ["30%", "60%", "100%", "400%"])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_a_budget_is_kept_after_its_rows_were_divided(budget: str, kind: type[torch.optim.Optimizer]) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = kind(model.parameters(), lr=1e-3)
    protection = so.protect(model, optimizer, budget=budget, every=10)
    x, y = task(0)
    protection.remember([(x[i : i + 50], y[i : i + 50]) for i in range(0, 300, 50)])
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    most = parse_bytes(budget, 4 * protection.parameters.p)
    assert 0.25 * most < protection.ledger().nbytes <= most
    ranks = protection.memory.rank
    assert ranks["wide.inputs"] < 30  # twelve directions are all there are
    assert protection.memory.examples == 300


def test_examples_that_divide_are_remembered_too_and_later_tasks_divide_nothing() -> None:
    torch.manual_seed(0)
    model = Net()
    protection = so.protect(model, torch.optim.Adam(model.parameters()), budget="60%")
    x, y = task(0)
    protection.remember((x[i : i + 50], y[i : i + 50]) for i in range(0, 300, 50))
    ranks = dict(protection.memory.rank)
    twin = so.protect(
        (other := Net()),
        torch.optim.Adam(other.parameters()),
        memory=so.LayerMemory(ranks, rest=protection.memory.rest, anchor_dtype="span"),
    )
    other.load_state_dict(model.state_dict())
    twin.remember([(x[i : i + 50], y[i : i + 50]) for i in range(0, 300, 50)])
    for (name, mine), (_, theirs) in zip(protection.memory.sketches(), twin.memory.sketches(), strict=True):
        assert torch.allclose(mine.spectrum()[0], theirs.spectrum()[0]), name
    protection.remember([task(1)])
    assert protection.memory.rank == ranks


def test_a_refused_batch_divides_nothing() -> None:
    torch.manual_seed(0)
    model = Net()
    protection = so.protect(model, torch.optim.Adam(model.parameters()), budget="60%")
    x, y = task(0)
    before = protection.memory.rank
    with pytest.raises(so.errors.NonFiniteError):
        protection.remember([(x * float("nan"), y)])
    assert protection.memory.rank == before
    assert protection.memory.examples == 0


def test_divided_rows_predict_changes_better_than_even_ones() -> None:
    """What the pull counts of displacements by steps of Adam on another task, over the exact count, in equal bytes."""
    torch.manual_seed(0)
    model = Net()
    x, y = task(0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    start = {name: t.clone() for name, t in model.state_dict().items()}
    found = {}
    for kind in ("exact", "divided", "even"):
        model.load_state_dict(start)
        opt = torch.optim.Adam(model.parameters(), 1e-2)
        protection = so.protect(model, opt, budget="30%") if kind == "divided" else None
        if protection is None:
            even = so.protect(model, opt, budget="30%")
            even.detach()
            exact = kind == "exact"
            memory = so.LayerMemory(1000 if exact else even.memory.rank, anchor_dtype=None if exact else "span")
            protection = so.protect(model, opt, memory=memory)
        protection.remember([(x, y)])
        protection.detach()
        free = copy.deepcopy(model)
        other = torch.optim.Adam(free.parameters(), 1e-2)
        x2, y2 = task(5)
        for _ in range(20):
            other.zero_grad()
            nn.functional.cross_entropy(free(x2), y2).backward()
            other.step()
        found[kind] = protection.forgetting(free.state_dict())
    assert abs(found["divided"] / found["exact"] - 1) < abs(found["even"] / found["exact"] - 1)
    assert found["divided"] / found["exact"] > 0.7


def test_memories_that_were_divided_apart_say_why_they_do_not_merge_and_equal_ranks_do() -> None:
    found = []
    for seed in (0, 1):
        torch.manual_seed(0)
        model = Net()
        protection = so.protect(model, torch.optim.Adam(model.parameters()), budget="60%")
        protection.remember([task(seed)])
        found.append(protection)
    first, second = (protection.memory for protection in found)
    second.rank = {**second.rank, "wide.inputs": 7}
    with pytest.raises(ValueError, match="same rank="):
        first.merge(second)
    torch.manual_seed(0)
    model = Net()
    other = so.protect(
        model,
        torch.optim.Adam(model.parameters()),
        memory=so.LayerMemory(first.rank, rest=first.rest, rule=first.rule),
    )
    other.remember([task(1)])
    found[0].merge(other)
    assert first.examples + 300 == found[0].memory.examples


def test_a_layer_that_is_added_after_rows_were_divided_has_the_even_rank() -> None:
    torch.manual_seed(0)
    model = Net()
    protection = so.protect(model, torch.optim.Adam(model.parameters()), budget="60%")
    even = protection.memory.rank
    protection.remember([task(0)])
    model.more = nn.Linear(10, 60)
    protection.adopt(model, torch.optim.Adam(model.parameters()))
    assert protection.memory.factors["more"].outputs.rank_limit == min(60, even)
