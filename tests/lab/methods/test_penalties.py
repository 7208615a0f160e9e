"""Laplace, L2, implicit steps, averaging, LwF and DER++ against their equations written out; and encodings."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, unfold

from sketchogd.lab.methods.baselines import AGEM, DER, EWC, L2, Averaging, Laplace, LwF, Replay
from sketchogd.lab.methods.baselines.laplace import kronecker_factors
from sketchogd.lab.methods.baselines.layers import layers_of
from sketchogd.lab.runs.evaluate import Heads
from sketchogd.lab.streams.encodings import AS_GIVEN, Pixels, Tokens
from sketchogd.lab.streams.transforms import CIFAR_INPUTS
from sketchogd.model.parameters import ProtectedParameters
from tests.lab.methods.test_baselines import backward, data, flat, grads, loss_of, network


def moved(model: nn.Module, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for t in model.parameters():
            t.add_(0.3 * torch.randn(t.shape, generator=g, dtype=torch.float64))


def logits_of(model: nn.Module):
    return lambda x, head, answer: (answer or model)(x)


# ---------------------------------------------------------------- Laplace


def literal_factors(model: nn.Sequential, x: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Q and H of the linear layers and convolutions of a chain, an example and a class at a time."""
    places = [i for i, m in enumerate(model) if isinstance(m, nn.Linear | nn.Conv2d)]
    found = {i: [0.0, 0.0] for i in places}
    for example in x:
        a, inputs, outputs = example[None], {}, {}
        for i, module in enumerate(model):
            inputs[i] = a
            a = outputs[i] = module(a)
        chances = a.log_softmax(1)[0]
        for i in places:
            module = model[i]
            rows = inputs[i].detach()
            if isinstance(module, nn.Conv2d):
                rows = unfold(rows, module.kernel_size, padding=module.padding)[0].T
            if module.bias is not None:
                rows = torch.cat([rows, torch.ones(len(rows), 1).double()], 1)
            found[i][0] = found[i][0] + rows.T @ rows / len(x)
            for chance in chances:
                (g,) = torch.autograd.grad(chance, outputs[i], retain_graph=True)
                delta = g[0].flatten(1) if g.ndim == 4 else g.T  # (out, places)
                n = delta.shape[1]
                found[i][1] = found[i][1] + chance.exp().detach() * delta @ delta.T / n / len(x)
    return [tuple(found[i]) for i in places]


def convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(27, 3)).double()


def test_kronecker_factors_are_the_expectations_of_the_paper() -> None:
    for model, x in (
        (network(), data(6, 1)[0]),
        (convolutional(), torch.randn(4, 2, 3, 3, dtype=torch.float64)),
    ):
        layers, _ = layers_of(ProtectedParameters(model))
        found = kronecker_factors(model, layers, x)
        for layer, (Q, H) in zip(layers, literal_factors(model, x), strict=True):
            torch.testing.assert_close(found[layer.name][0], Q)
            torch.testing.assert_close(found[layer.name][1], H)


def test_the_factors_of_a_linear_model_are_its_fisher_matrix_for_one_example() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 4, bias=False).double()
    x = torch.randn(1, 3, dtype=torch.float64)
    layers, _ = layers_of(ProtectedParameters(model))
    ((Q, H),) = kronecker_factors(model, layers, x).values()
    p = model(x).softmax(1)[0].detach()
    fisher = torch.zeros(12, 12, dtype=torch.float64)
    for c in range(4):
        (g,) = torch.autograd.grad(model(x).log_softmax(1)[0, c], model.weight)
        fisher += p[c] * torch.outer(g.flatten(), g.flatten())
    torch.testing.assert_close(torch.kron(H, Q), fisher)


def test_laplace_pulls_with_the_mean_factors_of_all_tasks() -> None:
    model = convolutional()
    model[1] = nn.BatchNorm2d(3).double()
    method = Laplace(model, 0.7, samples=None)
    sums: list = []
    fisher = 0.0
    for t in range(3):
        moved(model, t)
        x = torch.randn(5, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(t))
        method.end_task(x, torch.zeros(5, dtype=torch.int64))
        model.eval()
        new = literal_factors(model, x)
        sums = [(Q + q, H + h) for (Q, H), (q, h) in zip(sums, new, strict=True)] if sums else new
        squares = []
        for example in x:
            chances = model(example[None]).log_softmax(1)[0]
            for chance in chances:
                g = torch.autograd.grad(chance, [model[1].weight, model[1].bias], retain_graph=True)
                squares.append(chance.exp().detach() * torch.cat(g).square() / len(x))
        fisher = fisher + sum(squares)
    anchor = [t.detach().clone() for t in model.parameters()]
    moved(model, 9)
    for t in model.parameters():
        t.grad = None
    method.before_step(x, torch.zeros(5))
    change = [t.detach() - a for t, a in zip(model.parameters(), anchor, strict=True)]
    (Q, H), (Q2, H2) = sums
    conv, norm, norm_bias, linear, bias = (t.grad for t in model.parameters())
    torch.testing.assert_close(conv.flatten(1), 0.7 * 3 * (H / 3) @ change[0].flatten(1) @ (Q / 3))
    both = torch.cat([change[3], change[4][:, None]], 1)
    expected = 0.7 * 3 * (H2 / 3) @ both @ (Q2 / 3)
    torch.testing.assert_close(torch.cat([linear, bias[:, None]], 1), expected)
    torch.testing.assert_close(torch.cat([norm, norm_bias]), 0.7 * fisher * torch.cat(change[1:3]))
    pull = torch.cat([t.grad.flatten() for t in model.parameters()])
    assert float(method.penalty()) == pytest.approx(float(pull @ torch.cat([c.flatten() for c in change])) / 2)
    d, p = (18, 28), sum(t.numel() for t in model.parameters())
    assert method.nbytes == 8 * (sum(n * (n + 1) // 2 for n in (*d, 3, 3)) + p + 6)


# ---------------------------------------------------------------- L2, implicit steps, averaging


def test_l2_pulls_to_the_last_weights_and_not_before_the_first_task_ended() -> None:
    model = network()
    method = L2(model, 0.4)
    x, y = data(6, 1)
    backward(model, x, y)
    plain = grads(model).clone()
    method.before_step(x, y)
    assert torch.equal(grads(model), plain)
    moved(model, 1)
    anchor = flat(model)
    method.end_task(x, y)
    moved(model, 2)
    backward(model, x, y)
    plain = grads(model).clone()
    method.before_step(x, y)
    torch.testing.assert_close(grads(model), plain + 0.4 * (flat(model) - anchor))
    assert method.nbytes == 8 * len(anchor)


@pytest.mark.parametrize("kind", ["l2", "ewc"])
def test_an_implicit_step_minimises_the_penalty_and_the_distance_moved(kind: str) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    x, y = data(6, 1)
    strength = 1e5  # an explicit step of this size diverges
    method = (
        L2(model, strength, optimizer=optimizer)
        if kind == "l2"
        else EWC(model, strength, samples=None, optimizer=optimizer)
    )
    method.end_task(x, y)
    anchor = flat(model)
    stiffness = strength * (method.fisher if kind == "ewc" else torch.ones_like(anchor))
    moved(model, 2)
    backward(model, x, y)
    stepped = flat(model) - 0.2 * grads(model)
    method.before_step(x, y)
    optimizer.step()
    torch.testing.assert_close(flat(model), stepped)
    method.after_step()
    found = flat(model).requires_grad_()
    whole = (found - stepped).square().sum() / 2 + 0.2 / 2 * (stiffness * (found - anchor).square()).sum()
    (g,) = torch.autograd.grad(whole, found)
    assert float(g.abs().max()) < 1e-9
    assert float((found - anchor).detach().norm()) < float((stepped - anchor).norm())


def test_weights_are_averaged_over_tasks() -> None:
    for share in (None, 0.25):
        model = network()
        method = Averaging(model, share)
        ends, mean = [], None
        for t in range(3):
            moved(model, t)
            ends.append(flat(model))
            method.end_task(*data(4, t))
            s = 1.0 if mean is None else (share or 1 / (t + 1))
            mean = ends[-1] if mean is None else mean + s * (ends[-1] - mean)
            torch.testing.assert_close(flat(model), mean)
    assert method.nbytes == 8 * len(mean)


# ---------------------------------------------------------------- LwF


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.norm = nn.Linear(5, 6), nn.BatchNorm1d(6)
        self.heads = nn.ModuleList(nn.Linear(6, 3) for _ in range(3))
        self.head = 0
        self.double()

    def use_head(self, head: int) -> None:
        self.head = head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.heads[self.head](self.norm(self.body(x)).tanh())


def test_lwf_holds_answers_of_earlier_heads_to_those_of_the_old_model() -> None:
    model = TwoHeads()
    heads = Heads(model, 0)
    method = LwF(model, heads.logits, 0.8, temperature=2.0)
    for head in (0, 1):
        heads.use(head)
        model.train()
        model(data(20, head)[0])  # statistics move
        moved(model, head)
        method.end_task(*data(8, head), head)
    old = copy.deepcopy(model).eval()
    heads.use(2)
    moved(model, 5)
    model.train()
    x, y = data(7, 3)
    backward(model, x, y)
    plain = [None if t.grad is None else t.grad.clone() for t in model.parameters()]
    twin = copy.deepcopy(model)
    method.before_step(x, y, 2)
    added = 0.0
    for h in (0, 1):
        old.use_head(h)
        twin.use_head(h)
        p = (old(x).detach() / 2).softmax(1)
        added = added - 0.8 * (p * (twin(x) / 2).log_softmax(1)).sum(1).mean()
    expected = torch.autograd.grad(added, list(twin.parameters()), allow_unused=True)
    for t, g, e in zip(model.parameters(), plain, expected, strict=True):
        known = [part for part in (g, e) if part is not None]
        torch.testing.assert_close(t.grad, sum(known))
    assert model.head == 2
    assert model.training
    assert method.nbytes == sum(t.numel() * t.element_size() for t in model.state_dict().values())


def test_lwf_of_a_shared_head_counts_the_classes_that_were_seen() -> None:
    model = network()
    method = LwF(model, logits_of(model), 1.0)
    x, _ = data(8, 1)
    method.end_task(x, torch.tensor([0, 2] * 4))
    old = copy.deepcopy(model)
    moved(model, 1)
    model.zero_grad()
    method.before_step(x, torch.ones(8, dtype=torch.int64))
    p = (old(x)[:, [0, 2]].detach() / 2).softmax(1)
    expected = -(p * (model(x)[:, [0, 2]] / 2).log_softmax(1)).sum(1).mean()
    g = torch.cat([g.flatten() for g in torch.autograd.grad(expected, list(model.parameters()))])
    torch.testing.assert_close(grads(model), g)


# ---------------------------------------------------------------- DER++


def test_der_steps_on_the_batch_and_two_draws() -> None:
    model = network()
    method = DER(model, loss_of(model), logits_of(model), capacity=4, batch=100, alpha=0.3, beta=0.6)
    kept: list = []
    seen = 0
    for step in range(6):
        x, y = data(3, step)
        backward(model, x, y)
        plain = grads(model).clone()
        method.before_step(x, y)
        if kept:
            xs, ys, zs = (torch.stack([row[i] for row in kept]) for i in range(3))
            term = 0.3 * (model(xs) - zs).square().mean() + 0.6 * cross_entropy(model(xs), ys)
            plain += torch.cat([t.flatten() for t in torch.autograd.grad(term, list(model.parameters()))])
        torch.testing.assert_close(grads(model), plain)
        g = method.store.generator("reservoir", seen)
        u = torch.rand(3, generator=g, dtype=torch.float64)
        for i in range(3):
            row = (x[i], y[i], model(x)[i].detach())
            place = seen if seen < 4 else int(u[i] * (seen + 1))
            if place == len(kept) < 4:
                kept.append(row)
            elif place < 4:
                kept[place] = row
            seen += 1
        assert torch.equal(method.store.inputs, torch.stack([row[0] for row in kept]))
        torch.testing.assert_close(method.answers, torch.stack([row[2] for row in kept]))
        moved(model, step)
    assert method.nbytes == 4 * (5 * 8 + 16 + 3 * 8)


def test_der_keeps_pixels_and_the_answers_to_the_head_that_was_trained() -> None:
    inputs = CIFAR_INPUTS.normalised(torch.randint(0, 256, (6, 3, 4, 4), dtype=torch.uint8))
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    method = DER(model, loss_of(model), logits_of(model), 5, 3, encoding=CIFAR_INPUTS.encoding)
    y = torch.zeros(6, dtype=torch.int64)
    backward(model, inputs, y)
    method.before_step(inputs, y)
    assert method.nbytes == 5 * (48 + 2 + 4 * 3)
    method.before_step(inputs, y)
    again = DER(model, loss_of(model), logits_of(model), 5, 3, encoding=CIFAR_INPUTS.encoding)
    again.load_state_dict(method.state_dict())
    backward(model, inputs, y)
    plain = grads(model).clone()
    method.before_step(inputs, y)
    first = grads(model).clone()
    backward(model, inputs, y)
    again.before_step(inputs, y)
    assert torch.equal(first, grads(model))
    assert not torch.equal(first, plain)


# ---------------------------------------------------------------- encodings


def test_pixels_and_tokens_come_back_as_they_were() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).repeat(3).view(1, 3, 16, 16)
    x = CIFAR_INPUTS.normalised(pixels)
    kept = CIFAR_INPUTS.encoding.encode(x)
    assert kept.dtype == torch.uint8
    assert torch.equal(kept, pixels)
    assert torch.equal(CIFAR_INPUTS.encoding.decode(kept), x)
    assert torch.equal(CIFAR_INPUTS.encoding.decode(kept[None]), x[None])
    assert CIFAR_INPUTS.encoding.nbytes(x) == 3 * 256 + 2
    assert AS_GIVEN.nbytes(x) == 4 * 3 * 256 + 16
    tokens = torch.tensor([[101, 30521, 102, 0]])
    assert torch.equal(Tokens().decode(Tokens().encode(tokens)), tokens)
    assert Tokens().nbytes(tokens) == 4 * 2 + 2
    with pytest.raises(ValueError, match="not pixels"):
        Pixels((0.0,), (1.0,)).encode(torch.tensor([[[0.0301]]]))
    with pytest.raises(ValueError, match="32,768"):
        Tokens().encode(tokens + 3000)


@pytest.mark.parametrize("kind", ["a-gem", "replay"])
def test_examples_kept_as_bytes_change_no_gradient(kind: str) -> None:
    x = CIFAR_INPUTS.normalised(torch.randint(0, 256, (8, 3, 4, 4), dtype=torch.uint8))
    y = torch.arange(8) % 3
    found = []
    for encoding in (AS_GIVEN, CIFAR_INPUTS.encoding):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        method = (
            AGEM(model, loss_of(model), 4, 3, encoding=encoding)
            if kind == "a-gem"
            else Replay(model, loss_of(model), 4, 3, encoding=encoding)
        )
        method.end_task(x, y)
        backward(model, x[:2], (y[:2] + 1) % 3)
        method.before_step(x[:2], y[:2])
        found.append((grads(model), method.nbytes))
    assert torch.equal(found[0][0], found[1][0])
    assert [nbytes for _, nbytes in found] == [4 * (4 * 48 + 16), 4 * (48 + 2)]
