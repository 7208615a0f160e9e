"""What comes to `protect` and is not a model and an optimizer: refused with what to give instead."""

import sys

import pytest
import torch
from torch import nn

import sketchogd as so


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_scheduler_in_place_of_an_optimizer() -> None:
    model = nn.Linear(3, 2)
    for scheduler in (
        torch.optim.lr_scheduler.StepLR(sgd(model), 1),
        torch.optim.lr_scheduler.ReduceLROnPlateau(sgd(model)),
    ):
        with pytest.raises(TypeError, match=r"got the scheduler \w+: protect its optimizer, scheduler\.optimizer"):
            so.protect(model, scheduler, memory=so.ProductSketch(4))
    protection = so.protect(model, sgd(model), memory=so.ProductSketch(4))
    with pytest.raises(TypeError, match=r"scheduler\.optimizer"):
        protection.attach(scheduler)


class Wrapped(torch.optim.Optimizer):
    """As accelerate does it: an optimizer by its class, without the state of one."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.scaler = None


def test_a_wrapper_without_hooks() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(TypeError, match=r"Wrapped wraps an optimizer .*: protect the optimizer inside it, \.optimizer"):
        so.protect(model, Wrapped(sgd(model)), memory=so.ProductSketch(4))


def test_the_wrapper_of_accelerate_is_taken() -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerate.Accelerator(cpu=True)  # its optimizer asks for it
    model = nn.Linear(3, 2)
    wrapped = accelerate.optimizer.AcceleratedOptimizer(sgd(model), device_placement=False)
    so.protect(model, wrapped, memory=so.ProductSketch(4))
    assert wrapped.optimizer._optimizer_step_post_hooks


def test_other_things_in_the_place_of_either() -> None:
    class Engine:
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner

    model = nn.Linear(3, 2)
    for bad, match in ((None, "NoneType"), (Engine(sgd(model)), r"\.inner"), (list(model.parameters()), "list")):
        with pytest.raises(TypeError, match=match):
            so.protect(model, bad, memory=so.ProductSketch(4))
    with pytest.raises(TypeError, match="the model comes first"):
        so.protect(sgd(model), model, memory=so.ProductSketch(4))
    with pytest.raises(TypeError, match=r"a torch\.nn\.Module; got function"):
        so.protect(lambda x: x, sgd(model), memory=so.ProductSketch(4))


def test_models_without_values() -> None:
    real = nn.Linear(3, 2)
    lazy = nn.Sequential(nn.LazyLinear(2))
    with pytest.raises(ValueError, match=r"'0\.weight' has no shape yet.*run one batch"):
        so.protect(lazy, sgd(real), memory=so.ProductSketch(4))
    lazy(torch.ones(1, 3))
    so.protect(lazy, sgd(lazy), memory=so.ProductSketch(4))
    meta = nn.Linear(3, 2, device="meta")
    with pytest.raises(ValueError, match=r"'weight' is on the meta device.*to_empty"):
        so.protect(meta, sgd(meta), memory=so.ProductSketch(4))


def test_inference_mode() -> None:
    model = nn.Linear(3, 2)
    with torch.inference_mode():
        with pytest.raises(ValueError, match=r"outside torch\.inference_mode"):
            so.protect(model, sgd(model), memory=so.ProductSketch(4))
        made = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"'weight' was made in torch\.inference_mode"):
        so.protect(made, sgd(made), memory=so.ProductSketch(4))
    protection = so.protect(model, sgd(model), memory=so.ProductSketch(4))
    batch = (torch.ones(2, 3), torch.tensor([0, 1]))
    with torch.inference_mode(), pytest.raises(so.ProtectionError, match=r"outside torch\.inference_mode"):
        protection.remember([batch])
    state = protection.state_dict()
    with torch.inference_mode(), pytest.raises(so.ProtectionError, match=r"outside torch\.inference_mode"):
        protection.load_state_dict(state)
    protection.remember([batch])
    assert protection.memory.examples == 2


def test_figures_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    from sketchogd.lab.pages import drawing

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install .sketchogd\[lab\]"):
        drawing.figure(1, 1)
