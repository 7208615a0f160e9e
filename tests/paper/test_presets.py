"""Presets: the paper's settings as PROTOCOL states them, in configs that can be written and told apart."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import sketchogd as so
from sketchogd.lab import models
from sketchogd.lab.methods import KINDS, Setup, build
from sketchogd.lab.methods.protected import Protected
from sketchogd.lab.records import config_digest
from sketchogd.lab.runs.config import make_optimizer
from sketchogd.lab.streams import BENCHMARKS, record
from sketchogd.optimizer.reference import FULL, copies_nbytes
from sketchogd.paper import goals, presets, published, settings
from sketchogd.paper.networks import EXPERIMENTS
from tests.lab.streams.noise import stream_of

TASKS = {"rotated-mnist": 10, "permuted-mnist": 10, "split-mnist": 5, "split-cifar100": 20}


def by_method(preset: presets.Preset, benchmark: str) -> dict:
    return {run.method.name: run for run in preset.runs if run.benchmark == benchmark and run.seed == 0}


def test_table_1_is_the_published_grid() -> None:
    preset = presets.table1()
    assert len(preset.runs) == 4 * 7 * 5
    for benchmark in settings.PAPER:
        runs = by_method(preset, benchmark)
        assert set(runs) == set(published.TABLE_1)
        assert all(run.training.epochs == 30 and run.training.batch == 10 for run in runs.values())
        assert all(run.training.lr == 1e-3 and run.method.every in (1, 50) for run in runs.values())
        assert all(not published.departures(benchmark, run.record(), TASKS[benchmark]) for run in runs.values())
        assert runs["sketchogd-1"].method.options == {"rank": 1200}
        assert runs["sketchogd-2"].method.options == {"rank": 600}
        assert runs["sketchogd-3"].method.options == {"rank": 299, "corank": 301}
        assert runs["sketchogd-3"].method.examples is None
    assert by_method(preset, "split-mnist")["pca-ogd"].method.options == {"samples": 300, "components": 180}
    assert by_method(preset, "split-mnist")["a-gem"].method.options == {"per_task": 240, "batch": 240}
    assert by_method(preset, "split-cifar100")["a-gem"].method.options == {"per_task": 60, "batch": 1200}


def test_table_2_compresses_4800_gradients_to_1200_vectors() -> None:
    for benchmark in settings.PAPER:
        runs = by_method(presets.table2([benchmark], seeds=1), benchmark)
        assert set(runs) == set(published.TABLE_2)
        for name in ("sketchogd-1", "sketchogd-2", "sketchogd-3", "ogd"):
            assert runs[name].method.examples * TASKS[benchmark] == 4800
        assert runs["pca-ogd"].method.options["samples"] * TASKS[benchmark] == 4800
        assert runs["pca-ogd"].method.options["components"] * TASKS[benchmark] == 1200
        assert runs["random-ogd"].method.options["capacity"] == 1200


def test_only_the_published_cifar_runs_have_its_quirks() -> None:
    runs = presets.table1(seeds=1).runs
    for run in runs:
        assert run.training.eval_after_first_step is (run.benchmark == "split-cifar100")
        assert bool(run.training.frozen) is (run.benchmark == "split-cifar100")


@pytest.mark.parametrize("name", list(presets.PRESETS))
def test_every_run_has_a_name_and_a_digest_of_its_own(name: str) -> None:
    runs = presets.PRESETS[name](seeds=2).runs
    assert len({run.name for run in runs}) == len(runs)
    assert len({config_digest(run.record()) for run in runs}) == len(runs)
    for run in runs:
        assert json.loads(json.dumps(run.record())) == run.record()
        assert run.record()["preset"] == name


def test_equal_bytes_gives_everyone_the_same_budget() -> None:
    preset = presets.equal_bytes(["rotated-mnist"], budget="2MB")
    assert {run.method.budget for run in preset.runs} == {2_000_000}
    assert {"layer-sketch", "a-gem", "ewc"} <= {run.method.name for run in preset.runs}


def test_a_preset_can_be_changed_in_a_few_fields() -> None:
    preset = presets.changed(presets.table1(["split-mnist"], seeds=1), every=1, epochs=3)
    runs = by_method(preset, "split-mnist")
    assert runs["sketchogd-2"].method.every == 1
    assert runs["a-gem"].method.every == runs["sgd"].method.every == 1
    assert {run.training.epochs for run in preset.runs} == {3}


def test_the_demo_has_the_methods_it_should() -> None:
    assert [run.method.name for run in presets.demo().runs] == ["sgd", "ogd", "sketchogd", "layer-sketch", "a-gem"]


def test_wrong_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="did you mean split-mnist"):
        presets.table1(["split-mnits"])
    monkeypatch.setitem(BENCHMARKS, "own", record("split-mnist"))
    assert "own" not in {run.benchmark for run in presets.table1().runs}
    with pytest.raises(ValueError, match="unknown benchmark of the paper 'own'"):
        presets.table1(["own"])
    with pytest.raises(ValueError, match="unknown method"):
        presets.table1(["split-mnist"], ["nothing"])
    with pytest.raises(ValueError, match="one seed"):
        presets.table1(seeds=0)


class Seen(Exception):
    """Carries what a method was about to be built with, so that no large sketch is allocated."""


@pytest.mark.parametrize("benchmark", settings.PAPER)
def test_every_budget_of_equal_bytes_is_kept_and_used(benchmark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = record(benchmark)
    model = known.network(stream_of(known), 0)
    parameters = so.ProtectedParameters(model, known.protected)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    example = known.example_nbytes
    given = Setup(model, optimizer, lambda x, y, group: x.sum(), TASKS[benchmark], example, known.protected)

    def memory_of(*_: object, memory: so.Memory | so.Sketch, **__: object) -> None:
        raise Seen(memory)

    monkeypatch.setattr(so, "protect", memory_of)
    runs = presets.equal_bytes([benchmark], seeds=1).runs
    seen: dict[str, list[int]] = {}
    for run in runs:
        budget = run.method.budget
        try:
            learner = build(run.method, given)
        except Seen as found:
            (memory,) = found.args
        else:
            assert run.method.name in ("a-gem", "replay", "ewc", "si")
            assert (budget is None) == (run.method.name in ("ewc", "si"))
            assert learner.nbytes <= (budget or 12 * parameters.p)
            continue
        memory = so.GradientMemory(memory) if isinstance(memory, so.Sketch) else memory
        times = TASKS[benchmark] if run.method.name == "pca-ogd" else 1  # each task adds as much again
        copies = copies_nbytes(parameters.tensors, memory.rule.anchor or FULL) if run.method.every > 1 else 0
        needed = times * memory.cost(parameters) + copies
        if run.method.options.get("offload"):
            needed -= memory.sketch.cost(parameters.p)
        assert budget is not None
        assert needed <= budget, run.name
        full = budget >= settings.PAPER[benchmark].layer_full_bytes and run.method.name in ("layer-sketch", "gpm")
        assert full or needed > (0.5 if run.method.name == "pca-ogd" else 0.8) * budget, f"{run.name} uses {needed}"
        seen.setdefault(run.method.name, []).append(needed)
    assert all(len(set(sizes)) == len(sizes) for sizes in seen.values()), "a budget gives the same memory again"


def test_a_layer_memory_has_the_anchor_that_its_budget_has_room_for() -> None:
    def chosen(budget: int, **settings: object) -> dict[str, object]:
        made = presets.default_method("layer-sketch", "split-mnist", budget=budget, **settings)
        return {"every": made.every, **{key: made.options.get(key) for key in ("ridge", "anchor_dtype", "strength")}}

    assert chosen(1_000_000) == {"every": 50, "ridge": None, "anchor_dtype": None, "strength": 4.0}
    assert chosen(500_000) == {"every": 50, "ridge": None, "anchor_dtype": "int8", "strength": 4.0}
    assert chosen(200_000) == {"every": 1, "ridge": 0.0, "anchor_dtype": None, "strength": None}
    # what is said goes before
    assert chosen(1_000_000, anchor_dtype="int8")["anchor_dtype"] == "int8"
    assert chosen(500_000, ridge=0.1, every=1) == {"every": 1, "ridge": 0.1, "anchor_dtype": None, "strength": None}
    assert chosen(200_000, every=7)["every"] == 7


def test_methods_with_runs_elsewhere_are_not_run_twice() -> None:
    named = {(run.method.name, run.method.budget) for run in presets.equal_bytes(["rotated-mnist"], seeds=1).runs}
    assert ("sketchogd-1", settings.PAPER_BYTES["rotated-mnist"]) not in named
    assert ("fd-ogd", settings.PAPER_BYTES["rotated-mnist"]) in named
    assert ("layer-sketch", 2_000_000) not in named
    there = {(run.method.name, run.method.budget) for run in presets.goals(["rotated-mnist"], seeds=1).runs}
    assert {("sketchogd", settings.PAPER_BYTES["rotated-mnist"]), ("layer-sketch", 2_000_000)} <= there


def test_goals_are_those_of_the_issue() -> None:
    wanted = {
        "counted": (0.890, 0.830, 0.690, 0.676),
        "bfloat16": (0.900, 0.843),
        "tuned": (0.905, 0.925, 0.910, 0.665),
        "one-rule": (0.905, 0.925, 0.910, 0.665),
        "quarter": (0.905, 0.925, 0.910, 0.665),
    }
    listed = goals.goal_list()
    assert {key: tuple(g.accuracy for g in listed if g.key == key) for key in wanted} == wanted
    one = {json.dumps(dict(g.method.options)) for g in listed if g.key == "one-rule"}
    assert len(one) == 1, "one rule is the same for all benchmarks"
    less = {json.dumps({k: v for k, v in g.method.options.items() if k != "anchor_dtype"}) for g in listed[-4:]}
    assert less == one
    assert [4 * g.method.budget for g in listed[-4:]] == [g.method.budget for g in listed if g.key == "one-rule"]
    half = next(g.method for g in listed if g.key == "bfloat16")
    assert half.options["rank"] * 2 * settings.PARAMETERS["rotated-mnist"] == settings.PAPER_BYTES["rotated-mnist"]


def test_nothing_is_tuned_on_test_data() -> None:
    runs = presets.ridges().runs
    assert {run.validation for run in runs} == {0.1}
    sketches = {"sketchogd", "sketchogd-blocks", "sketchogd-pull", "layer-sketch"}
    assert {run.method.name for run in runs} == {*sketches, "gpm", "ewc", "si"}
    pulls = [run.method for run in runs if run.method.name == "sketchogd-pull"]
    assert {(m.budget, m.options["blocks"]) for m in pulls} == {(80_000_000, 64), (7_687_200_000, 16)}
    less = [run for run in runs if run.method.budget == settings.PAPER[run.benchmark].small_bytes // 4]
    anchors = [(run.method.options.get("anchor_dtype"), run.method.options["ridge"]) for run in less]
    assert anchors == 3 * [(None, None), ("int8", None), (None, 0.0)] + [("int8", None), (None, 0.0)]
    with pytest.raises(ValueError, match="something to tune"):
        presets.ridges(methods=["sgd"])


def test_ablations_vary_what_they_say() -> None:
    runs = presets.ablations(["rotated-mnist"], groups=["every"]).runs
    assert {run.method.every for run in runs} == {1, 10, 50, 100, 500, 1000, 3000, 10_000}
    assert len(runs) == 21
    optimizers = presets.ablations(["rotated-mnist"], groups=["optimizer"]).runs
    assert {run.training.optimizer for run in optimizers} == {"sgd", "adam"}
    assert all(("optimizer=adam" in run.name) == (run.training.optimizer == "adam") for run in optimizers)
    with pytest.raises(ValueError, match="did you mean rank"):
        presets.ablations(groups=["rnak"])


def test_two_runs_cannot_share_a_folder() -> None:
    run = presets.table1(["split-mnist"], ["sgd"], seeds=1).runs[0]
    assert settings.distinct([run, run]) == (run,)
    with pytest.raises(ValueError, match="share the folder"):
        settings.distinct([run, replace(run, training=replace(run.training, lr=1.0))])


def test_every_small_run_of_every_preset_can_be_built() -> None:
    network = {name: models.mlp(outputs=stream_of(record(name)).classes) for name in TASKS if "mnist" in name}
    for name, make in presets.PRESETS.items():
        for run in make(seeds=1).runs if name not in EXPERIMENTS else ():  # those are built in tests/lab/test_networks
            small = run.method.budget is None and run.method.options.get("rank", 1200) <= 300
            layers = run.method.name in ("layer-sketch", "gpm", "ewc", "si", "a-gem", "replay")
            if run.benchmark in network and (small or layers):
                model = network[run.benchmark]
                setup = Setup(model, make_optimizer(model, run.training), lambda *_: torch.zeros(()), 10, 4112, None, 0)
                learner = build(run.method, setup)
                if isinstance(learner, Protected):
                    learner.protection.detach()


def test_the_lab_s_page_counts_the_runs_and_names_the_methods() -> None:
    page = (Path(__file__).parents[2] / "docs" / "lab.md").read_text()
    experiments, methods = (page.split(f"## {title}\n")[1].split("\n\n")[0] for title in ("Experiments", "Methods"))
    counted: dict[str, int] = {}
    for line in experiments.splitlines()[2:]:
        names, _, counts = (cell.strip() for cell in line.strip("|").split("|"))
        counted |= zip(re.findall(r"`([\w-]+)`", names), map(int, counts.split(", ")), strict=True)
    assert counted == {name: len(make().runs) for name, make in presets.PRESETS.items()}
    named = re.findall(r"`([\w-]+)`", " ".join(line.split("|")[1] for line in methods.splitlines()[2:]))
    assert {f"sketchogd{name}" if name.startswith("-") else name for name in named} == set(KINDS)
