"""Runs closer to the published ones: what differs from the tables, and A-GEM with its heads mixed up."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from sketchogd.lab import models
from sketchogd.lab.runs.evaluate import use_head
from sketchogd.paper import presets
from sketchogd.paper.differences import suspects
from sketchogd.paper.published_agem import PublishedAGEM


def test_only_one_thing_differs_from_the_tables() -> None:
    for benchmark in ("split-mnist", "permuted-mnist"):
        for suspect in suspects(benchmark):
            usual, changed = suspect.usual, suspect.closer.method
            assert suspect.table in ("table1", "table2")
            assert (usual.name, usual.options, usual.examples) == (changed.name, changed.options, changed.examples)
            if suspect.closer.released:
                assert (usual.every, suspect.words) == (changed.every, "permutations of the released code")
                assert benchmark == "permuted-mnist"
            else:
                assert (usual.every, changed.every, suspect.words) == (50, 1, "every step projected")


def test_there_are_five_seeds_where_the_permutations_are_the_published_ones() -> None:
    runs = presets.causes(["permuted-mnist"], ["random-ogd"]).runs
    assert [(run.released, run.seed) for run in runs] == [
        *[(released, seed) for seed in range(3) for released in (False, True)],
        *[(True, seed) for seed in (3, 4)],
    ]
    assert len({run.name for run in runs}) == len(runs)


def test_methods_are_chosen_by_the_name_they_have_in_the_table() -> None:
    runs = presets.causes(["split-cifar100"], ["a-gem"], seeds=2).runs
    assert [(run.method.name, run.seed) for run in runs] == [("a-gem-published", 0), ("a-gem-published", 1)]
    with pytest.raises(ValueError, match="no difference"):
        presets.causes(["rotated-mnist"])


def test_published_agem_sends_all_tasks_through_one_head_and_trains_no_head() -> None:
    model = models.LeNet(heads=3, classes_per_head=2).double().eval()

    def loss(x: torch.Tensor, y: torch.Tensor, head: int) -> torch.Tensor:
        use_head(model, head)
        value = cross_entropy(model(x), y)
        use_head(model, 2)
        return value

    learner = PublishedAGEM(model, loss, per_task=4, batch=100, protected=models.LeNet.PROTECTED)
    g = torch.Generator().manual_seed(0)
    kept = [(torch.randn(4, 3, 32, 32, generator=g, dtype=torch.float64), torch.tensor([0, 1, 0, 1])) for _ in range(2)]
    for head, (x, y) in enumerate(kept):
        learner.end_task(x, y, head)
    use_head(model, 2)
    x, y = torch.randn(6, 3, 32, 32, generator=g, dtype=torch.float64), torch.randint(0, 2, (6,), generator=g)
    cross_entropy(model(x), y).backward()
    body = [model.wide.weight, model.wide.bias, model.wide_norm.weight, model.wide_norm.bias]
    before = torch.cat([p.grad.flatten() for p in body])
    head = copy.deepcopy(learner.store).mixed(100)[2]
    everything, labels = torch.cat([x for x, _ in kept]), torch.cat([y for _, y in kept])
    r = torch.cat([t.flatten() for t in torch.autograd.grad(loss(everything, labels, head), body)])
    learner.before_step(x, y, 2)
    after = torch.cat([p.grad.flatten() for p in body])
    assert torch.allclose(after, before - min(float(before @ r), 0.0) / (r @ r) * r)
    assert all(p.grad is None for p in model.heads.parameters())
