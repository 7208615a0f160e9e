"""Limits of projected gradient descent: the closed forms against descent itself, and against a wide network."""

import math

import pytest
import torch
from torch import Tensor, nn

import sketchogd as so
from sketchogd import theory
from sketchogd.lab import models


def descend(
    G: Tensor, Y: Tensor, w: Tensor, B: Tensor | None, decay: float, rate: float, steps: int, alpha: float = 1.0
) -> Tensor:
    """w ← w − η T ∇L(w) by the letter, for f(X, w) = G w, from w and with the decay towards that w."""
    start = w
    T = torch.eye(G.shape[1], dtype=torch.float64)
    if B is not None:
        T -= alpha * B.T @ B
    for _ in range(steps):
        gradient = 2 / len(G) * G.T @ (G @ w - Y) + 2 * decay * (w - start)
        w = w - rate * T @ gradient
    return w


def tasks(p: int = 40, n: int = 12, count: int = 4) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(6, p, generator=generator, dtype=torch.float64)  # tasks overlap, so that they interfere
    gradients = [
        torch.randn(n, 6, generator=generator, dtype=torch.float64) @ shared
        + torch.randn(n, p, generator=generator, dtype=torch.float64)
        for _ in range(count)
    ]
    return gradients, [torch.randn(n, generator=generator, dtype=torch.float64) for _ in range(count)]


SKETCHES = {
    "gradient": lambda: so.GradientSketch(14, seed=1),
    "product": lambda: so.ProductSketch(14, seed=1),
    "symmetric": lambda: so.SymmetricSketch(7, 8, seed=1),
    "all": so.AllRows,
}


def sketched_bases(name: str, gradients: list[Tensor]) -> list[Tensor | None]:
    """B_τ from a real sketch of the gradients of all tasks before τ."""
    sketch = SKETCHES[name]().bind(gradients[0].shape[1], torch.float64)
    bases: list[Tensor | None] = []
    for G in gradients:
        bases.append(sketch.basis().clone() if sketch.count else None)
        sketch.observe(G)
    return bases


@pytest.mark.parametrize("decay", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("name", SKETCHES)
def test_descent_ends_where_the_closed_form_says(name: str, decay: float):
    """Four tasks to convergence; the slowest direction shrinks by 1 − 2ηλ a step, 1e-8 after the steps taken."""
    gradients, targets = tasks()
    bases = sketched_bases(name, gradients)
    path = theory.ntk_path(gradients, targets, bases, decay)
    w = torch.zeros(gradients[0].shape[1], dtype=torch.float64)
    for G, Y, B, displacement in zip(gradients, targets, bases, path, strict=True):
        rate = 0.9 * theory.step_size_limit(G, B, decay)
        moved = descend(G, Y, w, B, decay, rate, 6000 if decay == 0 else 1500)
        torch.testing.assert_close(moved - w, displacement, atol=1e-7, rtol=1e-6)
        one_task = theory.ntk_limit(G, Y - G @ w, B, decay)
        torch.testing.assert_close(one_task, displacement, atol=1e-6, rtol=1e-5)
        w = moved


def test_the_limit_is_the_constrained_minimum():
    """T = B̄ B̄ᵀ with B̄ (p, p − r): ridge regression in the coordinates of the complement, solved densely."""
    gradients, targets = tasks()
    G, Y, decay = gradients[1], targets[1], 0.3
    B = sketched_bases("product", gradients)[1]
    assert B is not None
    complement = torch.linalg.svd(B, full_matrices=True)[2][len(B) :].T
    H = G @ complement
    solution = torch.linalg.solve(H.T @ H + len(G) * decay * torch.eye(H.shape[1], dtype=torch.float64), H.T @ Y)
    torch.testing.assert_close(theory.ntk_limit(G, Y, B, decay), complement @ solution)


@pytest.mark.parametrize("decay", [0.0, 0.2])
@pytest.mark.parametrize("protected", [False, True])
def test_descent_diverges_just_above_the_limit(decay: float, protected: bool):
    gradients, targets = tasks()
    G, Y = gradients[1], targets[1]
    B = sketched_bases("product", gradients)[1] if protected else None
    limit = theory.step_size_limit(G, B, decay)
    w = torch.zeros(G.shape[1], dtype=torch.float64)
    end = theory.ntk_limit(G, Y, B, decay)
    below = (descend(G, Y, w, B, decay, 0.99 * limit, 3000) - end).norm()
    above = (descend(G, Y, w, B, decay, 1.01 * limit, 3000) - end).norm()
    assert float(below) < 1e-3
    assert float(above) > 1e6


def test_step_size_limit_is_that_of_the_matrix_in_the_theorem():
    gradients, _ = tasks()
    G, B, decay = gradients[1], sketched_bases("product", gradients)[1], 0.2
    assert B is not None
    identity = torch.eye(G.shape[1], dtype=torch.float64)
    matrix = (identity - B.T @ B) @ (G.T @ G / len(G) + decay * identity)
    assert not torch.allclose(matrix, matrix.T)
    eigenvalues = torch.linalg.eigvals(matrix)
    assert float(eigenvalues.imag.abs().max()) < 1e-9
    assert theory.step_size_limit(G, B, decay) == pytest.approx(1 / float(eigenvalues.real.max()))
    # In the whole space the iteration matrix always keeps the eigenvalue 1, once for each row of B.
    eigenvalues = torch.linalg.eigvals(identity - 0.5 * theory.step_size_limit(G, B, decay) * 2 * matrix)
    assert int((eigenvalues.real > 1 - 1e-9).sum()) == len(B)


def test_edges():
    G, Y = torch.eye(3)[:2], torch.ones(2)
    assert theory.step_size_limit(G, torch.eye(3)) == math.inf
    assert theory.step_size_limit(G, torch.eye(3)[:2]) == math.inf
    assert theory.step_size_limit(G, torch.eye(3)[:2], decay=0.5) == 2.0
    assert not theory.ntk_limit(G, Y, torch.eye(3)).any()
    repeated = torch.cat([G, G])
    assert theory.ntk_limit(repeated, torch.ones(4)).tolist() == pytest.approx([1.0, 1.0, 0.0])
    with pytest.raises(ValueError, match="decay"):
        theory.ntk_limit(G, Y, None, -1.0)
    with pytest.raises(ValueError, match="residuals"):
        theory.ntk_limit(G, torch.ones(3))
    with pytest.raises(ValueError, match="do not fit"):
        theory.ntk_limit(G, Y, torch.eye(4))
    with pytest.raises(ValueError, match="one of each per task; got"):
        theory.ntk_path([G], [Y, Y], [None])


# ---------------------------------------------------------------- forgetting


@pytest.mark.parametrize("name", SKETCHES)
def test_forgetting_is_what_descent_forgets(name: str):
    gradients, targets = tasks()
    bases = sketched_bases(name, gradients)
    path = theory.ntk_path(gradients, targets, bases, 0.05)
    weights = [torch.zeros(gradients[0].shape[1], dtype=torch.float64)]
    for G, Y, B in zip(gradients, targets, bases, strict=True):
        rate = 0.9 * theory.step_size_limit(G, B, 0.05)
        weights.append(descend(G, Y, weights[-1], B, 0.05, rate, 1500))
    unprotected = theory.ntk_path(gradients, targets, [None] * 4, 0.05)
    forgotten = torch.zeros(2)
    for source in range(3):
        G = gradients[source]
        measured = float((G @ (weights[4] - weights[source + 1])).square().sum())
        predicted = theory.forgetting(G, path[source + 1 :])
        assert predicted == pytest.approx(measured, rel=1e-5, abs=1e-10)
        assert predicted == theory.forgetting(G, torch.stack(path[source + 1 :]))
        together = torch.stack(path[source + 1 :]).sum(0)
        assert predicted == pytest.approx(theory.forgetting(G, together), rel=1e-9, abs=1e-20)
        errors = [theory.reconstruction_error(gradients[:t], bases[t]) for t in range(source + 1, 4)]
        assert predicted <= theory.forgetting_bound(errors, path[source + 1 :]) + 1e-12
        forgotten += torch.tensor([predicted, theory.forgetting(G, unprotected[source + 1 :])])
    assert forgotten[0] < (1e-15 if name == "all" else 0.9 * forgotten[1])


def test_forgetting_bound_is_reached_by_one_direction():
    """One remembered gradient, outside the basis, and a displacement along it: the inequality is an equality."""
    G, B = torch.tensor([[0.0, 3.0]]), torch.tensor([[1.0, 0.0]])
    displacement = torch.tensor([0.0, 2.0])
    bound = theory.forgetting_bound([theory.reconstruction_error(G, B)], [displacement])
    assert bound == pytest.approx(theory.forgetting(G, displacement)) == pytest.approx(36.0)


def test_a_soft_projector_only_delays():
    """With every α < 1 descent ends at the unprotected solution: T ∇L = 0 means ∇L = 0 for an invertible T."""
    gradients, targets = tasks()
    G, Y, decay = gradients[1], targets[1], 0.5
    B = sketched_bases("product", gradients)[1]
    w = torch.zeros(G.shape[1], dtype=torch.float64)
    rate = 0.5 * theory.step_size_limit(G, None, decay)
    free, hard = theory.ntk_limit(G, Y, None, decay), theory.ntk_limit(G, Y, B, decay)
    soft = [descend(G, Y, w, B, decay, rate, steps, alpha=0.95) for steps in (100, 30_000)]
    forgotten = [theory.forgetting(gradients[0], end) / theory.forgetting(gradients[0], free) for end in (*soft, hard)]
    assert forgotten[2] < 1e-3
    assert forgotten[0] < 0.2
    assert forgotten[1] == pytest.approx(1.0, rel=1e-3)
    assert float((soft[1] - free).norm()) < 1e-3 * float((free - hard).norm())


# ---------------------------------------------------------------- linearised models


def small_network(width: int = 16) -> nn.Module:
    return models.mlp(5, (width,), 2, seed=1).double()


def test_linearised_model_is_the_first_order_expansion():
    model = small_network()
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    linear = theory.linearise(model)
    torch.testing.assert_close(linear(x), model(x))
    y = torch.tensor([0, 1, 0, 1, 1, 0, 1])
    jacobian = so.per_example_gradients(model, x, y)
    step = torch.randn(jacobian.shape[1], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    before = model(x).detach()
    so.ProtectedParameters(linear).add_(step)
    change = (linear(x) - before).gather(1, y[:, None]).squeeze(1)
    torch.testing.assert_close(change, jacobian @ step)
    torch.testing.assert_close(model(x), before)
    # However far the weights move, the gradients are those at the origin.
    torch.testing.assert_close(so.per_example_gradients(linear, x, y), jacobian)


def test_linearised_model_has_evaluation_statistics_and_the_same_names():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 2))
    linear = theory.linearise(model).double()
    x = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = model.double().eval()(x)
    before = {name: buffer.clone() for name, buffer in linear.named_buffers()}
    torch.testing.assert_close(linear.train()(x), expected, atol=1e-6, rtol=1e-6)
    assert linear.training
    assert all(torch.equal(buffer, before[name]) for name, buffer in linear.named_buffers())
    assert [name for name, _ in linear.named_parameters()] == [name for name, _ in model.named_parameters()]


def test_linearised_model_trains_to_the_limit_under_protection():
    """Two tasks by `protect` and SGD on a linearised network; its displacement is the closed form's."""
    linear = theory.linearise(small_network())
    generator = torch.Generator().manual_seed(3)
    xs = [torch.randn(6, 5, generator=generator, dtype=torch.float64) for _ in range(2)]
    ys = [torch.randint(0, 2, (6,), generator=generator) for _ in range(2)]
    goals = [torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(2)]
    gradients = [so.per_example_gradients(linear, x, y) for x, y in zip(xs, ys, strict=True)]
    outputs = [linear(x).detach().gather(1, y[:, None]).squeeze(1) for x, y in zip(xs, ys, strict=True)]
    weights = so.ProtectedParameters(linear)
    start = weights.flatten()

    optimizer = torch.optim.SGD(linear.parameters(), lr=1.0)
    protection = so.protect(linear, optimizer, memory=so.ProductSketch(4))
    bases: list[Tensor | None] = [None]
    for t in range(2):
        for group in optimizer.param_groups:
            group["lr"] = 0.9 * theory.step_size_limit(gradients[t], bases[t])
        for _ in range(1500):
            optimizer.zero_grad()
            outcome = linear(xs[t]).gather(1, ys[t][:, None]).squeeze(1)
            (outcome - goals[t]).square().mean().backward()
            optimizer.step()
        if t == 0:
            protection.observe(xs[0], ys[0])
            protection.refresh()
            bases.append(protection.projector.basis.double().clone())
    path = theory.ntk_path(gradients, goals, bases, outputs=outputs)
    torch.testing.assert_close(weights.flatten() - start, path[0] + path[1], atol=1e-5, rtol=1e-3)


def test_wide_networks_end_near_the_prediction_and_wider_ones_nearer():
    """Descent of a real two-layer network on 8 points, targets close to its outputs; relative error of its change."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    y = torch.zeros(8, dtype=torch.int64)
    offsets = 0.3 * torch.randn(8, generator=generator, dtype=torch.float64)
    found = []
    for width in (32, 2048):
        model = small_network(width)
        G = so.per_example_gradients(model, x, y)
        start = model(x).detach()[:, 0]
        displacement = theory.ntk_limit(G, offsets, decay=0.02)
        weights = so.ProtectedParameters(model)
        origin = weights.flatten()
        rate = 0.9 * theory.step_size_limit(G, decay=0.02)
        for _ in range(400):
            loss = (model(x)[:, 0] - start - offsets).square().mean()
            slope = weights.flatten(torch.autograd.grad(loss, weights.tensors))
            weights.add_(slope + 0.04 * (weights.flatten() - origin), alpha=-rate)
        predicted, actual = G @ displacement, model(x).detach()[:, 0] - start
        found.append(float((actual - predicted).norm() / predicted.norm()))
    assert found[1] < 0.03
    assert found[1] < found[0] / 3


@pytest.mark.parametrize("m", [1, 7, 50])
def test_rare_projections_come_to_rest_where_the_filtered_gradient_is_free_of_what_is_left(m):
    """T φ(H) ∇L = 0 with φ(h) = (1 − (1 − ηh)^m)/h, from the closed form of m steps on a quadratic loss."""
    torch.manual_seed(0)
    d, n, rate = 6, 40, 0.2
    old, x = torch.randn(3, d, dtype=torch.float64), torch.randn(n, d, dtype=torch.float64)
    y = torch.randn(n, 1, dtype=torch.float64)
    model = nn.Linear(d, 1, bias=False).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    protection = so.protect(
        model, optimizer, memory=so.AllRows(), output=lambda out, target: out[..., 0].sum(), every=m
    )
    protection.remember([(old, torch.zeros(3, dtype=torch.int64))])
    for _ in range(400 * m):
        optimizer.zero_grad()
        (0.5 * (model(x) - y).square().mean()).backward()
        optimizer.step()
    assert protection.pending == 0
    B, w = protection.projector.basis, model.weight.detach()[0]
    H = x.T @ x / n
    gradient = H @ w - x.T @ y[:, 0] / n
    h, V = torch.linalg.eigh(H)
    filtered = V @ ((1 - (1 - rate * h) ** m) / h * (V.T @ gradient))
    left = [v - B.T @ (B @ v) for v in (filtered, gradient)]
    assert left[0].norm() < 1e-9 * filtered.norm()
    if m > 1:
        assert left[1].norm() > 1e-2 * gradient.norm()
