"""The paper's sketches against literal float64 twins, and their accuracy on real gradients."""

import pytest
import torch

import sketchogd as so
from sketchogd.lab.models import mlp
from sketchogd.lab.streams import benchmark
from tests import reference

D, N = 80, 60


def gradients(seed=0):
    g = torch.Generator().manual_seed(seed)
    U = torch.linalg.qr(torch.randn(N, N, generator=g))[0]
    V = torch.linalg.qr(torch.randn(D, N, generator=g))[0].T
    return (U * torch.logspace(0, -2, N)) @ V


def same_span(ours, theirs, tolerance=1e-4):
    """Rows ours, columns theirs."""
    assert len(ours) == theirs.shape[1]
    difference = reference.projector(ours.T) - reference.projector(theirs)
    assert float(torch.linalg.matrix_norm(difference, 2)) < tolerance


@pytest.mark.parametrize("kind", ["sparse", "gaussian"])
def test_method_2_is_the_literal_one(kind):
    G = gradients()
    sketch = so.ProductSketch(12, seed=5, test_matrix=kind).bind(D)
    sketch.observe(G)
    omega = sketch.omega.apply(torch.eye(D, dtype=torch.float64))
    Y = sketch.rows * 4.0**sketch.exponent
    assert torch.allclose(Y.T.double(), reference.method2(G.T, omega), atol=1e-5)
    same_span(sketch.basis(), reference.orth(reference.method2(G.T, omega)))


@pytest.mark.parametrize(("k", "corank"), [(8, 8), (7, 11)])
def test_method_3_is_the_literal_one(k, corank):
    G = gradients()
    sketch = so.SymmetricSketch(k, corank, seed=5, test_matrix="gaussian").bind(D)
    sketch.observe(G)
    omega, psi = (m.apply(torch.eye(D, dtype=torch.float64)) for m in (sketch.omega, sketch.psi))
    same_span(sketch.basis(), reference.method3(G.T, omega, psi.T))


def test_method_1_is_a_sum_of_independent_normal_multiples():
    """Y / g is standard normal for a single row g: over 40 sketches of 50 entries mean and variance to 4 sigma."""
    g = torch.zeros(1, D)
    g[0, 0] = 2.0
    draws = []
    for seed in range(40):
        sketch = so.GradientSketch(50, seed=seed).bind(D)
        sketch.observe(g)
        sketch.observe(g)
        draws.append(sketch.rows[:, 0] / 2.0)
    draws = torch.cat(draws)  # each the sum of two draws
    assert abs(float(draws.mean())) < 4 * (2 / 2000) ** 0.5
    assert float(draws.var()) == pytest.approx(2.0, abs=4 * 2 * (2 / 2000) ** 0.5)


def test_spectrum_of_a_product_sketch_against_the_exact_one():
    """Exact where the rank reaches d; from below, and close for the leading values, where it does not."""
    G = gradients()
    exact, V = torch.linalg.eigh((G.T @ G).double())
    exact, V = exact.flip(0), V.flip(1).T
    full = so.ProductSketch(D).bind(D)
    full.observe(G)
    values, rows = full.spectrum()
    assert torch.allclose(values[:40], exact[:40], rtol=1e-4)
    assert (rows[:20].double() * V[:20]).sum(1).abs().min() > 0.999
    part = so.ProductSketch(40).bind(D)
    part.observe(G)
    values, rows = part.spectrum()
    assert bool((values <= exact[:40] * (1 + 1e-4)).all())
    assert torch.allclose(values[:5], exact[:5], rtol=0.02)
    assert (rows[:3].double() * V[:3]).sum(1).abs().min() > 0.99


def test_sketches_that_must_not_be_merged():
    a, b = (so.GradientSketch(5, seed=1).bind(D) for _ in range(2))
    b.observe(gradients())
    with pytest.raises(ValueError, match="independent"):
        a.merge(b)
    for x, y in [
        (so.ProductSketch(5, seed=1), so.ProductSketch(5, seed=2)),
        (so.ProductSketch(5), so.ProductSketch(6)),
    ]:
        with pytest.raises(ValueError, match="same test matrix"):
            x.bind(D).merge(y.bind(D))
    with pytest.raises(ValueError, match="corank"):
        so.SymmetricSketch(5, 4)
    finished, unfinished = (so.PCARows(5, 5).bind(D) for _ in range(2))
    unfinished.observe(gradients())
    with pytest.raises(ValueError, match="end_task"):
        finished.merge(unfinished)


def test_a_sample_is_uniform_over_the_stream():
    """2,000 samples of 10 out of 100 rows: every row is taken 200 ± 13 times; 5 sigma."""
    taken = torch.zeros(100)
    rows = torch.eye(100)
    for seed in range(2000):
        sketch = so.RandomRows(10, seed=seed).bind(100)
        for part in rows.split(13):
            sketch.observe(part)
        taken += sketch.rows.sum(0)
    assert taken.sum() == 20_000
    assert float((taken - 200).abs().max()) < 5 * (2000 * 0.1 * 0.9) ** 0.5


def test_frequent_directions_keeps_its_guarantee():
    """0 <= M - SᵀS <= ‖M - M_j‖ / (k - j + 1): no direction is overrated, none underrated by more than the tail."""
    G = gradients()
    sketch = so.FrequentDirections(20, 5).bind(D)
    for part in G.split(7):
        sketch.observe(part)
    values, B = sketch.spectrum()
    gap = torch.linalg.eigvalsh((G.T @ G).double() - B.double().T @ (values[:, None] * B.double()))
    squares = torch.linalg.svdvals(G.double()).square()
    bound = min(float(squares[j:].sum()) / (20 - j + 1) for j in range(20))
    assert gap.min() > -1e-5
    assert float(gap.max()) <= bound


@pytest.fixture(scope="module")
def real_gradients():
    """1,500 gradients of the paper's MLP after one task, (1500, 113,610)."""
    torch.manual_seed(0)
    model, task = mlp(), benchmark("rotated-mnist")[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for batch in torch.randperm(len(task.x_train)).split(10):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(task.x_train[batch]), task.y_train[batch]).backward()
        optimizer.step()
    return so.per_example_gradients(model, task.x_train[:1500], task.y_train[:1500])


@pytest.fixture(scope="module")
def optimum(real_gradients):
    K = real_gradients.double() @ real_gradients.double().T
    squares = torch.linalg.eigvalsh(K).flip(0)
    return float(squares[200:].sum() / squares.sum())


@pytest.mark.parametrize(
    ("sketch", "least", "most"),
    [
        (so.ProductSketch(200), 1.0, 1.30),
        (so.ProductSketch(200, test_matrix="gaussian"), 1.0, 1.30),
        (so.SymmetricSketch(100, 100), 1.0, 1.30),
        (so.GradientSketch(200), 1.2, 2.0),
        (so.GradientSketch(200, test_matrix="sparse"), 1.2, 2.0),
        # The paper's accounting: 200 vectors of which 100 are the stored test matrix.
        (so.ProductSketch(100, test_matrix=so.Gaussian(stored=True)), 1.5, 2.3),
    ],
    ids=["product", "product-gaussian", "symmetric", "gradient", "gradient-sparse", "product-stored"],
)
def test_error_on_real_gradients_against_the_optimum_of_rank_200(real_gradients, optimum, sketch, least, most):
    sketch.bind(real_gradients.shape[1])
    sketch.observe(real_gradients)
    error = float(1 - (real_gradients @ sketch.basis().T).double().square().sum() / sketch.energy)
    print(f"{sketch!r}: {error:.4f} is {error / optimum:.2f} x the optimum {optimum:.4f}; {sketch.nbytes:,} bytes")
    assert least < error / optimum < most
