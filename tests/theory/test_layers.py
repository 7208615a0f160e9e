"""Layer memories: the soft projector's objective, the Kronecker product on real gradients, and how far outputs move."""

from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sketchogd as so
from sketchogd import theory
from sketchogd.lab import models, streams
from sketchogd.projector import LayerSpectra, ShrinkingLayer


def rows(n: int, d: int, seed: int) -> Tensor:
    """Rows whose coordinates have falling sizes."""
    X = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return X * torch.linspace(1.5, 0.1, d, dtype=torch.float64)


def eigenpairs(X: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(X.T @ X)
    return values.flip(0)[:keep], vectors.flip(1)[:, :keep].T.contiguous()


def projected(layer: ShrinkingLayer, D: Tensor) -> Tensor:
    """ΔW less its protected part, the bias being the last column."""
    W, bias = D[:, :-1].clone(), D[:, -1].clone()
    layer.protected_part_(W, bias)
    return D - torch.cat([W, bias[:, None]], dim=1)


# ---------------------------------------------------------------- the objective


@pytest.mark.parametrize("outputs", [True, False])
def test_closed_form_minimises_the_objective(outputs: bool):
    """Against the normal equations (I + M_δ ⊗ M_a / μ) vec ΔW = vec ΔW₀, solved densely, and a numerical search."""
    A, S = rows(30, 5, 0), rows(30, 4, 1)
    M_a, M_d = A.T @ A, (S.T @ S if outputs else None)
    proposal = torch.randn(4, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    mu = 40.0
    found = theory.soft_layer_update(proposal, M_a, M_d, mu)
    left = torch.eye(4, dtype=torch.float64) if M_d is None else M_d
    system = torch.eye(20, dtype=torch.float64) + torch.kron(left, M_a) / mu
    torch.testing.assert_close(found, torch.linalg.solve(system, proposal.flatten()).view(4, 5))

    start = torch.zeros(4, 5, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([start], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-15, history_size=30)

    def closure() -> Tensor:
        search.zero_grad()
        objective = (start - proposal).square().sum() + (left @ start @ M_a * start).sum() / mu
        objective.backward()
        return objective

    reached = float(search.step(closure).detach())
    torch.testing.assert_close(start.detach(), found, atol=1e-6, rtol=1e-5)
    best = theory.soft_layer_objective(found, proposal, M_a, M_d, mu)
    assert best <= theory.soft_layer_objective(start.detach(), proposal, M_a, M_d, mu) + 1e-12
    assert best < reached


def test_the_objective_is_the_sum_over_all_pairs():
    A, S = rows(6, 3, 0), rows(5, 2, 1)
    D = torch.randn(2, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    pairs = sum(float(s @ D @ a) ** 2 for s in S for a in A)
    assert theory.soft_layer_objective(D, D, A.T @ A, S.T @ S, 0.5) == pytest.approx(pairs / 0.5)
    alone = sum(float((D @ a).square().sum()) for a in A)
    assert theory.soft_layer_objective(D, D, A.T @ A, None, 0.5) == pytest.approx(alone / 0.5)
    with pytest.raises(ValueError, match="positive"):
        theory.soft_layer_update(D, A.T @ A, None, 0.0)


@pytest.mark.parametrize(("keep_a", "keep_d"), [(7, 5), (4, 3), (4, None)])
def test_layer_projector_is_the_closed_form(keep_a: int, keep_d: int | None):
    """With the moments of the eigenpairs it keeps, and μ = ridge · mean."""
    A, S = rows(40, 7, 3), rows(40, 5, 4)
    a, V = eigenpairs(A, keep_a)
    s, U = (None, None) if keep_d is None else eigenpairs(S, keep_d)
    ridge, mean = 0.2, 3.0
    layer = ShrinkingLayer(LayerSpectra(V, a, U, s, mean), ridge)
    M_d = None if U is None or s is None else U.T @ (s[:, None] * U)
    proposal = torch.randn(5, 7, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    expected = theory.soft_layer_update(proposal, V.T @ (a[:, None] * V), M_d, ridge * mean)
    torch.testing.assert_close(projected(layer, proposal), expected)


# ---------------------------------------------------------------- how far outputs move


def worst_change(layer: ShrinkingLayer, M_a: Tensor, M_d: Tensor, o: int) -> float:
    """The largest Tr(ΔWᵀ M_δ ΔW M_a) over proposals with ‖ΔW₀‖ = 1, densely."""
    w = len(M_a)
    basis = torch.eye(o * w, dtype=torch.float64).view(o * w, o, w)
    P = torch.stack([projected(layer, D).flatten() for D in basis]).T
    return float(torch.linalg.eigvalsh(P.T @ torch.kron(M_d, M_a) @ P).max())


@pytest.mark.parametrize("ridge", [0.0, 0.05, 1.0])
def test_change_bound_holds_and_is_reached(ridge: float):
    A, S = rows(40, 6, 3), rows(40, 4, 4)
    M_a, M_d = A.T @ A, S.T @ S
    for keep_a, keep_d in [(6, 4), (3, 2)]:
        (a, V), (s, U) = eigenpairs(A, 6), eigenpairs(S, 4)
        left_a = float(a[keep_a]) if keep_a < 6 else 0.0
        left_d = float(s[keep_d]) if keep_d < 4 else 0.0
        mean = float(a.mean() * s.mean())
        layer = ShrinkingLayer(LayerSpectra(V[:keep_a], a[:keep_a], U[:keep_d], s[:keep_d], mean), ridge)
        bound = theory.layer_change_bound(layer, left_a, left_d)
        worst = worst_change(layer, M_a, M_d, 4)
        if (keep_a, keep_d) == (6, 4):
            assert bound == pytest.approx(worst, abs=1e-9)
            assert bound <= ridge * mean / 4 + 1e-9
        else:
            # ε is added to the eigenvalues kept as well, which costs at most their ratio to λ_1.
            assert worst * (1 - 1e-9) <= bound <= worst * (1 + left_a / float(a[0])) * (1 + left_d / float(s[0]))
    examples = (S * (A @ projected(layer, torch.ones(4, 6, dtype=torch.float64)).T)).sum(1).square().sum()
    assert float(examples) <= bound * 24


def test_change_bound_for_inputs_only():
    A = rows(40, 6, 3)
    a, V = eigenpairs(A, 6)
    layer = ShrinkingLayer(LayerSpectra(V[:3], a[:3], None, None, float(a.mean())), 0.1)
    bound = theory.layer_change_bound(layer, float(a[3]))
    worst = worst_change(layer, A.T @ A, torch.eye(2, dtype=torch.float64), 2)
    assert worst * (1 - 1e-9) <= bound <= worst * (1 + float(a[3] / a[0]))


@pytest.mark.parametrize(("keep_a", "keep_d"), [(6, 4), (3, 2), (3, None)])
def test_residuals_are_what_the_projector_leaves_of_each_gradient(keep_a: int, keep_d: int | None):
    A, S = rows(40, 6, 3), rows(40, 4, 4)
    a, V = eigenpairs(A, keep_a)
    s, U = (None, None) if keep_d is None else eigenpairs(S, keep_d)
    layer = ShrinkingLayer(LayerSpectra(V, a, U, s, float(a.mean())), 0.3)
    expected = torch.stack(
        [projected(layer, torch.outer(delta, x)).square().sum() for x, delta in zip(A, S, strict=True)]
    )
    torch.testing.assert_close(theory.layer_residuals(layer, A, S), expected)
    with pytest.raises(ValueError, match="pairs"):
        theory.layer_residuals(layer, A, S[:3])


# ---------------------------------------------------------------- real gradients


@cache
def trained() -> tuple[nn.Module, Tensor, Tensor]:
    """The paper's network, briefly trained on the first task of Split MNIST, and 60 of its examples."""
    x, y = streams.benchmark("split-mnist", tasks=1, n_train=300, n_test=10).train(0)
    model = models.mlp(hidden=(40, 40), outputs=2, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for inputs, targets in zip(x.split(10), y.split(10), strict=True):
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    mixed = torch.arange(0, len(x), len(x) // 60)[:60]
    return model, x[mixed], y[mixed]


def layer_gradients(a: Tensor, delta: Tensor) -> Tensor:
    """δ aᵀ (n, o, w) of every logit and example; sensitivities come one logit after the other."""
    return delta[:, :, None] * a.repeat(len(delta) // len(a), 1)[:, None, :]


def test_layer_gradients_are_those_of_the_network():
    model, x, y = trained()
    a, delta = so.layer_signals(model, x, y, output=so.true_logit)["linear2"]
    G = so.per_example_gradients(model, x, y, parameters="linear2*")
    blocks = layer_gradients(a, delta)
    torch.testing.assert_close(torch.cat([blocks[:, :, :-1].flatten(1), blocks[:, :, -1]], dim=1), G)


def dense_distance(M: Tensor, K: Tensor) -> float:
    c = float((M * K).sum() / K.square().sum())
    return float((M - c * K).norm() / M.norm())


def test_kronecker_distance_against_dense_matrices():
    A, S = rows(25, 4, 0), rows(25, 3, 1)
    G = S[:, :, None] * A[:, None, :]
    found = theory.kronecker_distance(G, A, S)
    M = G.flatten(1).T @ G.flatten(1)
    assert found.memory == pytest.approx(dense_distance(M, torch.kron(S.T @ S, A.T @ A)))
    assert found.isotropic == pytest.approx(dense_distance(M, torch.eye(12, dtype=torch.float64)))
    rearranged = M.view(3, 4, 3, 4).permute(0, 2, 1, 3).reshape(9, 16)
    sigma = torch.linalg.svdvals(rearranged)
    assert found.nearest == pytest.approx(float((1 - sigma[0] ** 2 / sigma.square().sum()).sqrt()), rel=1e-6)


def test_kronecker_distance_is_zero_for_independent_factors():
    A, S = rows(6, 4, 0), rows(5, 3, 1)
    G = torch.stack([torch.outer(s, a) for s in S for a in A])  # every pair, so M is the product itself
    found = theory.kronecker_distance(G, A, S)
    assert found.memory < 1e-6
    assert found.nearest < 1e-6
    assert found.isotropic > 0.1
    with pytest.raises(ValueError, match="sensitivities"):
        theory.kronecker_distance(G, S, A)
    with pytest.raises(ValueError, match="zero"):
        theory.kronecker_distance(torch.zeros_like(G), A, S)


@pytest.mark.parametrize("name", ["linear1", "linear2", "linear3"])
def test_kronecker_product_is_close_on_real_gradients(name: str):
    """What the network above shows: the hidden layers are .60 and .48 from the memory's product, .39 and .20 from the
    nearest one, against more than .99 for an isotropic guess; 10 % is for another machine's rounding in training.
    The last layer's δ are the unit vectors of the logits, the same for every example: there the product is exact.
    """
    model, x, _ = trained()
    a, delta = so.layer_signals(model, x)[name]
    found = theory.kronecker_distance(layer_gradients(a, delta), a, delta)
    assert found.isotropic > 0.97
    if name == "linear3":
        assert max(found.memory, found.nearest) < 1e-5
    else:
        expected = {"linear1": (0.60, 0.39), "linear2": (0.48, 0.20)}[name]
        assert (found.memory, found.nearest) == pytest.approx(expected, rel=0.1)


def test_change_bound_holds_for_a_real_memory():
    """A `LayerMemory` of low rank on real signals, errors read off its own sketches, proposals aimed at old outputs."""
    model, x, y = trained()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = so.LayerMemory(12, ridge=0.02, curvature="positions")
    protection = so.protect(model, optimizer, memory=memory)
    protection.observe(x, y)
    protection.refresh()
    signals = so.layer_signals(model, x)
    for name, layer in protection.projector.layers.items():
        pair = memory.factors[name]
        assert pair.inputs is not None
        assert pair.outputs is not None
        errors = [theory.nystrom_error(part.spectrum()[0], part.energy) for part in (pair.inputs, pair.outputs)]
        bound = theory.layer_change_bound(layer, *errors)
        a, delta = (part.double() for part in signals[name])
        G = layer_gradients(a, delta)
        residuals = theory.layer_residuals(layer, a.repeat(len(delta) // len(a), 1), delta)
        assert float(residuals.sum()) < 0.3 * float(G.square().sum())
        random = torch.randn(G.shape[1:], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        for proposal in (G.mean(0), G[0], random):
            kept = projected(layer, proposal.float()).double()
            change = (G * kept).sum((1, 2)).square()
            size = float(proposal.square().sum()) * (1 + 1e-5)
            assert float(change.sum()) <= bound * size
            assert bool((change <= residuals * size + 1e-9 * float(change.max())).all())
        before = float((G * G.mean(0)).sum((1, 2)).square().sum()) / float(G.mean(0).square().sum())
        after = float((G * projected(layer, G.mean(0).float()).double()).sum((1, 2)).square().sum())
        assert after / float(G.mean(0).square().sum()) < 0.05 * before
    protection.detach()
