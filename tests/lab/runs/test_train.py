"""The training loop: against a literal one, resumed from a kill at any moment, and with the modes as they were."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sketchogd as so
from sketchogd.lab import records
from sketchogd.lab.methods import method
from sketchogd.lab.models import LeNet
from sketchogd.lab.runs import loop, train
from sketchogd.lab.runs.config import RunConfig, Training, make_optimizer, model_for, stream_of
from sketchogd.lab.streams import Task, from_datasets
from sketchogd.paper.settings import training_for
from sketchogd.seeds import derive_seed

ROOT = Path(__file__).parents[3]


def points(place: int, classes: int = 3, n: int = 30, head: int = 0) -> Task:
    g = torch.Generator().manual_seed(place)
    x, y = torch.randn(2 * n, 6, generator=g), torch.randint(0, classes, (2 * n,), generator=g)
    x[:, 0] += 2 * y
    return Task(x[:n], y[:n], x[n:], y[n:], name=f"points {place}", classes=classes, head=head)


def small(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([t.detach().flatten() for t in model.parameters()])


def config(name: str = "layer-sketch", **changes) -> RunConfig:
    settings = method(name, **changes.pop("settings", {}))
    training = Training(**{"epochs": 2, "lr": 0.01, **changes.pop("training", {})})
    return RunConfig("split-mnist", settings, training, **{"tasks": 3, "n_train": 200, "n_test": 100, **changes})


def test_the_loop_does_what_a_literal_one_does() -> None:
    stream = from_datasets([points(t) for t in range(3)])
    result = train.fit(
        stream, small(), method("sketchogd", rank=20, every=1), Training(epochs=2, batch=7, lr=0.1), seed=5
    )
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = so.ProductSketch(20, seed=derive_seed(5, "method", "sketchogd"))
    protection = so.protect(model, optimizer, memory=memory)
    rows = []
    for t, task in enumerate(stream):
        for epoch in range(2):
            g = torch.Generator().manual_seed(derive_seed(5, "order", t, epoch))
            for rows_of_batch in torch.randperm(30, generator=g).split(7):
                optimizer.zero_grad()
                cross_entropy(model(task.x_train[rows_of_batch]), task.y_train[rows_of_batch]).backward()
                optimizer.step()
        protection.remember([(task.x_train, task.y_train)])
        with torch.no_grad():
            rows.append([float((model(s.x_test).argmax(1) == s.y_test).float().mean()) for s in stream])
    assert torch.equal(flat(model), flat(result.model))
    np.testing.assert_allclose(result.accuracy, rows, atol=1e-6)
    assert result.steps == 3 * 2 * 5
    assert result.summary.learning_accuracy == pytest.approx(np.diagonal(rows).mean(), abs=1e-6)


def test_lazy_projection_is_settled_whenever_the_model_is_evaluated() -> None:
    stream = from_datasets([points(t) for t in range(2)])
    result = train.fit(stream, small(), method("sketchogd", rank=10, every=1000), Training(epochs=1, batch=7, lr=0.1))
    once = train.fit(stream, small(), method("sketchogd", rank=10, every=1), Training(epochs=1, batch=7, lr=0.1))
    plain = train.fit(stream, small(), method("sgd"), Training(epochs=1, batch=7, lr=0.1))
    # The displacement over the second task avoids the basis: as with every=1, unlike without protection.
    for run, inside in ((result, False), (once, False), (plain, True)):
        first = train.fit(stream[:1], small(), method("sgd"), Training(epochs=1, batch=7, lr=0.1))
        moved = flat(run.model) - flat(first.model)
        memory = so.ProductSketch(10, seed=derive_seed(0, "method", "sketchogd"))
        other = small()
        nn.utils.vector_to_parameters(flat(first.model), other.parameters())
        protection = so.protect(other, torch.optim.SGD(other.parameters(), lr=0.1), memory=memory)
        protection.remember([(stream[0].x_train, stream[0].y_train)])
        share = (protection.projector.basis @ moved).norm() / moved.norm()
        assert (share > 0.1) == inside
        assert inside or share < 1e-4


class Noted(nn.Module):
    """A network with heads, batch normalisation and dropout, which notes its mode and head at every call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))
        self.heads = nn.ModuleList(nn.Linear(8, 3) for _ in range(3))
        self.head = 0
        self.calls: list[tuple[bool, int]] = []

    def use_head(self, head: int) -> None:
        self.head = head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append((self.training, self.head))
        return self.heads[self.head](self.body(x))


@pytest.mark.parametrize("quirk", [False, True])
def test_modes_and_heads(quirk: bool, tmp_path: Path) -> None:
    stream = from_datasets([points(t) for t in range(3)], own_heads=True)
    model = Noted()
    folder = records.RunFolder(tmp_path)
    folder.start({})
    training = Training(epochs=2, batch=10, lr=0.1, frozen=("body.0.*",), eval_after_first_step=quirk)
    before = model.body[0].weight.clone()
    train.fit(stream, model, method("a-gem", per_task=4, batch=8), training, folder=folder, protected="body*")
    assert torch.equal(model.body[0].weight, before)
    calls = model.calls[3:]  # the first three evaluate the untrained network
    assert calls[0] == (True, 0)
    steps = [call for call in calls if call[0]]
    # 3 steps an epoch, 2 epochs, 3 tasks; memory batches of the 1 or 2 earlier heads come with each step
    assert len(steps) == (1 if quirk else 18 + 6 + 12)
    assert model.training is not quirk
    evaluations = [event["accuracy"] for event in folder.events()]
    assert [len(scores) for scores in evaluations] == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("name", ["layer-sketch", "a-gem", "ewc"])
def test_the_network_of_split_cifar_trains_with_its_published_quirks(name: str) -> None:
    def images(place: int) -> Task:
        g = torch.Generator().manual_seed(place)
        x, y = torch.randn(24, 3, 32, 32, generator=g), torch.randint(0, 5, (24,), generator=g)
        return Task(x[:12], y[:12], x[12:], y[12:], name=f"images {place}", classes=5)

    stream = from_datasets([images(0), images(1)], own_heads=True)
    model = model_for(stream, 0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    settings = {"layer-sketch": {"rank": 8}, "a-gem": {"per_task": 4, "batch": 6}, "ewc": {"samples": 3}}[name]
    training = replace(training_for("split-cifar100"), epochs=1, lr=0.01)
    train.fit(stream, model, method(name, **settings), training, protected=LeNet.PROTECTED)
    same = {key for key, value in model.state_dict().items() if torch.equal(value, before[key])}
    frozen = {key for key in before if key.startswith("conv") and key.endswith(("weight", "bias"))}
    assert frozen <= same
    assert not same & {"wide.weight", "heads.0.weight", "heads.1.weight"}
    assert int(model.conv1_norm.num_batches_tracked) == 1
    assert not model.training


def test_dropout_follows_the_seed_and_leaves_the_global_generator_alone() -> None:
    stream = from_datasets([points(t) for t in range(2)])
    runs = []
    for noise in range(2):
        model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 3))
        nn.utils.vector_to_parameters(flat(small()), model.parameters())
        torch.manual_seed(noise)
        before = torch.get_rng_state()
        runs.append(train.fit(stream, model, method("sgd"), Training(epochs=2, lr=0.1)))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(flat(runs[0].model), flat(runs[1].model))


def test_a_loss_that_is_no_longer_finite_is_an_error(tmp_path: Path) -> None:
    wild = config("sgd", training={"lr": 1e9})
    with pytest.raises(FloatingPointError, match="lower lr"):
        train.run(wild, tmp_path)
    assert records.load(tmp_path).status == "failed"
    assert records.state(tmp_path, wild.record()) is records.State.FAILED


def test_every_optimizer_and_wrong_names() -> None:
    for name in ("sgd", "momentum", "adam", "adamw"):
        assert make_optimizer(small(), Training(optimizer=name, lr=0.5)).param_groups[0]["lr"] == 0.5
    with pytest.raises(ValueError, match="did you mean adam"):
        make_optimizer(small(), Training(optimizer="adm"))
    with pytest.raises(ValueError, match="did you mean split-mnist"):
        stream_of(RunConfig("split-mnits", method("sgd")))
    with pytest.raises(ValueError, match="split-mnist has none"):
        stream_of(RunConfig("split-mnist", method("sgd"), degrees=3.0))
    turned = stream_of(RunConfig("rotated-mnist", method("sgd"), tasks=2, n_train=10, n_test=10, degrees=20.0))
    assert turned.recipes[1].name == "rotated 20°"
    assert model_for(turned, 0)(turned.test(0)[0]).shape == (10, 10)


def test_a_run_writes_its_record(tmp_path: Path) -> None:
    chosen = config("sketchogd", settings={"rank": 10})
    result = train.run(chosen, tmp_path)
    found = records.load(tmp_path)
    assert found.status == "finished"
    assert found.config == json.loads(json.dumps(chosen.record()))
    assert (found.config["method"], found.config["epochs"]) == ("sketchogd", 2)
    np.testing.assert_array_equal(found.accuracy, result.accuracy)
    assert found.record["results"]["average_accuracy"] == result.summary.average_accuracy
    assert found.record["ledger"]["nbytes"] == result.ledger["nbytes"] == result.learner.nbytes
    assert found.record["parameters"]["protected"] == 1024 * 100 + 100 + 100 * 100 + 100 + 202
    assert set(found.record["timings"]) == {"evaluate", "train", "checkpoint", "remember", "total"}
    values = np.load(tmp_path / "spectra.npz")["singular_values"]
    assert len(values) == 10
    assert (np.diff(values) <= 0).all()
    assert not (tmp_path / "checkpoint.safetensors").exists()
    with pytest.raises(records.RecordError, match="another config"):
        train.run(config("sgd"), tmp_path)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sketchogd", {"rank": 10}),
        ("sketchogd", {"rank": 10, "every": 3}),  # some epochs end between two projections
        ("layer-sketch", {"every": 3}),
        ("a-gem", {}),
        ("si", {}),
    ],
)
def test_a_run_stopped_anywhere_goes_on_to_the_same_numbers(name, settings, tmp_path: Path, monkeypatch) -> None:
    chosen = config(name, settings=settings, training={"epochs": 3})
    monkeypatch.setattr(loop, "CHECKPOINT_SHARE", 0.0)  # after tasks only
    whole = train.run(chosen, tmp_path / "whole")
    monkeypatch.setattr(loop, "CHECKPOINT_SHARE", 1e9)  # after every epoch, where that changes nothing
    draw = random.Random(name)

    class Stop(BaseException):
        pass

    stops = 0
    while not (tmp_path / "cut" / "run.json").exists() or records.load(tmp_path / "cut").status != "finished":
        left = draw.randint(1, 5) if stops < 4 else 10**9

        def progress(*_: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Stop

        try:
            train.run(chosen, tmp_path / "cut", progress=progress)
        except Stop:
            stops += 1
    assert stops >= 2
    again = records.load(tmp_path / "cut")
    np.testing.assert_array_equal(again.accuracy, whole.accuracy)
    assert again.record["results"] == records.load(tmp_path / "whole").record["results"]
    assert records.RunFolder(tmp_path / "cut").events() == records.RunFolder(tmp_path / "whole").events()


@pytest.mark.parametrize("stop", [2, 3, 5, 6])
def test_fit_gives_the_same_with_a_folder_without_one_and_resumed(stop: int, tmp_path: Path, monkeypatch) -> None:
    """Reports come at the start of each of the 2 × 2 epochs and after them: 3 and 6 are of tasks that end."""
    monkeypatch.setattr(loop, "CHECKPOINT_SHARE", 1e9)
    stream = from_datasets([points(t, head=t) for t in range(2)], own_heads=True)

    class Stop(BaseException):
        pass

    def fitted(folder: str | None, last: int = 10**9) -> train.Result:
        place = None if folder is None else records.RunFolder(tmp_path / folder)
        if place is not None and not (place.path / "run.json").exists():
            place.start({})
        reports = 0

        def progress(*_: object) -> None:
            nonlocal reports
            reports += 1
            if reports == last:
                raise Stop

        training = Training(epochs=2, batch=7, lr=0.05, optimizer="momentum", eval_after_first_step=True)
        return train.fit(stream, Noted(), method("si"), training, seed=3, folder=place, progress=progress)

    alone, whole = fitted(None), fitted("whole")
    with pytest.raises(Stop):
        fitted("cut", last=stop)
    resumed = fitted("cut")
    for result in (whole, resumed):
        assert torch.equal(flat(result.model), flat(alone.model))
        np.testing.assert_array_equal(result.accuracy, alone.accuracy)
        np.testing.assert_array_equal(result.initial, alone.initial)
        assert (result.steps, result.summary, result.ledger) == (2 * 2 * 5, alone.summary, alone.ledger)
    assert records.RunFolder(tmp_path / "cut").events() == records.RunFolder(tmp_path / "whole").events()
    state = records.checkpoint.load(tmp_path / "whole" / "checkpoint.safetensors")["state"]
    kept = ["model", "optimizer", "learner", "task", "epoch", "steps", "schedule", "matrix", "initial", "spent"]
    assert list(state) == kept
    assert (state["task"], state["epoch"], state["steps"]) == (1, 1, 15)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_process_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\n"
        "from sketchogd.lab.runs import train\n"
        "from sketchogd.lab.runs.config import RunConfig, Training\n"
        "from sketchogd.lab.methods import method\n"
        "torch.set_num_threads(1)\n"
        "training = Training(epochs=4, lr=0.01)\n"
        "chosen = RunConfig('split-mnist', method('layer-sketch', rank=50), training, n_train=400, n_test=200)\n"
        "train.run(chosen, sys.argv[1])\n"
    )

    def start(folder: str) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, str(script), str(tmp_path / folder)], env={**os.environ})

    assert start("whole").wait() == 0
    draw, kills = random.Random(1), 0
    while True:
        process = start("cut")
        began, path = time.monotonic(), tmp_path / "cut" / "checkpoint.safetensors"
        written = path.stat().st_mtime_ns if path.exists() else 0
        # Kill at a random moment after the first checkpoint that this process writes, so that each one gets further.
        while process.poll() is None and kills < 3 and time.monotonic() - began < 60:
            if path.exists() and path.stat().st_mtime_ns != written:
                time.sleep(draw.uniform(0, 0.3))
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.01)
        code = process.wait()
        if code == 0:
            break
        assert code == -signal.SIGKILL
        kills += 1
    assert kills >= 1
    whole, cut = records.load(tmp_path / "whole"), records.load(tmp_path / "cut")
    np.testing.assert_array_equal(whole.accuracy, cut.accuracy)
    for key in ("results", "ledger", "steps", "config", "digest"):
        assert whole.record[key] == cut.record[key]
    assert records.RunFolder(whole.path).events() == records.RunFolder(cut.path).events()


def test_the_loop_needs_no_command_line_packages() -> None:
    code = (
        "import sys\n"
        "for name in ('typer', 'rich', 'matplotlib', 'torchvision'): sys.modules[name] = None\n"
        "import sketchogd.lab.runs.train, sketchogd.paper.presets, sketchogd.lab.runs.grid\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["own_method", "own_stream"])
def test_the_examples_are_short_and_run(name: str) -> None:
    path = ROOT / "examples" / f"{name}.py"
    assert len(path.read_text().splitlines()) < 40
    command = [sys.executable, "-W", "error", str(path)]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, check=True, capture_output=True, text=True, env=one_thread)
    scores = {line.split()[0]: line for line in found.stdout.splitlines()}
    assert "sgd" in scores
    assert len(scores) >= 3
