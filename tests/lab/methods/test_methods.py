"""Methods: names, settings, sizes from budgets, and the common interface that the training loop relies on."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sketchogd as so
import sketchogd.paper
from sketchogd.lab import Training, benchmark, fit
from sketchogd.lab.methods import (
    KINDS,
    Learner,
    Setup,
    build,
    keeps_examples,
    listed,
    method,
    register,
    style,
    title,
    unknown,
)
from sketchogd.lab.methods.baselines import Baseline
from sketchogd.lab.methods.baselines.examples import bytes_of_example
from sketchogd.lab.methods.protected import Protected
from sketchogd.lab.runs.config import model_for

NAMES = [
    "sgd",
    "ogd",
    "random-ogd",
    "pca-ogd",
    "sketchogd-1",
    "sketchogd-2",
    "sketchogd-3",
    "sketchogd",
    "sketchogd-blocks",
    "sketchogd-pull",
    "gradient-ogd",
    "fd-ogd",
    "ipca-ogd",
    "layer-sketch",
    "layer-memory",
    "gpm",
    "both",
    "protect",
    "a-gem",
    "ewc",
    "si",
    "replay",
    "der",
    "gpm-published",
    "sgp",
    "owm",
    "orfit",
    "laplace",
    "l2",
    "averaging",
    "lwf",
    "a-gem-published",  # the paper's own, registered when `sketchogd.paper` is imported
]
SMALL = {
    "ogd": {"examples": 8},
    "random-ogd": {"capacity": 12},
    "pca-ogd": {"samples": 8, "components": 4},
    "sketchogd-1": {"rank": 10},
    "sketchogd-2": {"rank": 10},
    "sketchogd-3": {"rank": 5, "corank": 6},
    "sketchogd": {"rank": 10},
    "sketchogd-blocks": {"rank": 6, "blocks": 3},
    "sketchogd-pull": {"rank": 6, "blocks": 3},
    "gradient-ogd": {"rank": 10},
    "fd-ogd": {"rank": 8, "buffer": 2},
    "ipca-ogd": {"rank": 8, "buffer": 2},
    "both": {"rank": 8, "layer_rank": 6},
    "a-gem": {"per_task": 5, "batch": 8},
    "a-gem-published": {"per_task": 5, "batch": 8},
    "replay": {"capacity": 9, "batch": 4},
    "der": {"capacity": 9, "batch": 4},
    "gpm-published": {"energy": 0.7},
    "sgp": {"energy": 0.7},
    "protect": {"share": 4.0},
    "orfit": {"rank": 8, "share": 0.1},
}
P = 12 * 16 + 16 + 16 * 3 + 3


def setup(seed: int = 0, tasks: int = 3) -> Setup:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cost = bytes_of_example(torch.zeros(1, 12), torch.zeros(1, dtype=torch.int64))
    return Setup(model, optimizer, lambda x, y, group: cross_entropy(model(x), y), tasks, cost, seed=seed)


def task(t: int, n: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(100 + t)
    return torch.randn(n, 12, generator=g), torch.randint(0, 3, (n,), generator=g)


def train(given: Setup, learner, tasks) -> None:
    for t in tasks:
        x, y = task(t)
        for i in range(6):
            batch = slice(3 * i, 3 * i + 3)
            given.optimizer.zero_grad()
            cross_entropy(given.model(x[batch]), y[batch]).backward()
            learner.before_step(x[batch], y[batch], 0)
            given.optimizer.step()
            learner.after_step()
        learner.end_task(x, y, 0)


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([t.detach().flatten() for t in model.parameters()])


def test_the_names_are_in_the_order_of_runs() -> None:
    assert list(KINDS) == NAMES
    assert "published_agem" in sketchogd.paper.__all__


def test_titles_styles_and_the_order_of_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Baseline is Learner
    assert {name for name in KINDS if keeps_examples(name)} == {"a-gem", "a-gem-published", "replay", "der"}
    assert [title(name) for name in ("sgd", "sketchogd-2", "layer-sketch", "ipca-ogd", "a-gem")] == [
        "SGD",
        "SketchOGD-2",
        "LayerSketch",
        "IPCA-OGD",
        "A-GEM",
    ]
    numbers = [style(name) for name in KINDS if style(name) is not None]
    assert sorted(numbers) == list(range(27)), "every style is one method's"
    assert [style(name) for name in ("layer-sketch", "sgd", "random-ogd", "both")] == [0, 7, 15, None]
    assert listed()[:4] == ["sgd", "ogd", "random-ogd", "pca-ogd"]
    assert listed()[-5:] == ["a-gem", "replay", "der", "a-gem-published", "both"]
    assert listed()[10] == "protect"
    assert set(listed()) == set(KINDS)
    assert len(listed()) == len(KINDS)
    assert (title("zzz"), style("zzz"), keeps_examples("zzz")) == ("zzz", None, False)
    monkeypatch.setattr(sketchogd.lab.methods.registry, "KINDS", dict(KINDS))
    register("zzz", "one of your own", title="Zzz", style=27, keeps_examples=True)(lambda settings, setup: None)
    assert (title("zzz"), style("zzz"), keeps_examples("zzz"), listed()[-1]) == ("Zzz", 27, True, "zzz")


@pytest.mark.parametrize("name", NAMES)
def test_every_method_trains_and_its_state_continues_to_the_same_weights(name: str) -> None:
    settings = method(name, every=4, **SMALL.get(name, {}))
    assert json.loads(json.dumps(asdict(settings)))["name"] == name
    given = setup()
    learner = build(settings, given)
    start = flat(given.model)
    train(given, learner, range(2))
    assert not torch.equal(flat(given.model), start)
    other = setup()
    other.model.load_state_dict(given.model.state_dict())
    resumed = build(settings, other)
    resumed.load_state_dict(learner.state_dict())
    assert resumed.nbytes == learner.nbytes
    assert (learner.nbytes > 0) == (name != "sgd")
    train(given, learner, [2])
    train(other, resumed, [2])
    assert torch.equal(flat(given.model), flat(other.model))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("sgd", "ogd", "both")])
def test_a_budget_is_kept_and_mostly_used(name: str) -> None:
    given = setup()
    budget = 40_000
    learner = build(method(name, every=2, budget=budget), given)
    train(given, learner, range(3))
    assert learner.nbytes <= budget
    one = 3 * given.example_nbytes
    if name in ("a-gem", "a-gem-published", "random-ogd", "sketchogd", "sketchogd-1", "fd-ogd", "ipca-ogd"):
        full = min(budget - one, 60 * given.example_nbytes) if name.startswith("a-gem") else budget / 2
        assert learner.nbytes >= full


def test_the_bytes_of_a_protection_are_those_of_its_ledger() -> None:
    for every in (1, 5):
        given = setup()
        learner = build(method("sketchogd", every=every, rank=10), given)
        assert isinstance(learner, Protected)
        train(given, learner, range(2))
        assert learner.nbytes == learner.protection.ledger().nbytes


def test_random_ogd_keeps_equally_many_of_each_task() -> None:
    given = setup(tasks=3)
    learner = build(method("random-ogd", capacity=12), given)
    assert isinstance(learner, Protected)
    for t in range(3):
        learner.end_task(*task(t))
        assert learner.protection.memory.examples == 4 * (t + 1)
    assert len(learner.protection.projector.basis) == 12


def test_the_paper_s_sketches_keep_1200_vectors_of_length_p() -> None:
    sketches = {
        "sketchogd-1": so.GradientSketch(1200),
        "sketchogd-2": so.ProductSketch(600, test_matrix=so.Gaussian(stored=True)),
        "sketchogd-3": so.SymmetricSketch(299, 301, test_matrix=so.Gaussian(stored=True)),
    }
    for name, sketch in sketches.items():
        given = setup()
        built = build(method(name, every=1), given)
        assert isinstance(built, Protected)
        made = built.protection.memory.sketch
        assert {**made.settings(), "seed": 0} == sketch.settings()
        # beside the 1,200 vectors only square factors of the rank are kept
        assert 0 <= sketch.cost(113_610) - 4 * 1200 * 113_610 <= 4 * 1200**2 + 8 * 1200


def test_the_same_gradients_are_shown_to_all_methods_of_a_seed() -> None:
    seen = {}
    for name in ("ogd", "sketchogd-1"):
        given = setup()
        learner = build(method(name, examples=7, **({} if name == "ogd" else {"rank": 300})), given)
        learner.end_task(*task(0))
        B = learner.protection.projector.basis
        seen[name] = B.T @ B
    torch.testing.assert_close(seen["ogd"], seen["sketchogd-1"], atol=1e-4, rtol=0)


def test_wrong_names_come_with_the_nearest_right_ones() -> None:
    with pytest.raises(ValueError, match="did you mean sketchogd"):
        method("sketchodg")
    with pytest.raises(ValueError, match="did you mean ridge"):
        method("layer-sketch", rigde=1.0)
    with pytest.raises(ValueError, match="a budget determines rank"):
        method("sketchogd", budget=1000, rank=3)
    assert unknown("thing", "zzz", ["a"]) == "unknown thing 'zzz'; There are: a"


@pytest.mark.parametrize(
    ("name", "budget"), [("ewc", 100), ("si", 100), ("sketchogd", 100), ("gpm", 1100), ("ogd", 9**9), ("both", 9**9)]
)
def test_a_budget_that_cannot_be_kept_is_refused(name: str, budget: int) -> None:
    with pytest.raises(ValueError, match=r"bytes|budget"):
        build(method(name, budget=budget), setup())


class Hoarder(Learner):
    """A method that knows nothing of budgets: a copy of the weights from the start, and one more for each task."""

    def __init__(self, model: torch.nn.Module, at_once: int) -> None:
        self.model, self.copies = model, [p.detach().clone() for p in model.parameters()] * at_once

    def end_task(self, inputs: Any, targets: Any, head: int = 0) -> None:
        self.copies += [p.detach().clone() for p in self.model.parameters()]

    def tensors(self) -> dict[str, torch.Tensor]:
        return {str(i): copy for i, copy in enumerate(self.copies)}

    def state_dict(self) -> dict[str, Any]:
        return self.tensors()

    def load_state_dict(self, state: Any) -> None:
        self.copies = list(state.values())


def test_an_own_method_that_keeps_more_than_its_budget_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "hoarder", KINDS["sgd"])  # taken out again at the end
    register("hoarder", "keeps copies of the weights", every=1, at_once=0)(
        lambda settings, setup: Hoarder(setup.model, **settings.options)
    )
    stream = benchmark("split-mnist", tasks=3, n_train=20, n_test=20)
    model = model_for(stream, 0)
    one = sum(p.nbytes for p in model.parameters())
    training = Training(epochs=1)
    with pytest.raises(ValueError, match=rf"hoarder keeps {2 * one:,} bytes, more than its budget of {one:,}"):
        fit(stream, model, method("hoarder", budget=one, at_once=2), training)
    with pytest.raises(ValueError, match=rf"hoarder keeps {2 * one:,} bytes, more than its budget"):
        fit(stream, model, method("hoarder", budget=one), training)  # after the second of three tasks
    fit(stream, model, method("hoarder", budget=3 * one), training)
    fit(stream, model, method("hoarder"), training)


def test_labels_name_what_is_not_as_usual() -> None:
    assert method("sketchogd").label == "sketchogd"
    assert method("sketchogd", rank=1200).label == "sketchogd"
    assert method("layer-sketch", budget=2_000_000, ridge=0.1).label == "layer-sketch,ridge=0.1,budget=2000000"
    assert method("ogd", every=1, examples=3).label == "ogd,every=1,examples=3"


def test_options_of_sketchogd_reach_the_memory() -> None:
    learner = build(method("sketchogd", rank=6, test_matrix="gaussian", basis_dtype="bfloat16", offload="cpu"), setup())
    assert isinstance(learner, Protected)
    memory = learner.protection.memory
    assert isinstance(memory, so.GradientMemory)
    assert (memory.basis_dtype, memory.offload) == (torch.bfloat16, "cpu")
    assert (
        memory.sketch.settings()["test_matrix"] == so.ProductSketch(6, test_matrix="gaussian").settings()["test_matrix"]
    )
    sparse = build(method("sketchogd", rank=6, zeta=3), setup()).protection.memory.sketch
    assert (
        sparse.settings()["test_matrix"] == so.ProductSketch(6, test_matrix=so.SparseSign(3)).settings()["test_matrix"]
    )
    with pytest.raises(ValueError, match="did you mean sparse"):
        build(method("sketchogd", test_matrix="sprase"), setup())


def test_a_budget_of_a_pull_holds_its_anchor_too() -> None:
    for every in (1, 5):
        given = setup()
        learner = build(method("sketchogd-pull", budget=25_000, blocks=3, every=every), given)
        train(given, learner, range(3))
        assert 0.8 * 25_000 < sum(t.nbytes for t in learner.tensors().values()) <= 25_000
        assert learner.protection.memory.rule.strength == 8.0


def test_a_budget_with_an_offloaded_sketch_counts_what_is_on_the_device() -> None:
    budget = 25_000
    ranks = {}
    for half in ({}, {"basis_dtype": "bfloat16", "offload": "cpu"}, {"basis_dtype": "bfloat16"}):
        given = setup()
        learner = build(method("sketchogd", budget=budget, **half), given)
        assert isinstance(learner, Protected)
        train(given, learner, range(3))
        held = learner.tensors()
        counted = sum(t.nbytes for name, t in held.items() if not (half.get("offload") and name.startswith("sketch.")))
        assert 0.8 * budget < counted <= budget
        ranks[len(half)] = learner.protection.memory.sketch.rank
    assert ranks[2] > 1.5 * ranks[0] > ranks[1], "half the bytes a number give nearly twice the rank"


def test_projected_gradients_equal_projected_updates_for_sgd_and_leak_with_adam() -> None:
    def final(name: str, optimizer: type, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
        given = replace(setup(), optimizer=None)
        given = replace(given, optimizer=optimizer(given.model.parameters(), lr=0.01))
        learner = build(method(name, every=1, rank=40, **options), given)
        train(given, learner, [0])
        protection = learner.protection if isinstance(learner, Protected) else learner.learner.protection
        B, before = protection.projector.basis.clone(), flat(given.model)
        train(given, learner, [1])
        moved = flat(given.model) - before
        return moved, (B @ moved).norm() / moved.norm()

    moved, leak = final("sketchogd", torch.optim.SGD)
    other, other_leak = final("gradient-ogd", torch.optim.SGD)
    torch.testing.assert_close(moved, other, atol=1e-6, rtol=1e-4)
    assert max(leak, other_leak) < 1e-4
    _, update_leak = final("sketchogd", torch.optim.Adam)
    _, gradient_leak = final("gradient-ogd", torch.optim.Adam)
    assert update_leak < 1e-4
    assert gradient_leak > 0.05
    with pytest.raises(ValueError, match="memory of gradient-ogd"):
        build(method("gradient-ogd", memory="gpm"), setup())
