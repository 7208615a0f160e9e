"""Each baseline against a literal implementation of its paper's equations, or a closed form."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sketchogd.lab.methods.baselines import AGEM, EWC, SI, Replay
from sketchogd.lab.methods.baselines.ewc import fisher_diagonal
from sketchogd.model.parameters import ProtectedParameters


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def data(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 5, generator=g, dtype=torch.float64), torch.randint(0, 3, (n,), generator=g)


def loss_of(model: nn.Module):
    return lambda x, y, group: cross_entropy(model(x), y)


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([t.detach().flatten() for t in model.parameters()])


def gradient(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))])


def backward(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    model.zero_grad()
    cross_entropy(model(x), y).backward()


def grads(model: nn.Module) -> torch.Tensor:
    return torch.cat([t.grad.flatten() for t in model.parameters()])


# ---------------------------------------------------------------- A-GEM


@pytest.mark.parametrize("sign", [1, -1])
def test_agem_projects_on_the_half_space_of_the_memory_gradient(sign: int) -> None:
    model = network()
    method = AGEM(model, loss_of(model), per_task=8, batch=100)
    x, y = data(8, 1)
    method.end_task(x, y)
    r = gradient(model, x, y)
    g = sign * r + 0.3 * torch.randn(len(r), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    backward(model, x, y)
    for t, piece in zip(model.parameters(), ProtectedParameters(model).unflatten(g), strict=True):
        t.grad = piece.clone()
    method.before_step(x, y)
    expected = g - (g @ r) / (r @ r) * r if g @ r < 0 else g
    torch.testing.assert_close(grads(model), expected)
    assert grads(model) @ r > -1e-12
    assert (g @ r < 0) == (sign < 0)


def test_agem_draws_its_batch_from_what_it_kept_of_every_task() -> None:
    model = network()
    method = AGEM(model, loss_of(model), per_task=4, batch=6, seed=3)
    for task in range(3):
        x, y = data(20, task)
        x[:, 0] = task
        method.end_task(x, y)
    assert len(method.store) == 12
    assert method.store.inputs[:, 0].tolist() == [0.0] * 4 + [1.0] * 4 + [2.0] * 4
    seen = torch.zeros(3)
    for _ in range(300):
        ((inputs, _, _),) = method.store.draw(6)
        assert len(inputs) == 6 == len(inputs.unique(dim=0))
        seen += torch.bincount(inputs[:, 0].long(), minlength=3)
    # 1,800 draws, a third from each task: deviation below 4 · sqrt(1800 · 2/9) = 80
    assert (seen - 600).abs().max() < 80
    assert method.nbytes == 12 * (5 * 8 + 8 + 8)


def test_memory_batches_of_several_groups_give_the_mean_over_all_examples() -> None:
    model = network()
    asked = []

    def loss(x, y, group):
        asked.append((group, len(y)))
        return cross_entropy(model(x), y)

    method = AGEM(model, loss, per_task=6, batch=50)
    parts = [data(6, 1), data(4, 2)]
    for group, (x, y) in enumerate(parts):
        method.end_task(x, y, group)
    found, size = method.store.gradient(50, loss, method.parameters)
    whole = gradient(model, torch.cat([parts[0][0], parts[1][0]]), torch.cat([parts[0][1], parts[1][1]]))
    torch.testing.assert_close(torch.cat([t.flatten() for t in found]), whole)
    assert (size, asked) == (10, [(0, 6), (1, 4)])


# ---------------------------------------------------------------- EWC


def test_fisher_diagonal_is_the_expectation_over_the_model_s_own_labels() -> None:
    model = network()
    x, _ = data(9, 4)
    literal = torch.zeros_like(flat(model))
    for i in range(len(x)):
        p = model(x[i : i + 1]).softmax(1)[0].detach()
        for c in range(3):
            g = gradient(model, x[i : i + 1], torch.tensor([c]))
            literal += p[c] * g.square() / len(x)
    torch.testing.assert_close(fisher_diagonal(ProtectedParameters(model), x), literal)


def test_ewc_pulls_as_the_sum_of_one_parabola_a_task() -> None:
    model = network()
    method = EWC(model, strength=7.0, samples=None)
    terms = []
    for task in range(3):
        with torch.no_grad():
            for t in model.parameters():
                t.add_(torch.randn(t.shape, generator=torch.Generator().manual_seed(task), dtype=t.dtype))
        x, y = data(6, task)
        method.end_task(x, y)
        terms.append((fisher_diagonal(ProtectedParameters(model), x), flat(model)))
    with torch.no_grad():
        for t in model.parameters():
            t.mul_(1.3)
    theta = flat(model)
    x, y = data(5, 9)
    backward(model, x, y)
    plain = grads(model).clone()
    method.before_step(x, y)
    pull = 7.0 * sum(F * (theta - anchor) for F, anchor in terms)
    torch.testing.assert_close(grads(model), plain + pull)
    before = float(method.penalty())
    literal = 3.5 * sum((F * (theta - anchor).square()).sum() for F, anchor in terms)
    with torch.no_grad():
        for t in model.parameters():
            t.sub_(0.1)
    literal_after = 3.5 * sum((F * (flat(model) - anchor).square()).sum() for F, anchor in terms)
    # equal up to a constant that does not depend on the weights
    assert float(method.penalty()) - before == pytest.approx(float(literal_after - literal), rel=1e-9)
    assert method.nbytes == 2 * 8 * len(theta)


def test_ewc_does_nothing_before_the_first_task_ends() -> None:
    model = network()
    x, y = data(5, 1)
    backward(model, x, y)
    plain = grads(model).clone()
    EWC(model, 100.0).before_step(x, y)
    assert torch.equal(grads(model), plain)


# ---------------------------------------------------------------- SI


def test_si_follows_the_path_integral_of_the_paper() -> None:
    model, twin = network(), network()
    c, xi, lr = 0.5, 0.1, 0.2
    method = SI(model, strength=c, damping=xi)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    theta, anchor = flat(twin), flat(twin)
    big = torch.zeros_like(theta)
    for task in range(2):
        small = torch.zeros_like(theta)
        for step in range(4):
            x, y = data(8, 10 * task + step)
            backward(model, x, y)
            method.before_step(x, y)
            optimizer.step()
            method.after_step()
            nn.utils.vector_to_parameters(theta, twin.parameters())
            g = gradient(twin, x, y)
            new = theta - lr * (g + 2 * c * big * (theta - anchor))
            small -= g * (new - theta)
            theta = new
        method.end_task(*data(8, 0))
        big = big + (small / ((theta - anchor).square() + xi)).clamp_min(0)
        anchor = theta
    torch.testing.assert_close(flat(model), theta)
    torch.testing.assert_close(method.importance, big)
    assert float(big.max()) > 0
    assert method.nbytes == 3 * 8 * len(theta)


def test_si_path_integral_is_the_fall_of_the_loss_for_small_steps() -> None:
    model = network()
    method = SI(model, strength=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = data(30, 2)
    start = cross_entropy(model(x), y).item()
    for _ in range(200):
        backward(model, x, y)
        method.before_step(x, y)
        optimizer.step()
        method.after_step()
    fall = start - cross_entropy(model(x), y).item()
    # Σ −g Δθ is the fall up to second order in the step, here about lr/2 · curvature ≈ 0.1 %
    assert float(method.path.sum()) == pytest.approx(fall, rel=0.01)


# ---------------------------------------------------------------- replay


def test_replay_steps_on_the_mean_over_both_batches() -> None:
    model = network()
    method = Replay(model, loss_of(model), capacity=20, batch=100)
    kept, now = data(12, 1), data(5, 2)
    method.end_task(*kept)
    backward(model, *now)
    method.before_step(*now)
    whole = gradient(model, torch.cat([kept[0], now[0]]), torch.cat([kept[1], now[1]]))
    torch.testing.assert_close(grads(model), whole)


def test_the_reservoir_is_algorithm_r() -> None:
    model = network()
    method = Replay(model, loss_of(model), capacity=6, batch=2, seed=4)
    literal: list[float] = []
    seen = 0
    for task, n in enumerate((4, 9, 11)):
        x, y = data(n, task)
        u = torch.rand(n, generator=method.store.generator("reservoir", seen), dtype=torch.float64)
        for i in range(n):
            if len(literal) < 6:
                literal.append(float(x[i, 0]))
            elif (j := int(u[i] * (seen + 1))) < 6:
                literal[j] = float(x[i, 0])
            seen += 1
        method.end_task(x, y)
        assert method.store.inputs[:, 0].tolist() == literal


def test_every_example_is_equally_likely_to_be_in_the_reservoir() -> None:
    model = network()
    counts = torch.zeros(30)
    for seed in range(600):
        method = Replay(model, loss_of(model), capacity=6, batch=2, seed=seed)
        for first in (0, 12):
            x = torch.arange(first, 12 if first == 0 else 30, dtype=torch.float64)[:, None].expand(-1, 5)
            method.end_task(x, torch.zeros(len(x), dtype=torch.int64))
        counts[method.store.inputs[:, 0].long()] += 1
    # each is in with probability 1/5: 120 of 600, deviation sqrt(96) = 9.8; the largest of 30 stays within 4
    assert (counts - 120).abs().max() < 40


# ---------------------------------------------------------------- all of them


def make(kind: str, model: nn.Module):
    builders = {
        "a-gem": lambda: AGEM(model, loss_of(model), per_task=5, batch=4, seed=1),
        "ewc": lambda: EWC(model, 3.0, samples=4, seed=1),
        "si": lambda: SI(model, 0.5),
        "replay": lambda: Replay(model, loss_of(model), capacity=7, batch=4, seed=1),
    }
    return builders[kind]()


def advance(model: nn.Module, method, tasks) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for task in tasks:
        for step in range(3):
            x, y = data(8, 10 * task + step)
            backward(model, x, y)
            method.before_step(x, y)
            optimizer.step()
            method.after_step()
        method.end_task(*data(8, 10 * task))


@pytest.mark.parametrize("kind", ["a-gem", "ewc", "si", "replay"])
def test_a_state_dict_continues_to_the_same_weights(kind: str) -> None:
    model = network()
    method = make(kind, model)
    advance(model, method, range(2))
    other = copy.deepcopy(model)
    resumed = make(kind, other)
    resumed.load_state_dict(copy.deepcopy(method.state_dict()))
    assert resumed.nbytes == method.nbytes
    advance(model, method, range(2, 4))
    advance(other, resumed, range(2, 4))
    assert torch.equal(flat(model), flat(other))


@pytest.mark.parametrize(
    "build",
    [
        lambda m: AGEM(m, loss_of(m), per_task=0, batch=1),
        lambda m: Replay(m, loss_of(m), capacity=0, batch=1),
        lambda m: EWC(m, -1.0),
        lambda m: SI(m, 1.0, damping=0.0),
    ],
)
def test_impossible_settings_are_refused(build) -> None:
    with pytest.raises(ValueError, match=r"at least|>"):
        build(network())
