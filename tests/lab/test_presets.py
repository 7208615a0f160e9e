"""Presets: the paper's settings as PROTOCOL states them, in configs that can be written and told apart."""

import json

import pytest

from sketchogd.lab import presets, published
from sketchogd.lab.records import config_digest
from sketchogd.lab.streams import BENCHMARKS

TASKS = {"rotated-mnist": 10, "permuted-mnist": 10, "split-mnist": 5, "split-cifar100": 20}


def by_method(preset: presets.Preset, benchmark: str) -> dict:
    return {run.method.name: run for run in preset.runs if run.benchmark == benchmark and run.seed == 0}


def test_table_1_is_the_published_grid() -> None:
    preset = presets.table1()
    assert len(preset.runs) == 4 * 7 * 5
    for benchmark in BENCHMARKS:
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
    for benchmark in BENCHMARKS:
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


def test_wrong_names_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean split-mnist"):
        presets.table1(["split-mnits"])
    with pytest.raises(ValueError, match="unknown method"):
        presets.table1(["split-mnist"], ["nothing"])
    with pytest.raises(ValueError, match="one seed"):
        presets.table1(seeds=0)
