"""What tasks and examples weigh: as the docs say, however they are cut into calls, and whatever the heads' sizes."""

import pytest
import torch
from torch import nn

import sketchogd as so


def network(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, outputs)).double()


def data(seed=0, n=20):
    return torch.randn(n, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def matrix(protection):
    """The matrix of the penalty, for a distance at which A is proportional to it."""
    p = protection.parameters.p
    eye = torch.eye(p, dtype=torch.float64)
    return torch.stack([protection.projector.protected_part_(e, 1e-9) for e in eye]) / 1e-9


def protected(model, **options):
    options = {"strength": 1.0, "damping": 0.0, **options}
    return so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=so.LayerMemory(40, **options))


@pytest.mark.parametrize("curvature", ["traces", "positions"])
def test_a_task_in_parts_weighs_as_one(curvature):
    whole, parts = (protected(network(), curvature=curvature) for _ in range(2))
    x = data()
    whole.remember([x])
    parts.observe(x[:5])
    parts.observe(x[5:12])
    parts.remember([x[12:]])
    torch.testing.assert_close(matrix(parts), matrix(whole), rtol=1e-6, atol=1e-8)


def test_each_call_of_remember_is_a_task_of_equal_weight_per_example():
    one, ten = protected(network()), protected(network())
    one.remember([data()])
    for part in data().split(2):
        ten.remember([part])
    torch.testing.assert_close(matrix(ten), 10 * matrix(one), rtol=1e-5, atol=1e-7)


def test_two_tasks_have_the_share_of_their_examples():
    """The penalty of both is that of all examples as one task, twice."""
    both, joint = protected(network()), protected(network())
    both.remember([data(1, 30)])
    both.remember([data(2, 3)])
    joint.remember([torch.cat([data(1, 30), data(2, 3)])])
    torch.testing.assert_close(matrix(both), 2 * matrix(joint), rtol=1e-6, atol=1e-8)


class Heads(nn.Module):
    """A body with a head of its own for each task."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(6, 4, bias=False).double()
        self.heads = nn.ModuleList([nn.Linear(4, n, bias=False).double() for n in (2, 5)])
        self.head = 0

    def forward(self, x):
        return self.heads[self.head](self.body(x))


@pytest.mark.parametrize("curvature", ["traces", "positions"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_heads_of_different_sizes_weigh_alike(order, curvature):
    """The last layer's part is exact: ½ Σ tasks' mean over examples and over the logits of their own head."""
    model = Heads()
    protection = protected(model, curvature=curvature)
    for head in order:
        model.head = head
        protection.remember([data(head, 15)])
    H = matrix(protection)
    a = {head: model.body(data(head, 15)).detach() for head in order}
    unit = 1.0
    if curvature == "traces":  # the mean square spread of logits, each head's mean over its logits
        z = [a[head] @ model.heads[head].weight.detach().T for head in order]
        unit = sum(float((each - each.mean(1, keepdim=True)).square().mean(1).sum()) for each in z) / 30
    for head, place in ((0, slice(24, 32)), (1, slice(32, 52))):
        n = (2, 5)[head]
        expected = torch.kron(torch.eye(n, dtype=torch.float64), a[head].T @ a[head]) / 15 / n
        expected = expected / unit * protection.memory.together
        torch.testing.assert_close(H[place, place], expected, rtol=1e-6, atol=1e-9)


def test_memories_of_heads_of_different_sizes_merge_as_if_observed_by_one():
    def remembered(*heads):
        model = Heads()
        protection = protected(model)
        for head in heads:
            model.head = head
            protection.remember([data(head, 15)])
        return protection

    merged, both = remembered(0), remembered(0, 1)
    merged.merge(remembered(1))
    torch.testing.assert_close(matrix(merged), matrix(both), rtol=1e-6, atol=1e-9)


def test_layers_count_as_many_times_as_there_are_and_forgetting_with_the_root_of_that():
    """The last layer is exact: a displacement of it changes outputs by a share of their spread that is known."""
    model = network()
    protection = protected(model, strength=3.0)
    x = data()
    protection.remember([x])
    assert protection.memory.together == 2
    z = model(x).detach()
    moved = {name: t.clone() for name, t in model.state_dict().items()}
    moved["2.weight"] += 0.01 * torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    change = torch.func.functional_call(model, moved, (x,)).detach() - z
    share = float(change.square().sum() / (z - z.mean(1, keepdim=True)).square().sum())
    assert protection.forgetting(moved) == pytest.approx((share * 2**0.5) ** 0.5, rel=1e-6)
    D = protection.parameters.flatten([moved[n] - t for n, t in model.state_dict().items()])
    assert float(D @ matrix(protection) @ D) == pytest.approx(3.0 * 2 * share, rel=1e-5)
