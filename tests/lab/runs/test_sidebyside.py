"""Runs trained side by side come out as single runs do."""

import gc
import re
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import sketchogd as so
from sketchogd.lab import models, records
from sketchogd.lab.data import datasets
from sketchogd.lab.methods import method
from sketchogd.lab.methods.baselines import AGEM
from sketchogd.lab.methods.baselines.examples import ExampleStore
from sketchogd.lab.runs import grid, train
from sketchogd.lab.runs.config import RunConfig, Training
from sketchogd.lab.runs.sidebyside import group, partition, stacked, steps, stored_examples
from sketchogd.paper.published_agem import PublishedAGEM
from sketchogd.paper.settings import training_for

SMALL = {"tasks": 2, "n_train": 105, "n_test": 60}
TRAINING = Training(epochs=2, lr=0.02)
METHODS = [
    method("sgd"),
    method("sketchogd", rank=30, every=4),
    method("sketchogd-blocks", rank=10, blocks=3, every=4),
    method("sketchogd-pull", rank=10, blocks=3, every=4),
    method("layer-sketch", every=4),
    method("random-ogd", capacity=30, every=4),
    method("a-gem", per_task=30, batch=20),
    method("replay", capacity=60),
    method("ewc"),
    method("si"),
]
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]


def both(tmp_path, configs, device="cpu", **options):
    """(side by side, single) records of every config."""
    folders = [tmp_path / "together" / config.name for config in configs]
    group.run(configs, folders, device=device, **options)
    for config in configs:
        train.run(config, tmp_path / "single" / config.name, device=device, **options)
    return [
        (records.load(folder), records.load(tmp_path / "single" / c.name))
        for c, folder in zip(configs, folders, strict=True)
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("benchmark", "methods"),
    [("rotated-mnist", METHODS), ("permuted-mnist", METHODS), ("rotated-mnist", [method("replay", capacity=60)])],
)
def test_runs_come_out_as_single_ones(tmp_path, benchmark, methods, device):
    """All kinds of methods in one group; and replay by itself, where stored examples join the batch."""
    configs = [RunConfig(benchmark, m, TRAINING, seed, **SMALL) for seed in (0, 1) for m in methods]
    for together, single in both(tmp_path, configs, device):
        # 60 test images: a single one that lies on the edge may fall on the other side
        np.testing.assert_allclose(together.accuracy, single.accuracy, atol=1.01 / 60)
        np.testing.assert_allclose(together.initial, single.initial)
        assert np.abs(together.accuracy - single.accuracy).mean() < 0.004
        for key in ("ledger", "steps", "parameters", "digest"):
            assert together.record[key] == single.record[key], key
        assert together.status == "finished"
        mine, theirs = (records.RunFolder(run.path).events() for run in (together, single))
        assert [(e["task"], e["epoch"], len(e["accuracy"])) for e in mine] == [
            (e["task"], e["epoch"], len(e["accuracy"])) for e in theirs
        ]
        np.testing.assert_allclose([e["loss"] for e in mine], [e["loss"] for e in theirs], rtol=2e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("every", [(5, 5), (7, 7), (17, 17), (1000, 1000), (4, 12), (3, 7)])
def test_steps_that_are_projected_together_may_lie_in_several_epochs(tmp_path, every, device, monkeypatch):
    monkeypatch.setattr(steps, "LONGEST", 5)
    methods = [method("sketchogd", rank=8, examples=20, every=every[0]), method("layer-sketch", rank=8, every=every[1])]
    training = replace(TRAINING, epochs=4)  # of 11 steps
    configs = [RunConfig("rotated-mnist", m, training, seed, **SMALL) for seed in (0, 1) for m in methods]
    for together, single in both(tmp_path, configs, device):
        np.testing.assert_allclose(together.accuracy, single.accuracy, atol=1.01 / 60)
        curves = [[e["accuracy"] for e in records.RunFolder(run.path).events()] for run in (together, single)]
        for mine, theirs in zip(*curves, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1.01 / 60)
        losses = [[e["loss"] for e in records.RunFolder(run.path).events()] for run in (together, single)]
        np.testing.assert_allclose(*losses, rtol=2e-3)


PLAIN = [method("sgd"), method("sketchogd", rank=4, every=3, examples=8)]


@pytest.mark.parametrize(
    "chosen",
    [
        PLAIN,
        [*PLAIN, method("a-gem", per_task=10, batch=20), method("a-gem", per_task=6, batch=8), method("replay")],
        [*PLAIN, method("a-gem-published", per_task=10, batch=20), method("a-gem-published", per_task=6, batch=8)],
        [method("replay"), method("replay", capacity=20)],
    ],
)
def test_frozen_convolutions_become_features(tmp_path, monkeypatch, chosen):
    """Stored examples are of several heads; in memory batches of 8 by chance, and without any no gradient is stored."""
    generator = torch.Generator().manual_seed(0)
    halves = [
        (torch.randint(0, 256, (n, 3, 32, 32), generator=generator).byte(), torch.arange(n) % 10) for n in (80, 80)
    ]
    images = datasets.LabelledImages(*halves[0], *halves[1], name="cifar100", classes=10)
    monkeypatch.setattr(datasets, "load", lambda name, folder=None: images)
    training = replace(training_for("split-cifar100"), epochs=1, lr=0.02)
    configs = [RunConfig("split-cifar100", m, training, seed) for seed in (0, 1) for m in chosen]
    for together, single in both(tmp_path, configs):
        np.testing.assert_allclose(together.accuracy, single.accuracy, atol=1.01 / 40)
        assert together.record["ledger"] == single.record["ledger"]
        losses = [[e["loss"] for e in records.RunFolder(run.path).events()] for run in (together, single)]
        np.testing.assert_allclose(*losses, rtol=2e-3)


def test_adam_side_by_side(tmp_path):
    training = Training(epochs=1, lr=1e-3, optimizer="adam")
    configs = [RunConfig("rotated-mnist", METHODS[1], training, seed, **SMALL) for seed in (0, 1)]
    for together, single in both(tmp_path, configs):
        np.testing.assert_allclose(together.accuracy, single.accuracy, atol=1.01 / 60)


def lenet_on_features():
    net = models.LeNet(3, seed=1).eval().requires_grad_(False)
    net.wide.requires_grad_()
    net.wide_norm.requires_grad_()
    net.heads.requires_grad_()
    net.use_head(1)
    return net, (3200,)


def state_of(net, S=4):
    """Random weights of S models, their buffers, and the names of what is trained."""
    state = {name: torch.randn(S, *t.shape, dtype=torch.float64) for name, t in net.named_parameters()}
    fixed = {name: 1 + torch.rand(S, *t.shape, dtype=torch.float64) for name, t in net.named_buffers()}
    return state, fixed, [name for name, p in net.named_parameters() if p.requires_grad]


def joined(state):
    """The tensors (S, …) as a stack has them: those of all heads one below the other."""
    found = {}
    for name, t in state.items():
        found.setdefault(re.sub(r"heads\.\d+", "heads", name), []).append(t)
    return {name: torch.cat(ts, 1) for name, ts in found.items()}


def gradients_of(twin, trained):
    """What autograd found, zeros where it came to nothing."""
    return joined({n: torch.zeros_like(twin[n]) if twin[n].grad is None else twin[n].grad for n in trained})


def losses_of(net, state, x, y):
    """Autograd's twin of the passes: the models one at a time."""
    return torch.stack(
        [
            cross_entropy(torch.func.functional_call(net, {name: t[s] for name, t in state.items()}, (x[s],)), y[s])
            for s in range(len(x))
        ]
    )


@pytest.mark.parametrize(
    ("make", "passes"),
    [
        (lambda: (models.mlp(12, (), 3, seed=1), (3, 4)), stacked.chain_passes),
        (lambda: (models.mlp(12, (7, 5), 3, seed=1), (3, 4)), stacked.chain_passes),
        (lenet_on_features, stacked.features_passes),
    ],
)
def test_passes_that_are_written_out_are_those_of_autograd(make, passes):
    net, shape = make()
    state, fixed, trained = state_of(net)
    twin = {name: t.clone().requires_grad_(name in trained) for name, t in state.items()}
    x, y = torch.randn(4, 6, *shape, dtype=torch.float64), torch.randint(0, 3, (4, 6))
    features = passes is stacked.features_passes
    assert stacked.written_out(net, features) is passes
    net.get_parameter(trained[0]).requires_grad_(False)
    with pytest.raises(ValueError, match=f"with .*{trained[0]} frozen cannot be trained side by side"):
        stacked.written_out(net, features)
    optimizer = torch.optim.SGD([twin[name] for name in trained], lr=0.1)
    state = joined(state)
    for _ in range(3):
        losses = losses_of(net, {**fixed, **twin}, x, y)
        optimizer.zero_grad()
        losses.sum().backward()
        mine, found = stacked.gradients(passes, net, {**fixed, **state}, x, y)
        torch.testing.assert_close(mine.mean(1), losses.detach())
        torch.testing.assert_close(found, gradients_of(twin, trained))
        optimizer.step()
        before = stacked.step_(passes, net, {**fixed, **state}, x, y, 0.1)
        torch.testing.assert_close(before.mean(1), losses.detach())
    torch.testing.assert_close(state, joined({name: t.detach() for name, t in twin.items()}))


def test_examples_of_several_heads_go_through_their_own():
    net, shape = lenet_on_features()
    net = net.double()
    state, fixed, trained = state_of(net, S=2)
    twin = {name: t.clone().requires_grad_(name in trained) for name, t in state.items()}
    x, y = torch.randn(2, 6, *shape, dtype=torch.float64), torch.randint(0, 3, (2, 6))
    heads = torch.tensor([[0, 2, 2, 0, 2, 2], [2, 2, 0, 0, 0, 0]])
    losses, found = stacked.gradients(stacked.features_passes, net, {**fixed, **joined(state)}, x, y, heads)
    total = torch.zeros(2, dtype=torch.float64)
    for s in range(2):
        for i in range(6):
            net.use_head(int(heads[s, i]))
            one = {name: t[s : s + 1] for name, t in {**fixed, **twin}.items()}
            total[s] = total[s] + losses_of(net, one, x[s : s + 1, i : i + 1], y[s : s + 1, i : i + 1])[0] / 6
    total.sum().backward()
    torch.testing.assert_close(losses.mean(1), total.detach())
    torch.testing.assert_close(found, gradients_of(twin, trained))


def test_other_models_are_refused():
    linear = torch.nn.Linear(2, 2)
    others = [linear, torch.nn.Sequential(linear), torch.nn.Sequential(torch.nn.Flatten(), linear, linear)]
    lenet, _ = lenet_on_features()
    for net, features in [*((net, True) for net in others), (lenet, False), (lenet.train(), True)]:
        with pytest.raises(ValueError, match="side by side"):
            stacked.written_out(net, features)


@pytest.mark.parametrize("parts", [[(5, False)], [(2, True), (1, True), (2, False)]])
def test_joint_steps_are_projected_as_lazy_steps_are(parts):
    def trained(joint):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        protection = so.protect(model, optimizer, memory=so.ProductSketch(12), every=5)
        x, y = torch.randn(30, 6, dtype=torch.float64), torch.arange(30) % 3
        protection.remember([(x, y)])
        before = [p.detach().clone() for p in model.parameters()]

        def step():
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(-x), y).backward()
            optimizer.step()

        if joint:
            protection.detach()  # no hooks: as in the replay of a graph
            for _ in range(4):
                for steps, more in parts:
                    with protection.joint(steps, more):
                        for _ in range(steps):
                            step()
        else:
            for _ in range(20):
                step()
        moved = torch.cat([(p.detach() - b).flatten() for p, b in zip(model.parameters(), before, strict=True)])
        assert protection.projector.leak(moved) < 1e-12
        assert protection.leak < 1e-12
        return moved

    torch.testing.assert_close(trained(joint=True), trained(joint=False))


@pytest.mark.parametrize(("n", "size"), [(12, 5), (40, 5), (5, 5)])
def test_draws_are_uniform_without_replacement_and_follow_from_seed_and_number(n, size):
    """Few out of many are drawn in another way than many: 25 is between 12 and 40."""

    def store():
        made = ExampleStore(seed=3)
        made.append(torch.zeros(n, 1), torch.arange(n), 0)
        return made

    drawn = store()
    rows = torch.stack([drawn.rows(size) for _ in range(2000)])
    assert all(len(set(row.tolist())) == size for row in rows)
    counts = rows.flatten().bincount(minlength=n).double()
    expected = 2000 * size / n
    assert ((counts - expected).abs() <= 4.5 * (expected * (1 - size / n)) ** 0.5).all()
    later = store()
    later.draws = 1500
    assert torch.equal(later.rows(size), rows[1500])
    assert drawn.draws == 2000


def test_a_recall_draws_what_single_runs_would():
    def member(seed, kept, batch):
        net = models.mlp(4, (3,), 2)
        learner = AGEM(net, lambda x, y, group: cross_entropy(net(x), y), per_task=kept, batch=batch, seed=seed)
        learner.end_task(torch.randn(30, 1, 4), torch.arange(30) % 2)
        return learner

    settings = [(0, 20, 4), (1, 4, 9), (2, 3, 4)]
    learners, twins = ([member(*each) for each in settings] for _ in range(2))
    for learner, twin in zip(learners, twins, strict=True):
        twin.store.load_state_dict(learner.store.state_dict(), lambda t: t)
    stack = stacked.stacked([models.mlp(4, (3,), 2) for _ in learners])
    several, one = stored_examples.recalls(list(enumerate(learners)), stack, torch.device("cpu"))
    assert several.which.tolist() == [0, 1]
    assert one.which.tolist() == [2]  # it has but three examples, and the one before four
    for recall, theirs in ((several, twins[:2]), (one, twins[2:])):
        for count in (3, 3, 2):
            recall.plan(count)
            for at in range(count):
                for row, twin in zip(recall.rows[:, at], theirs, strict=True):
                    ((x, y, _),) = twin.store.draw(twin.batch)
                    assert torch.equal(recall.inputs[row], x)
                    assert torch.equal(recall.targets[row], y)


@pytest.mark.parametrize("spare", [0, 1])
@pytest.mark.parametrize("kind", [AGEM, PublishedAGEM])
def test_memory_batches_of_several_heads_change_gradients_as_alone(kind, spare):
    """Six examples out of twelve: which head is the first one's, by which the released code goes, changes.

    With a spare model, which keeps no examples, the recalled ones are not all that there are.
    """
    g = torch.Generator().manual_seed(0)
    nets = [lenet_on_features()[0].double() for _ in range(3 + spare)]
    stack, learners = stacked.stacked(nets), []
    options = {"protected": models.LeNet.PROTECTED} if kind is PublishedAGEM else {}
    for s, net in enumerate(nets[:3]):
        for p in net.parameters():
            p.data.add_(torch.randn(p.shape, generator=g, dtype=p.dtype), alpha=0.1)

        def loss(x, y, head, net=net):
            net.use_head(head)
            value = cross_entropy(net(x), y)
            net.use_head(1)
            return value

        learners.append(kind(net, loss, per_task=4, batch=6, seed=s, **options))
        for head in (0, 2, 1):
            x = torch.rand(9, 3200, generator=g, dtype=torch.float64)
            learners[s].end_task(x, torch.randint(0, 5, (9,), generator=g), head)
    (recall,) = stored_examples.recalls(list(enumerate(learners)), stack, torch.device("cpu"))
    recall.plan(5)
    changed = 0
    for at in range(5):
        x = torch.rand(len(nets), 4, 3200, generator=g, dtype=torch.float64)
        y = torch.randint(0, 5, (len(nets), 4), generator=g)
        _, found = stacked.gradients(stacked.features_passes, nets[0], stack.weights, x, y)
        alone = {name: t.clone() for name, t in found.items()}
        recall.change_(found, torch.tensor([at]), 4, stacked.features_passes, nets[0])
        for s, (net, learner) in enumerate(zip(nets[:3], learners, strict=True)):
            learner.store.draws = at
            net.zero_grad()
            cross_entropy(net(x[s]), y[s]).backward()
            before = net.wide.weight.grad.clone()
            learner.before_step(x[s], y[s], 1)
            changed += not torch.equal(before, net.wide.weight.grad)
            named = {name: p for name, p in net.named_parameters() if p.requires_grad}
            expected = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in named.items()}
            mine = {name: t[s : s + 1] for name, t in found.items()}
            torch.testing.assert_close(mine, joined({name: t.unsqueeze(0) for name, t in expected.items()}))
        for name, t in found.items():
            assert torch.equal(t[3:], alone[name][3:])
    assert 0 < changed < 15


def test_groups_hold_what_can_share_a_loop():
    def config(name, seed=0, benchmark="rotated-mnist", **options):
        return RunConfig(benchmark, method(name, **options), seed=seed)

    a, b, c = config("sketchogd"), config("sketchogd", seed=1), config("sketchogd", every=10)
    idle, other = config("sgd"), config("sketchogd", benchmark="split-mnist")
    raw = config("a-gem")
    rare, odd = config("sketchogd", every=500), config("sketchogd", every=70)
    assert partition.groups([a, rare, odd, c], 8) == [[a, rare], [odd], [c]]
    assert partition.groups([a, raw, b, c, idle, other], 8) == [[idle, a, b], [raw], [c], [other]]
    assert partition.groups([a, b, idle], 2) == [[idle, a], [b]]
    assert partition.groups([a, b], 1) == [[a], [b]]
    one = 4 * 113_610 * 1200
    assert partition.groups([a, b], 8, room=2 * one) == [[a, b]]
    assert partition.groups([a, b], 8, room=2 * one - 1) == [[a], [b]]
    # normalisation that depends on the batch needs a loop of its own
    trained = RunConfig("split-cifar100", method("sgd"))
    frozen = replace(trained, training=training_for("split-cifar100"))
    alone = [
        trained,
        replace(frozen, training=replace(frozen.training, frozen=("conv*", "wide*"))),
        replace(a, training=replace(a.training, frozen=("1.*",))),
        replace(a, training=replace(a.training, eval_after_first_step=True)),
    ]
    pair = [frozen, replace(frozen, seed=1)]
    assert partition.groups([*alone, *pair], 8) == [pair, *([one] for one in alone)]


def test_a_grid_trains_together_and_takes_up_checkpoints_alone(tmp_path, monkeypatch):
    training = Training(epochs=1, lr=0.02)
    configs = [RunConfig("rotated-mnist", method("sgd"), training, seed, **SMALL) for seed in range(3)]
    sizes = []
    run = group.run
    monkeypatch.setattr(group, "run", lambda configs, *a, **k: sizes.append(len(configs)) or run(configs, *a, **k))
    place = records.RunFolder(tmp_path / configs[1].name)
    stop = RuntimeError("stop")

    def interrupt(done, whole, doing):
        if done >= 2:
            raise stop

    with pytest.raises(RuntimeError, match="stop"):
        train.run(configs[1], place.path, progress=interrupt)
    assert (place.path / "checkpoint.safetensors").exists()
    updates = []
    outcomes = grid.run_grid(configs, tmp_path, together=8, listener=updates.append)
    assert [o.status for o in outcomes] == ["finished"] * 3
    assert sizes == [2]
    assert {u.run for u in updates if u.share == 1.0} == {c.name for c in configs}
    assert [o.status for o in grid.run_grid(configs, tmp_path, together=8)] == ["skipped"] * 3


def test_a_group_is_gone_before_the_next_begins(tmp_path, monkeypatch):
    """Together two groups' sketches may not fit."""
    alive = []
    make = group.Group.__init__

    def watched(group, *arguments):
        assert [ref() for ref in alive] == [None] * len(alive)
        alive.append(weakref.ref(group))
        make(group, *arguments)

    monkeypatch.setattr(group.Group, "__init__", watched)
    configs = [
        RunConfig(
            "rotated-mnist", method("sketchogd", rank=8, examples=20, every=4), replace(TRAINING, epochs=1), s, **SMALL
        )
        for s in range(4)
    ]
    gc.disable()  # when it would come by itself depends on chance
    try:
        assert [o.status for o in grid.run_grid(configs, tmp_path, together=2)] == ["finished"] * 4
    finally:
        gc.enable()
    assert len(alive) == 2


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_whose_loss_is_not_finite_fails_alone(jobs, tmp_path):
    training = Training(epochs=1, lr=0.01)
    chosen = [method("ewc", strength=1.0), method("ewc", strength=1e30), method("ewc", strength=2.0)]
    configs = [RunConfig("rotated-mnist", m, training, 0, **SMALL) for m in chosen]
    names = [config.name for config in configs]
    updates = []
    outcomes = grid.run_grid(configs, tmp_path / "together", together=3, jobs=jobs, listener=updates.append)
    assert [(o.run, o.status) for o in outcomes] == list(zip(names, ["finished", "failed", "finished"], strict=True))
    assert "lower lr" in outcomes[1].message
    assert outcomes[0].message == outcomes[2].message == ""
    last = {update.run: update.doing for update in updates}
    assert last == {o.run: o.status for o in outcomes}
    found = [records.load(tmp_path / "together" / name) for name in names]
    assert [run.status for run in found] == ["finished", "failed", "finished"]
    assert "error" not in found[0].record
    assert "lower lr" in found[1].record["error"]["message"]
    grid.run_grid([configs[0], configs[2]], tmp_path / "alone")
    for i in (0, 2):
        assert np.allclose(found[i].accuracy, records.load(tmp_path / "alone" / names[i]).accuracy, atol=0.01)
    again = grid.run_grid(configs, tmp_path / "together", together=3)
    assert [o.status for o in again] == ["skipped", "failed", "skipped"]


def test_runs_that_do_not_fit_together_begin_again_in_halves(tmp_path, monkeypatch):
    sizes, run = [], group.run

    def limited(configs, folders, **options):
        sizes.append(len(configs))
        if len(configs) > 2:
            raise torch.OutOfMemoryError("too much")
        return run(configs, folders, **options)

    monkeypatch.setattr(group, "run", limited)
    configs = [RunConfig("rotated-mnist", method("sgd"), Training(epochs=1), seed, **SMALL) for seed in range(5)]
    outcomes = grid.run_grid(configs, tmp_path, together=8)
    assert [(o.run, o.status) for o in outcomes] == [(c.name, "finished") for c in configs]
    assert sizes == [5, 2, 3, 1, 2]
    assert records.load(tmp_path / configs[2].name).record["timings"]["side_by_side"] == 1


@pytest.mark.parametrize("together", [1, 2])
def test_a_run_by_itself_is_stacked_where_groups_are_allowed(together, tmp_path):
    config = RunConfig("rotated-mnist", method("sgd"), Training(epochs=1), **SMALL)
    grid.run_grid([config], tmp_path, together=together)
    timings = records.load(tmp_path / config.name).record["timings"]
    assert timings.get("side_by_side") == (1 if together > 1 else None)
