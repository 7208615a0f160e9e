"""Ablations of what is remembered: outputs by name, and gradients scaled by a power of their norm."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sketchogd as so
from sketchogd.lab import records
from sketchogd.lab.methods import Setup, build, method
from sketchogd.lab.methods.outputs import OUTPUTS, Remembered
from sketchogd.lab.methods.protected import Protected
from sketchogd.lab.runs import train
from sketchogd.lab.runs.config import RunConfig, Training
from sketchogd.lab.runs.sidebyside import group
from sketchogd.model.gradients import GradientSignals
from sketchogd.paper import presets
from sketchogd.paper.ablations import ABLATIONS

N, C = 24, 3


def net(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, C)).to(dtype)


def data(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(4)
    sizes = torch.logspace(-1, 1, N)[:, None]
    return (torch.randn(N, 5, generator=g) * sizes).to(dtype), torch.randint(0, C, (N,), generator=g)


def learner_of(name: str, **options: object) -> Protected:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = Setup(model, optimizer, lambda x, y, group: cross_entropy(model(x), y), 2, 28, seed=5)
    built = build(method(name, **options), given)
    assert isinstance(built, Protected)
    return built


def by_hand(name: str, z: Tensor, y: int) -> Tensor:
    """The output of one example with logits z (C,), written out."""
    others = [z[c] for c in range(C) if c != y]
    return {
        "true": lambda: z[y],
        "predicted": lambda: z[int(z.argmax())],
        "loss": lambda: z.exp().sum().log() - z[y],
        "margin": lambda: z[y] - (others[0] if others[0] > others[1] else others[1]),
        "random": lambda: sum((-1 if y >> c & 1 else 1) * z[c] for c in range(C)) / C**0.5,
    }[name]()


def gradients(name: str, model: nn.Module, x: Tensor, y: Tensor) -> np.ndarray:
    """One row an example, by a loop."""
    rows = []
    for one, target in zip(x, y.tolist(), strict=True):
        found = torch.autograd.grad(by_hand(name, model(one[None])[0], target), list(model.parameters()))
        rows.append(torch.cat([t.flatten() for t in found]))
    return torch.stack(rows).double().numpy()


@pytest.mark.parametrize("path", ["fast", "vmap", "loop"])
@pytest.mark.parametrize("name", list(OUTPUTS))
def test_outputs_have_the_gradients_of_their_formulas(name: str, path: str) -> None:
    model, (x, y) = net(torch.float64), data(torch.float64)
    y = torch.arange(N) if name == "random" else y
    signals = GradientSignals(so.ProtectedParameters(model), OUTPUTS[name])
    signals.path = path
    rows = torch.cat(list(signals.chunks(x, y)))
    np.testing.assert_allclose(rows.numpy(), gradients(name, model, x, y), atol=1e-12)


@pytest.mark.parametrize("output", [None, "loss"])
@pytest.mark.parametrize("power", [-1.0, -0.5, 0.0, 0.5, 1.0])
def test_a_sketch_is_shown_scaled_gradients(power: float, output: str | None) -> None:
    learner = learner_of("sketchogd", rank=40, power=power, output=output)
    x, y = data()
    learner.end_task(x, y)
    G = gradients(output or "true", net(torch.float64), x.double(), y)
    scaled = G * np.linalg.norm(G, axis=1, keepdims=True) ** power
    wanted = np.linalg.svd(scaled, compute_uv=False)
    # A sketch of more rows than were shown has their singular values, to float32 precision.
    found = learner.singular_values().numpy()
    large = int((wanted > 1e-2 * wanted[0]).sum())
    assert large >= 8
    np.testing.assert_allclose(found[:large], wanted[:large], rtol=1e-4)


def test_a_gradient_of_zero_stays_zero() -> None:
    model = nn.Linear(3, 2, bias=False)
    x = torch.tensor([[0.0, 0.0, 0.0], [3.0, 0.0, 4.0]])
    parameters, y = so.ProtectedParameters(model), torch.tensor([0, 1])
    (rows,) = GradientSignals(parameters, OUTPUTS["true"], power=-1.0).chunks(x, y)
    torch.testing.assert_close(rows, torch.tensor([[0.0] * 6, [0.0, 0.0, 0.0, 0.6, 0.0, 0.8]]))


def test_layer_memories_are_shown_the_output_that_is_named() -> None:
    x, y = data()
    for name in ("true", "loss", "margin"):
        learner = learner_of("layer-sketch", rank=20, output=name)
        learner.end_task(x, y)
        memory = learner.protection.memory
        assert isinstance(memory, so.LayerSketch)
        z = net(torch.float64)(x.double()).detach().requires_grad_()
        (D,) = torch.autograd.grad(sum(by_hand(name, row, t) for row, t in zip(z, y.tolist(), strict=True)), z)
        wanted = torch.linalg.eigvalsh(D.T @ D).flip(0)
        found = memory.factors["2"].outputs.spectrum()[0]
        torch.testing.assert_close(found, wanted[: len(found)], rtol=1e-4, atol=1e-4)
        assert memory.logits == 1


def test_random_combinations_are_drawn_once_for_each_example() -> None:
    remembered = Remembered("random")
    y = torch.zeros(1000, dtype=torch.int64)
    drawn, again = remembered.targets(y, 0, "signs", 0), remembered.targets(y, 0, "signs", 0)
    assert torch.equal(drawn, again)
    assert not torch.equal(drawn, remembered.targets(y, 0, "signs", 1))
    assert len(drawn.unique()) == len(y)
    # Each sign is a fair coin: 1,000 throws are within 5 standard deviations (16 each) of 500.
    ones = torch.stack([(drawn >> c & 1).sum() for c in range(10)])
    assert (ones - 500).abs().max() < 80
    learner = learner_of("sketchogd", rank=40, output="random")
    x, y = data()
    learner.end_task(x, y)
    G = gradients("random", net(torch.float64), x.double(), remembered.targets(y, 5, "signs", 0))
    wanted = np.linalg.svd(G, compute_uv=False)[:6]
    np.testing.assert_allclose(learner.singular_values().numpy()[:6], wanted, rtol=1e-4)


def test_options_that_came_later_are_recorded_only_where_they_are_used() -> None:
    for name, later in (("sketchogd", {"power": 0.0, "output": None}), ("layer-sketch", {"output": None})):
        assert method(name, **later) == method(name)
        assert not set(later) & set(RunConfig("split-mnist", method(name)).record()["options"])
    changed = method("sketchogd", power=0.5, output="margin")
    assert changed.label == "sketchogd,power=0.5,output=margin"
    with pytest.raises(ValueError, match="did you mean power"):
        method("sketchogd", pwer=1.0)
    with pytest.raises(ValueError, match="did you mean margin"):
        learner_of("layer-sketch", output="margn")


def test_the_new_ablations_vary_one_thing() -> None:
    for benchmark in ("rotated-mnist", "split-mnist"):
        scaled = presets.ablations([benchmark], groups=["scaled"]).runs
        assert [run.method.options.get("power", 0.0) for run in scaled] == 2 * [-1.0, -0.5, 0.0, 0.5, 1.0]
        shown = [run.method.options.get("output") for run in presets.ablations([benchmark], groups=["logits"]).runs]
        assert shown == [None, *list(OUTPUTS)[1:], None, *OUTPUTS]
        layers, gradients, both = presets.ablations([benchmark], groups=["both"]).runs
        assert [run.method.name for run in (layers, gradients, both)] == ["layer-sketch", "sketchogd", "both"]
        for key in ("strength", "damping"):
            assert both.method.options[key] == layers.method.options[key]
        assert both.method.options["rank"] == gradients.method.options["rank"]
        assert both.method.options["layer_rank"] == layers.method.options["rank"]
    usual = {run.name for run in presets.ablations(groups=["rank"]).runs}
    every = {run.name for group in ("scaled", "logits", "both") for run in presets.ablations(groups=[group]).runs}
    assert len(every - usual) == 2 * (8 + 9 + 1)
    assert len({v.words for v in ABLATIONS["logits"].variants("split-mnist")}) == 11


VARIANTS = [
    method("sketchogd", rank=30, every=4, power=-1.0),
    method("sketchogd", rank=30, every=4, output="random", power=0.5),
    method("layer-sketch", rank=20, every=4, output="margin"),
    method("both", rank=20, layer_rank=30, every=4),
]
SMALL = {"tasks": 3, "n_train": 105, "n_test": 60}
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]


@pytest.mark.parametrize("device", DEVICES)
def test_runs_side_by_side_come_out_as_single_ones(tmp_path, device: str) -> None:
    training = Training(epochs=3, lr=0.02)
    configs = [RunConfig("rotated-mnist", m, training, seed, **SMALL) for seed in (0, 1) for m in VARIANTS]
    group.run(configs, [tmp_path / "together" / config.name for config in configs], device=device)
    for config in configs:
        single = train.run(config, tmp_path / "single" / config.name, device=device)
        together = records.load(tmp_path / "together" / config.name)
        # 60 test images: a single one that lies on the edge may fall on the other side
        np.testing.assert_allclose(together.accuracy, single.accuracy, atol=1.01 / 60)
        assert together.record["ledger"] == single.ledger
        losses = [
            [event["loss"] for event in records.RunFolder(tmp_path / where / config.name).events()]
            for where in ("together", "single")
        ]
        np.testing.assert_allclose(*losses, rtol=2e-3)


@pytest.mark.parametrize("chosen", VARIANTS, ids=lambda m: m.label)
def test_a_run_that_was_stopped_goes_on_to_the_same_weights(tmp_path, chosen) -> None:
    config = RunConfig("rotated-mnist", chosen, Training(epochs=2, lr=0.02), **SMALL)
    whole = train.run(config, tmp_path / "whole")

    def stop(done: float, of: float, doing: str) -> None:
        if done >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train.run(config, tmp_path / "stopped", progress=stop)
    assert (tmp_path / "stopped" / "checkpoint.safetensors").exists()
    resumed = train.run(config, tmp_path / "stopped")
    for mine, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert resumed.ledger == whole.ledger
