"""The experiments on networks: equally many tries per method, bytes that fit, and choices made from records alone."""

import json
from pathlib import Path

import pytest

from sketchogd.lab.methods import KINDS, method
from sketchogd.lab.records import bundles, config_digest
from sketchogd.lab.runs.config import RunConfig
from sketchogd.lab.streams import record
from sketchogd.paper import presets
from sketchogd.paper.networks import experiments, tries
from tools import choose, networks_page, results_page
from tools.evidence import Evidence


def test_every_method_has_equally_many_different_tries() -> None:
    for benchmark in tries.compared():
        for name in tries.OPTIONS:
            settings = tries.tried(name, benchmark)
            assert len(settings) == tries.TRIES == len({each.label for each in settings})
            budgets = {each.budget for each in settings}
            assert budgets == {record(benchmark).budget if name in tries.SIZED else None}
            if name in tries.KEEP_DATA and name != "der":
                assert all(each.options["stored"] == "bytes" for each in settings)
    assert set(tries.SIZED) == {name for name in tries.OPTIONS if KINDS[name].sizes}
    assert tries.usual("gpm-cifar100") == method("protect", budget=8_000_000)
    with pytest.raises(ValueError, match="did you mean"):
        tries.tried("gpm-publisheds", "gpm-cifar100")


def test_tuning_uses_no_test_data_and_the_comparison_no_held_out_data() -> None:
    tuning, compared = presets.networks_tuning(), presets.networks()
    assert all(run.validation == tries.VALIDATION for run in tuning.runs)
    assert len(tuning.runs) == len(tries.compared()) * len(tries.OPTIONS) * tries.TRIES
    assert not any(run.validation for run in compared.runs)
    names = {(run.benchmark, run.method.name) for run in compared.runs}
    assert names == {(b, m) for b in tries.compared() for m in ("sgd", *tries.OPTIONS)}
    for preset in (tuning, compared, presets.long_streams(), presets.one_pass(), presets.networks_ablations()):
        assert len({run.name for run in preset.runs}) == len(preset.runs)
    assert all(run.single_head for run in presets.class_incremental().runs)
    assert {run.tasks for run in presets.long_streams().runs} == {100}
    assert {run.training.batch for run in presets.one_pass().runs} == {1}


def entry(run: RunConfig, accuracy: float) -> dict:
    digest = config_digest(run.record())
    found = {"name": f"{run.setting}/seed-{run.seed}", "digest": digest, "config": run.record()}
    return {**found, "ledger": {"nbytes": 10, "host": 0, "kinds": {}}, "accuracy": [[accuracy], [accuracy] * 2]}


def test_the_best_try_on_held_out_data_is_chosen_and_has_all_seeds(tmp_path: Path, monkeypatch) -> None:
    benchmark = "vit-cifar100"
    lines = []
    for m, name in enumerate(tries.OPTIONS):
        runs = [experiments.held_out(benchmark, each) for each in tries.tried(name, benchmark)]
        if name == "owm":
            runs = runs[:-1]  # one was not run
        lines += [entry(run, 0.5 + 0.01 * m + 0.001 * (i == 2)) for i, run in enumerate(runs)]
    bundles.write_entries(tmp_path / "networks-tuning" / f"{benchmark}.json", lines)
    found = choose.choices(Evidence.load(tmp_path))
    assert set(found) == {benchmark}
    assert set(found[benchmark]) == set(tries.OPTIONS) - {"owm"}
    assert found[benchmark]["replay"] == {"try": 2, "held_out": pytest.approx(0.5 + 0.111, abs=1e-3), "tries": 4}
    path = tmp_path / "chosen.json"
    assert choose.main([str(tmp_path), "--out", str(path), "--check"]) == 1
    assert choose.main([str(tmp_path), "--out", str(path), "--write"]) == 0
    assert choose.main([str(tmp_path), "--out", str(path), "--check"]) == 0
    assert json.loads(path.read_text()) == found
    monkeypatch.setattr(tries, "CHOSEN", path)
    tries.choices.cache_clear()
    try:
        assert tries.chosen("replay", benchmark) == tries.tried("replay", benchmark)[2]
        assert tries.chosen("owm", benchmark) == tries.tried("owm", benchmark)[0]
        runs = presets.networks([benchmark]).runs
        seeds = {name: len({run.seed for run in runs if run.method.name == name}) for name in ("sgd", *tries.OPTIONS)}
        best = sorted(found[benchmark], key=lambda name: -found[benchmark][name]["held_out"])[:5]
        assert {name for name, count in seeds.items() if count == 3} == {"sgd", "protect", *best}
        assert set(seeds.values()) == {1, 3}
        ours = [run.method for run in runs if run.method.name == "protect" and run.seed == 0]
        assert ours == [tries.usual(benchmark), tries.tried("protect", benchmark)[2]]
    finally:
        monkeypatch.undo()
        tries.choices.cache_clear()


def test_the_choices_are_those_of_the_records() -> None:
    root = Path(__file__).parents[2] / "results"
    assert tries.CHOSEN.read_text() == choose.text(Evidence.load(root))


def test_ablations_vary_one_setting_of_the_default() -> None:
    start = experiments._smallest_with_tasks()
    assert start.name == "vit-cifar100"
    for name, variants in experiments.GROUPS.items():
        runs = presets.networks_ablations(groups=[name]).runs
        assert len(runs) == len(variants)
    assert {run.per_task for run in presets.networks_ablations(groups=["tasks"]).runs} == {10, 5, 2}
    with pytest.raises(ValueError, match="did you mean"):
        presets.networks_ablations(groups=["rnak"])
    with pytest.raises(ValueError, match="unknown benchmark of networks"):
        presets.networks(["split-mnist"])


def test_the_page_of_networks_shows_what_was_run_beside_what_others_publish(tmp_path: Path) -> None:
    known, benchmark = record("gpm-cifar100"), "gpm-cifar100"
    lines = []
    for seed in range(2):
        run = RunConfig(benchmark, tries.usual(benchmark), known.training, seed, "networks")
        matrix = [[0.8], [0.7 + 0.02 * seed, 0.9]]
        lines.append({**entry(run, 0.0), "accuracy": matrix, "ledger": {"nbytes": 7_400_000, "host": 0, "kinds": {}}})
    bundles.write_entries(tmp_path / "networks" / f"{benchmark}.json", lines)
    long = presets.long_streams(methods=["sgd"]).runs[0]
    rows = [[0.5] * i + [1.0] for i in range(100)]
    bundles.write_entries(tmp_path / "long-streams" / f"{long.benchmark}.json", [{**entry(long, 0), "accuracy": rows}])
    page = networks_page.page(tmp_path, {f"networks/{benchmark}": "A remark."})
    assert "| sketchogd, default | 7.4 MB | 28% | 85.0 | 80.5 ± 0.7 | −9.0 | 2 | 0 |" in page
    assert "| *GPM, published* | | | | *72.5* | *−0.9* | | |" in page
    assert "A budget of 8 MB, 31% of the shared weights. The goal is 76.5 in these bytes." in page
    assert "A remark." in page
    assert "| SGD | 10 B | 55.0 | 52.0 | 51.0 | 50.5 |" in page
    assert page.count("Not run yet.") == 2 + len(experiments.GROUPS)
    assert set(networks_page.known_keys()).isdisjoint(results_page.known_keys())


def test_what_is_written_agrees_and_what_was_changed_does_not(tmp_path: Path) -> None:
    networks_page.write(tmp_path, tmp_path, {})
    assert not networks_page.check(tmp_path, tmp_path, {})
    (tmp_path / networks_page.PAGE).write_text("other")
    assert networks_page.check(tmp_path, tmp_path, {})


def test_the_page_of_networks_is_that_of_the_records() -> None:
    home = Path(__file__).parents[2]
    assert not networks_page.check(home / "results", home, results_page.read_notes(home / "results" / "notes.md"))
