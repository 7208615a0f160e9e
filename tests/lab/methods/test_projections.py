"""GPM, SGP, OWM and ORFit against their authors' algorithms written out, on linear layers and convolutions."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from sketchogd.lab.methods.baselines import GPM, OWM, SGP, ORFit
from sketchogd.lab.methods.baselines.layers import layers_of
from sketchogd.lab.methods.baselines.projections.gpm import extended, sample
from sketchogd.model.parameters import ProtectedParameters


def perceptron(bias: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(9, 7, bias=bias), nn.ReLU(), nn.Linear(7, 4, bias=bias)).double()


def convolutions() -> nn.Sequential:
    torch.manual_seed(0)
    first = nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False)
    return nn.Sequential(first, nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 4, bias=True)).double()


def data(t: int, shape: tuple[int, ...], n: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(t)
    mix = torch.randn(shape[0], shape[0], generator=g, dtype=torch.float64)
    x = torch.einsum("nc...,cd->nd...", torch.randn(n, *shape, generator=g, dtype=torch.float64), mix)
    return x, torch.randint(0, 4, (n,), generator=g)


NETWORKS = {"perceptron": (perceptron, (9,)), "convolutions": (convolutions, (2, 6, 6))}
each = pytest.mark.parametrize(("make", "shape"), NETWORKS.values(), ids=NETWORKS)


def columns_of(model: nn.Module, x: torch.Tensor) -> list[np.ndarray]:
    """The inputs of each layer as columns, a patch at a time, as the scripts of GPM have it."""
    model.eval()
    found = []
    for module in model:
        if isinstance(module, nn.Linear):
            ones = [torch.ones(len(x), 1).double()] if module.bias is not None else []
            found.append(torch.cat([x, *ones], 1).detach().numpy().T)
        if isinstance(module, nn.Conv2d):
            k, s, p = module.kernel_size[0], module.stride[0], module.padding[0]
            padded = nn.functional.pad(x, (p, p, p, p)).detach().numpy()
            places = [range(0, padded.shape[d] - k + 1, s) for d in (2, 3)]
            found.append(
                np.array([a[:, i : i + k, j : j + k].ravel() for a in padded for i in places[0] for j in places[1]]).T
            )
        x = module(x)
    return found


def script_of_sgp(A: np.ndarray, U: np.ndarray | None, importance: np.ndarray | None, share: float, c: float):
    """A task of the authors' script for one layer: bases, and importances for SGP."""
    if U is None:
        left, S, _ = np.linalg.svd(A, full_matrices=False)
        r = int(np.sum(np.cumsum(S**2 / (S**2).sum()) < share))
        return left[:, :r], (c + 1) * S[:r] / (c * S[:r] + max(S[:r]))
    total = (np.linalg.svd(A, compute_uv=False) ** 2).sum()
    projected = U @ U.T @ A
    known = U.shape[1]
    Uc, Sc, _ = np.linalg.svd(projected, full_matrices=False)
    on_old = np.sqrt((U.T @ Uc[:, :known]) ** 2 @ Sc[:known] ** 2)
    left, S, _ = np.linalg.svd(A - projected, full_matrices=False)
    held, r = (total - (S**2).sum()) / total, 0
    for value in S**2 / total:
        if held >= share:
            break
        held, r = held + value, r + 1
    found = np.hstack((on_old, S[:r]))
    found = (c + 1) * found / (c * found + max(found))
    found[:known] = np.clip(found[:known] + importance, 0, 1)
    return np.hstack((U, left[:, :r]))[:, : len(A)], found[: len(A)]


@each
@pytest.mark.parametrize("scaled", [False, True], ids=["gpm", "sgp"])
def test_bases_and_gradients_are_those_of_the_authors_script(make, shape, scaled: bool) -> None:
    model = make()
    layers, _ = layers_of(ProtectedParameters(model))
    method = (
        SGP(model, 0.7, more=0.05, scale=3.0, samples=30, seed=2)
        if scaled
        else GPM(model, 0.7, more=0.05, samples=30, seed=2)
    )
    known: list = [(None, None)] * len(layers)
    for t in range(3):
        x, y = data(t, shape)
        method.end_task(x, y)
        found = columns_of(model, sample(x, 30, 2, t))
        known = [script_of_sgp(A, *old, 0.7 + 0.05 * t, 3.0) for A, old in zip(found, known, strict=True)]
        for layer, (U, weights) in zip(layers, known, strict=True):
            ours = method.bases[layer.name].numpy()
            assert ours.shape == U.shape
            np.testing.assert_allclose(ours @ ours.T, U @ U.T, atol=1e-8)
            if scaled:
                mine = method.importances[layer.name].numpy()
                np.testing.assert_allclose((ours * mine) @ ours.T, (U * weights) @ U.T, atol=1e-8)
    assert any(0 < U.shape[1] < len(U) for U, _ in known)
    x, y = data(7, shape)
    model.train()
    model.zero_grad()
    cross_entropy(model(x), y).backward()
    plain = [layer.joined([t.grad.clone() for t in layer.tensors]).numpy() for layer in layers]
    method.before_step(x, y)
    for layer, G, (U, weights) in zip(layers, plain, known, strict=True):
        ours = layer.joined([t.grad for t in layer.tensors]).numpy()
        expected = G - G @ U @ np.diag(weights if scaled else np.ones(U.shape[1])) @ U.T
        np.testing.assert_allclose(ours, expected, atol=1e-8)
    assert all(float(t.grad.abs().sum()) == 0 for t in method.rest), "norms are frozen after the first task"
    assert method.nbytes == sum(8 * (U.size + (len(w) if scaled else 0)) for U, w in known)


def test_the_first_task_s_rank_is_the_script_s_and_later_ones_reach_the_share() -> None:
    A = torch.diag(torch.tensor([2.0, 1.0, 1.0, 0.0]))  # shares 4/6, 5/6, 1
    assert extended(None, A, 0.7).shape[1] == 1
    U = extended(None, A, 0.9)
    assert U.shape[1] == 2
    assert extended(U, A, 0.8).shape[1] == 2
    assert extended(U, A, 0.9).shape[1] == 3


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_projected_updates_leave_old_outputs_with_any_optimizer(kind) -> None:
    model = perceptron(bias=True)
    method = GPM(model, 0.99999, samples=5, updates=True)
    old = data(0, (9,), n=5)
    before = [t.detach().clone() for t in model.parameters()]
    method.end_task(*old)
    optimizer = kind(model.parameters(), lr=0.05)
    for step in range(5):
        x, y = data(10 + step, (9,))
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        method.before_step(x, y)
        optimizer.step()
        method.after_step()
    moved = [t.detach() - b for t, b in zip(model.parameters(), before, strict=True)]
    for layer, pair in zip(method.layers, (moved[:2], moved[2:]), strict=True):
        V = layer.joined(pair)
        U = method.bases[layer.name]
        assert float(V.norm()) > 0.01
        assert float((V @ U).norm()) < 1e-10


@each
def test_owm_is_the_recursive_projector_of_the_paper(make, shape) -> None:
    model = make()
    method = OWM(model, 0.5, decay=0.1, batch=8)
    literal = [np.eye(layer.width) for layer in method.layers]
    for t in range(2):
        x, y = data(t, shape)
        method.end_task(x, y)
        pieces = x.split(8)
        for i, piece in enumerate(pieces):
            alpha = 0.5 * 0.1 ** (i / len(pieces))
            mean_of = mean_inputs(model, piece)
            for n, rows in enumerate(mean_of):
                for r in rows:
                    k = literal[n] @ r
                    literal[n] = literal[n] - np.outer(k, k) / (alpha + r @ k)
    for layer, P in zip(method.layers, literal, strict=True):
        np.testing.assert_allclose(method.projectors[layer.name].numpy(), P, atol=1e-9)
    x, y = data(7, shape)
    model.train()
    model.zero_grad()
    cross_entropy(model(x), y).backward()
    plain = [layer.joined([t.grad.clone() for t in layer.tensors]).numpy() for layer in method.layers]
    method.before_step(x, y)
    for layer, G, P in zip(method.layers, plain, literal, strict=True):
        np.testing.assert_allclose(layer.joined([t.grad for t in layer.tensors]).numpy(), G @ P, atol=1e-9)
    widths = [layer.width for layer in method.layers]
    assert method.nbytes == sum(8 * d * (d + 1) // 2 for d in widths)


def mean_inputs(model: nn.Module, x: torch.Tensor) -> list[np.ndarray]:
    """The rows of the batch's mean input, a patch at a time."""
    model.eval()
    found = []
    for module in model:
        if isinstance(module, nn.Linear | nn.Conv2d):
            found.append(columns_of(nn.Sequential(module), x.mean(0, keepdim=True))[0].T)
        x = module(x)
    return found


# ---------------------------------------------------------------- ORFit


def linear() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(12, 1, bias=False).double()


class FirstClassOnly(nn.Module):
    """One score, to be 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def test_orfit_with_one_output_is_the_published_algorithm() -> None:
    model = FirstClassOnly()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    method = ORFit(model, optimizer, rank=4)
    w = model.layer.weight.detach().clone().numpy()[0]
    U, S = np.zeros((12, 0)), np.zeros(0)
    g = torch.Generator().manual_seed(3)
    for _ in range(9):
        x = torch.randn(1, 12, generator=g, dtype=torch.float64)
        y = torch.zeros(1, dtype=torch.int64)  # its one-hot form is 1
        optimizer.zero_grad()
        model(x).sum().backward()
        method.before_step(x, y)
        optimizer.step()
        a = x.numpy()[0]
        free = a - U @ (U.T @ a)
        w = w - free * (a @ w - 1.0) / (a @ free)
        left, values, _ = np.linalg.svd(np.column_stack([U * S, a]), full_matrices=False)
        U, S = left[:, :4], values[:4]
        np.testing.assert_allclose(model.layer.weight.detach().numpy()[0], w, atol=1e-9)
        assert float(model(x).detach()) == pytest.approx(1.0), "the example is fitted"
    np.testing.assert_allclose((method.basis.T @ method.basis).numpy(), U @ U.T, atol=1e-9)
    np.testing.assert_allclose(method.values.numpy(), S, atol=1e-9)
    assert method.nbytes == 8 * 4 * (12 + 1)


def test_orfit_fits_every_logit_and_keeps_what_it_fitted_while_there_is_room() -> None:
    torch.manual_seed(0)
    model = nn.Linear(20, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = ORFit(model, optimizer, rank=60)
    xs, ys = data(1, (20,), n=6)
    ys = ys % 3
    for x, y in zip(xs.split(1), ys.split(1), strict=True):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        method.before_step(x, y)
        optimizer.step()
    torch.testing.assert_close(model(xs), one_hot(ys, 3).double())


def test_orfit_needs_plain_sgd() -> None:
    model = linear()
    with pytest.raises(ValueError, match="plain SGD"):
        ORFit(model, torch.optim.Adam(model.parameters()), rank=3)
    with pytest.raises(ValueError, match="plain SGD"):
        ORFit(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rank=3)


@pytest.mark.parametrize(
    "build",
    [
        lambda m: GPM(m, 1.5),
        lambda m: GPM(m, [0.9]),
        lambda m: SGP(m, 0.9, scale=-1.0),
        lambda m: OWM(m, 0.0),
        lambda m: GPM(nn.LayerNorm(3), 0.9),
    ],
)
def test_impossible_settings_are_refused(build) -> None:
    with pytest.raises(ValueError, match=r"energy|scale|alpha|layer"):
        build(perceptron())
