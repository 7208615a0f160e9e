"""Schedules and augmentation against PyTorch's and a literal rule, and runs that resume with them."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sketchogd.lab import records
from sketchogd.lab.methods import method
from sketchogd.lab.runs import loop, train
from sketchogd.lab.runs.config import RunConfig, Training, make_optimizer
from sketchogd.lab.runs.schedules import OneCycle, Plateau
from sketchogd.lab.streams import from_datasets
from sketchogd.lab.streams.augment import shifted_and_mirrored
from sketchogd.seeds import derive_seed
from tests.lab.runs.test_train import flat, points, small


def test_one_cycle_is_pytorch_s() -> None:
    for steps in (30, 157):
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
        theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, steps, pct_start=0.1, cycle_momentum=False)
        ours = OneCycle(0.3, steps)
        for step in range(steps):
            assert ours.rate(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
            optimizer.step()
            if step + 1 < steps:
                theirs.step()


def test_a_plateau_halves_the_rate_and_the_best_weights_count() -> None:
    model = nn.Linear(1, 1, bias=False)
    schedule = Plateau(0.01, 0)
    losses = [3.0, 2.0, *[2.5] * 6, 1.0, *[1.0] * 200]
    best, rate, patience, ended = math.inf, 0.01, 6, None
    for epoch, loss in enumerate(losses):
        with torch.no_grad():
            model.weight.fill_(epoch)
        over = schedule.end_epoch(model, lambda: None, lambda loss=loss: loss)
        if loss < best:  # the rule of the script
            best, patience = loss, 6
        else:
            patience -= 1
            if patience <= 0:
                rate, patience = rate / 2, 6
                ended = epoch if rate < 1e-5 else None
        assert schedule.rate(0) == rate
        assert over == (ended is not None)
        if over:
            break
    assert ended == 8 + 6 * 9, "halved once before the best loss, and nine times after it"
    schedule.end_task(model)
    assert float(model.weight.detach()) == 8.0


def test_the_examples_set_aside_are_a_random_twentieth_of_each_task() -> None:
    rows = [Plateau(0.1, 0).set_aside(1000, 7, task) for task in (0, 0, 1)]
    assert len(rows[0]) == 50 == len(rows[0].unique())
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])


def test_images_are_moved_and_mirrored_and_nothing_else() -> None:
    x = torch.arange(1.0, 1 + 3 * 8 * 8).view(1, 3, 8, 8).repeat(64, 1, 1, 1)
    torch.manual_seed(0)
    seen = set()
    for found in shifted_and_mirrored(x):
        possible = {
            (flip, i, j): torch.nn.functional.pad(x[0].flip(2) if flip else x[0], [4] * 4)[:, i : i + 8, j : j + 8]
            for flip in (False, True)
            for i in range(9)
            for j in range(9)
        }
        fitting = [key for key, image in possible.items() if torch.equal(image, found)]
        assert len(fitting) == 1
        seen |= set(fitting)
    assert len(seen) > 30


def test_one_cycle_clipping_and_a_fresh_optimizer_in_the_loop() -> None:
    stream = from_datasets([points(t) for t in range(2)])
    training = Training(
        epochs=2, batch=5, lr=0.05, optimizer="adamw", schedule="onecycle", clip=0.1, fresh=True, weight_decay=0.3
    )
    result = train.fit(stream, small(), method("sgd"), training, seed=5)
    model = small()
    for t, task in enumerate(stream):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, 12, pct_start=0.1, cycle_momentum=False)
        for epoch in range(2):
            for rows in loop.shuffled(30, 5, t, epoch).split(5):
                optimizer.zero_grad()
                cross_entropy(model(task.x_train[rows]), task.y_train[rows]).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                if schedule.last_epoch < 11:
                    schedule.step()
    torch.testing.assert_close(flat(result.model), flat(model))


def test_a_plateau_in_the_loop_trains_on_the_rest_and_restores_the_best_weights() -> None:
    stream = from_datasets([points(t, n=40) for t in range(2)])
    training = Training(epochs=9, batch=8, lr=0.3, schedule="plateau", test_batch=16)
    result = train.fit(stream, small(), method("sgd"), training, seed=2)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for t, task in enumerate(stream):
        order = torch.randperm(40, generator=torch.Generator().manual_seed(derive_seed(0, "aside", 2, t)))
        aside = order[:2]
        own = torch.tensor([i for i in range(40) if i not in aside.tolist()])
        best, weights, rate, patience = math.inf, None, 0.3, 6
        for epoch in range(9):
            for rows in loop.shuffled(38, 2, t, epoch).split(8):
                optimizer.param_groups[0]["lr"] = rate
                optimizer.zero_grad()
                cross_entropy(model(task.x_train[own[rows]]), task.y_train[own[rows]]).backward()
                optimizer.step()
            loss = float(cross_entropy(model(task.x_train[aside]), task.y_train[aside]).detach())
            if loss < best:
                best, patience, weights = loss, 6, {n: v.clone() for n, v in model.state_dict().items()}
                continue
            patience -= 1
            if patience <= 0:
                rate, patience = rate / 2, 6
        model.load_state_dict(weights)
    torch.testing.assert_close(flat(result.model), flat(model))


class Stopped(Exception):
    pass


@pytest.mark.parametrize("name", ["layer-sketch", "der", "gpm-published"])
@pytest.mark.parametrize("schedule", ["plateau", "onecycle"])
def test_a_run_that_is_stopped_within_a_task_resumes_to_the_same_numbers(
    tmp_path: Path, name: str, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SHARE", 1e9)
    every = {"every": 5} if name == "layer-sketch" else {}
    training = Training(epochs=4, lr=0.02, schedule=schedule, optimizer="momentum", fresh=True, curve=False)
    config = RunConfig("split-mnist", method(name, **every), training, tasks=2, n_train=100, n_test=50)
    whole = train.run(config, tmp_path / "whole")
    calls = []

    def stop(done: float, all_of_them: float, doing: str) -> None:
        calls.append(doing)
        if done >= 6:  # in the second task
            raise Stopped

    with pytest.raises(Stopped):
        train.run(config, tmp_path / "again", progress=stop)
    assert (tmp_path / "again" / "checkpoint.safetensors").exists()
    again = train.run(config, tmp_path / "again")
    torch.testing.assert_close(flat(again.model), flat(whole.model), atol=0, rtol=0)
    assert records.load(tmp_path / "again").status == "finished"


def test_new_settings_leave_old_configs_as_they_were() -> None:
    config = RunConfig("split-mnist", method("sgd"))
    new = {"schedule", "augment", "weight_decay", "clip", "fresh", "test_batch", "per_task", "single_head"}
    assert not new & config.record().keys()
    changed = replace(config, training=Training(schedule="plateau", fresh=True, clip=1.0), single_head=True)
    assert {"schedule", "fresh", "clip", "single_head"} <= changed.record().keys()
    with pytest.raises(ValueError, match="did you mean adam"):
        make_optimizer(small(), Training(optimizer="adma"))
