"""Many alike tensors at once: what they become one by one, and no kernel or wait for each."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

import sketchogd as so
from sketchogd.linalg import stacks
from sketchogd.optimizer import joint
from sketchogd.optimizer.joint import signed_sums
from sketchogd.optimizer.reference import Copies, Copy, Stack
from sketchogd.optimizer.step_size import step_size
from sketchogd.projector import Anchor, LayerSpectra, PullingLayer, ShrinkingLayer
from sketchogd.projector.span import Span

F64 = torch.float64


def rows(r, d, generator):
    return torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=F64))[0][:r]


def spectra(r, s, generator, unseen=0.0, o=6, n=8):
    """Of a layer (o, n - 1) with a bias."""
    a, d = (torch.rand(k, generator=generator, dtype=F64).sort(descending=True).values * 5 + 0.1 for k in (r, s or 1))
    V, U = rows(r, n, generator), None if s is None else rows(s, o, generator)
    tail = 0.0 if s is None else 0.05
    return LayerSpectra(V, a, U, None if s is None else d, 0.7, unseen, tail)


def dense(layer, M, travelled):
    """A M by the definition, from matrices (o n, o n)."""
    known, (o, n) = layer.spectra, M.shape
    V, U = known.inputs, known.outputs
    if isinstance(layer, ShrinkingLayer):
        U = torch.eye(o, dtype=F64) if U is None else U
        d = torch.ones(o, dtype=F64) if known.output_values is None else known.output_values
        products = torch.outer(d, known.input_values)
        return U.T @ (products / (products + layer.ridge * known.mean) * (U @ M @ V.T)) @ V
    eye = torch.eye(o, dtype=F64)
    D = eye
    if U is not None:
        D = U.T @ torch.diag(known.output_values) @ U + known.unseen_outputs * (eye - U.T @ U) + layer.everywhere * eye
    A = V.T @ torch.diag(known.input_values) @ V + known.unseen * (torch.eye(n, dtype=F64) - V.T @ V)
    H = travelled * layer.weight * torch.kron(D, A)
    return (torch.linalg.solve(torch.eye(o * n, dtype=F64) + H, H) @ M.flatten()).view(o, n)


@pytest.mark.parametrize("outputs", [True, False])
@pytest.mark.parametrize("make", ["pull", "pull with a tail", "shrink", "project"])
def test_layers_of_other_ranks_in_one_stack_are_what_each_is_alone(make, outputs):
    generator = torch.Generator().manual_seed(0)
    layers = []
    for i, (r, s) in enumerate([(8, 6), (3, 2), (1, 5), (5, 1)]):
        known = spectra(r, s if outputs else None, generator, 0.3 * (i + 1) if make.endswith("tail") else 0.0)
        if make.startswith("pull"):
            layers.append(PullingLayer(known, 0.5 + i, 0.2 * i if outputs else 0.0))
        else:
            layers.append(ShrinkingLayer(known, 0.4 if make == "shrink" else 0.0))
    assert len({layer.kind for layer in layers}) == 1
    assert PullingLayer(spectra(2, 2, generator), 1.0).kind != PullingLayer(spectra(2, 2, generator, 0.1), 1.0).kind
    M = torch.randn(4, 6, 8, generator=generator, dtype=F64)
    found = layers[0].stack(layers).protected_part(M.clone(), 1.3)
    expected = torch.stack([dense(layer, m, 1.3) for layer, m in zip(layers, M, strict=True)])
    torch.testing.assert_close(found, expected)
    alone = torch.stack(
        [layer.stack([layer]).protected_part(m[None].clone(), 1.3)[0] for layer, m in zip(layers, M, strict=True)]
    )
    torch.testing.assert_close(found, alone)


def copied(form, transposed=False, dtype=torch.float32):
    """Tensors, some alike, and their copies: vectors, a scalar, matrices, kernels of convolutions."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(5,), (), (7,), (4, 9), (6, 9), (4, 9), (2, 3, 3, 1), (4, 9), (0, 3)]
    if transposed:
        shapes = [(9, 4), (9, 4), (9, 4)]
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    spans = [None] * len(tensors)
    if form != Anchor() and (transposed or form.in_span):
        for k, i in enumerate(i for i, t in enumerate(tensors) if 9 in t.shape):
            B = rows(2 + k, 10 if k else 9, generator).float()
            spans[i] = Span(B[:, :9], B[:, 9] if k else None, transposed)
    return tensors, spans


@pytest.mark.parametrize("most", [1, 1 << 20])
@pytest.mark.parametrize(
    ("form", "transposed"),
    [
        (Anchor(), False),
        (Anchor("int8"), False),
        (Anchor("int8"), True),
        (Anchor("span"), False),
        (Anchor("span"), True),
    ],
)
def test_copies_together_are_what_they_are_one_by_one(form, transposed, most, monkeypatch):
    monkeypatch.setattr(stacks, "CPU_STACK_BYTES", most)
    tensors, spans = copied(form, transposed)
    copies = Copies.of(tensors, form, spans)
    assert (max(len(stack.places) for stack in copies.stacks) == 1) == (most == 1)
    other = [t + torch.linspace(-1, 1, t.numel()).view(t.shape) for t in tensors]
    less, more = ([t.clone() for t in other] for _ in range(2))
    copies.subtract_from_(less)
    for stack in copies.stacks:
        stack.add_to_([more[i] for i in stack.places])
    for i, t in enumerate(tensors):
        if spans[i] is None:
            bound = float(t.abs().max()) / 127 * 0.51 if form.dtype == "int8" and t.numel() else 0.0
            kept = t.double()
        else:
            # coordinates on orthonormal directions of the span: the projection, by another way than `Span`
            M = (t.T if transposed else t).double()
            _, S, Vh = torch.linalg.svd(spans[i].basis.double(), full_matrices=False)
            kept = M @ Vh[S > 1e-4].T @ Vh[S > 1e-4]
            kept = kept.T if transposed else kept
            bound = 5 * float(t.abs().max()) / 127 if form.dtype == "int8" else 5e-3
        found = copies.tensors()[i].double()
        assert float((found - kept).abs().sum()) <= (bound + 1e-6) * t.numel()
        torch.testing.assert_close(more[i].double(), other[i].double() + found, atol=1e-5, rtol=1e-5)
        inside = other[i].double()
        if spans[i] is not None:
            inside = spans[i].within(spans[i].coordinates(other[i]), t.shape).double()
        torch.testing.assert_close(less[i].double(), inside - found, atol=2e-5, rtol=1e-5)
        one = Copy.of(t, form, spans[i])
        torch.testing.assert_close(one.tensor().double(), found, atol=1e-6, rtol=1e-6)


def test_a_scaled_correction_is_added_in_the_gradients_own_dtype():
    tensors, spans = copied(Anchor("int8"))
    copies = Copies.of(tensors, Anchor("int8"), spans)
    for stack in copies.stacks:
        given = [torch.ones(tensors[i].shape, dtype=torch.bfloat16) for i in stack.places]
        Stack(stack.places, stack.copies).add_to_(given, torch.tensor(64.0))
        for t, i in zip(given, stack.places, strict=True):
            torch.testing.assert_close(t, (1 + 64 * copies.tensors()[i]).bfloat16(), rtol=0.01, atol=0.01)


class Kernels(TorchDispatchMode):
    """Counts operators, a foreach one once, and how often a number is read."""

    VIEWS = (
        "view",
        "slice",
        "select",
        "unbind",
        "detach",
        "alias",
        "as_strided",
        "expand",
        "permute",
        "transpose",
        "t",
    )

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name.strip("_") not in (*self.VIEWS, "unsafe_view", "unsqueeze", "squeeze", "split", "split_with_sizes"):
            self.calls[name] += 1
        return function(*args, **(kwargs or {}))


class Deep(nn.Module):
    """Residual layers with norms."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(layers))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def kernels_of_steps(layers, optimizer, every, anchor_dtype, steps):
    """Of `steps` steps after two cycles of `every`, less those of an optimizer that has nothing to project."""
    torch.manual_seed(0)
    found = []
    for protected in (True, False):
        model = Deep(layers)
        opt = optimizer(model.parameters())
        if protected:
            protection = so.protect(model, opt, memory=so.LayerMemory(4, anchor_dtype=anchor_dtype), every=every)
            protection.remember([(torch.randn(6, 8), torch.randint(3, (6,)))])
        for step in range(2 * every + 1 + steps):
            model.zero_grad()
            cross_entropy(model(torch.randn(6, 8)), torch.randint(3, (6,))).backward()
            if step <= 2 * every:
                opt.step()
            else:
                with Kernels() as kernels:
                    opt.step()
                found.append((protected, kernels.calls))
    total = {side: sum((calls for s, calls in found if s is side), Counter()) for side in (True, False)}
    waits = [total[side].pop("_local_scalar_dense", 0) for side in (True, False)]
    return sum(total[True].values()) - sum(total[False].values()), waits[0] - waits[1]


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, 1e-3, foreach=True),
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, foreach=True),
}


@pytest.mark.parametrize("anchor_dtype", [None, "int8", "span"])
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_take_no_kernel_per_tensor(name, every, anchor_dtype):
    """A whole cycle: three times as many layers of one shape take as many kernels."""
    few, many = (kernels_of_steps(n, OPTIMIZERS[name], every, anchor_dtype, every)[0] for n in (6, 18))
    assert 0 < many <= few + 2


@pytest.mark.parametrize("every", [1, 4])
def test_waits_do_not_grow_with_the_number_of_tensors(every, monkeypatch):
    """Numbers on a CPU are read at once; here they are read as those on a GPU are."""
    monkeypatch.setattr("sketchogd.optimizer.finite.at_once", lambda t: False)
    few, many = (kernels_of_steps(n, OPTIMIZERS["adamw"], every, "span", every)[1] for n in (6, 18))
    assert many == few


def test_step_sizes_are_those_of_all_entries(monkeypatch):
    """Σ √v over the entries with v > 0, whatever the stacks."""
    model = Deep(3)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    protection = so.protect(model, optimizer, memory=so.LayerMemory(2))
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    for state in optimizer.state.values():
        state["exp_avg_sq"] = torch.rand_like(state["exp_avg_sq"]) * (torch.rand_like(state["exp_avg_sq"]) > 0.3)
    v = torch.cat([state["exp_avg_sq"].flatten().double() for state in optimizer.state.values()])
    expected = 0.01 / (float(v.sqrt().sum() / (v > 0).sum()) / (1 - 0.999) ** 0.5 + 1e-8)
    for most in (1, 300, 1 << 20):
        monkeypatch.setattr(stacks, "CPU_STACK_BYTES", most)
        assert step_size(optimizer, protection.parameters) == pytest.approx(expected, rel=1e-5)


class Mixed(nn.Module):
    """Square weights of every kind: looked up, without a bias, seldom used, and one that nothing is remembered of."""

    def __init__(self, layers=2):
        super().__init__()
        self.table, self.plain = nn.Embedding(8, 8), nn.Linear(8, 8, bias=False)
        self.layers = Deep(layers)
        self.seldom, self.never = nn.Linear(8, 8), nn.Linear(8, 8)
        self.skip = False

    def forward(self, x):
        h = torch.tanh(self.plain(self.table(x).mean(1)))
        return self.layers(h if self.skip else h + torch.tanh(self.seldom(h)))


@pytest.mark.parametrize("examples", [4, 40])
@pytest.mark.parametrize("anchor_dtype", [None, "span"])
def test_all_layers_of_a_model_in_stacks_are_what_each_is_alone(anchor_dtype, examples, monkeypatch):
    """With few examples, nothing is left outside of some bases."""
    torch.manual_seed(0)
    model = Mixed(4).double()
    protection = so.protect(
        model, torch.optim.SGD(model.parameters(), 0.1), memory=so.LayerMemory(5, anchor_dtype=anchor_dtype)
    )
    protection.remember([(torch.randint(8, (examples, 3)), torch.randint(3, (examples,)))])
    v = torch.randn(protection.parameters.p, dtype=F64)
    parts = []
    for most in (1, 1 << 20):
        monkeypatch.setattr(stacks, "CPU_STACK_BYTES", most)
        protection.refresh()
        projector = protection.projector
        parts.append(projector.protected_part_(v.clone(), 0.4))
    assert max(len(places) for _, places in projector._stacks) > 2
    torch.testing.assert_close(*parts)
    places = dict(zip(protection.parameters.names, protection.parameters.unflatten(parts[0]), strict=True))
    assert not bool(places["never.weight"].any())
    assert not bool(places["never.bias"].any())
    assert all(bool(part.any()) for name, part in places.items() if not name.startswith("never"))


class JointTwin:
    """`optimizer.joint` for Adam and an anchor in full, one vector for everything; β^every is next to nothing."""

    def __init__(self, parameters, protection, optimizer, every):
        self.parameters, self.optimizer, self.every = parameters, optimizer, every
        self.projector, self.anchor = protection.projector, self.flat(parameters).clone()
        self.c, self.k, self.settled = None, 0, 0

    def flat(self, tensors):
        return torch.cat([t.detach().flatten() for t in tensors])

    def state(self, name):
        return self.flat([self.optimizer.state[t][name] for t in self.parameters])

    def size(self):
        (_, beta2), lr, eps = (self.optimizer.param_groups[0][key] for key in ("betas", "lr", "eps"))
        if not self.k:
            return lr
        v = self.state("exp_avg_sq")
        return lr / (v.sqrt().sum() / (v > 0).sum() / (1 - beta2**self.k) ** 0.5 + eps)

    def renew(self, g, absent):
        now, size, beta = (
            self.flat(self.parameters),
            self.every * self.size(),
            self.optimizer.param_groups[0]["betas"][0],
        )
        g_mean = g
        if self.c is not None:
            if (g + self.c).norm() < joint.SETTLED * self.began:
                self.settled += 1
                moved = signed_sums(now - self.anchor) - self.sums
                size = min(size, max(self.size(), float(moved.norm() / self.began)))
            mean = beta * (self.state("exp_avg") - (1 - beta**self.k) * self.c) + (1 - beta) * g
            g_mean = torch.where(absent, 0.0, mean / (1 - beta ** (self.k + 1)))
        self.c = self.projector.protected_part_(now - self.anchor - size * g_mean, float(size)) / size
        self.sums, self.began = signed_sums(now - self.anchor), (g + self.c).norm()

    def step(self):
        absent = self.flat([torch.full_like(t, t.grad is None) for t in self.parameters]).bool()
        for t in self.parameters:
            t.grad = torch.zeros_like(t) if t.grad is None else t.grad
        g = self.flat([t.grad for t in self.parameters])
        if self.k % self.every == 0:
            self.renew(g, absent)
        self.k += 1
        for t, piece in zip(self.parameters, self.c.split([t.numel() for t in self.parameters]), strict=True):
            t.grad += piece.view(t.shape)
        self.optimizer.step()


@pytest.mark.parametrize(("most", "unused"), [(1, 20), (1 << 20, 20), (1 << 20, 0)])
def test_joint_steps_are_those_of_one_vector_for_everything(most, unused, monkeypatch):
    """Where a layer is no longer used its gradients are None, and it is pulled back all the same, if it ever moved."""
    monkeypatch.setattr(stacks, "CPU_STACK_BYTES", most)
    monkeypatch.setattr(joint, "SETTLED", 0.9)  # so that some corrections find training settled
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randint(8, (40, 3), generator=generator), torch.randint(3, (40,), generator=generator)
    weights, settled = [], 0
    for twin in (False, True):
        torch.manual_seed(1)
        model = Mixed().double()
        chosen = [(name, t) for name, t in model.named_parameters() if not name.startswith("never")]
        optimizer = torch.optim.Adam([t for _, t in chosen], 0.02, betas=(0.3, 0.99))
        memory = so.LayerMemory(5, strength=3.0)
        protection = so.protect(model, optimizer, memory=memory, every=3, parameters=[name for name, _ in chosen])
        protection.remember([(x[:20], y[:20])])
        steps = JointTwin([t for _, t in chosen], protection, optimizer, 3) if twin else optimizer
        if twin:
            protection.detach()
        for step in range(60):
            model.skip = step >= unused
            optimizer.zero_grad()
            cross_entropy(model(x[20:]), y[20:]).backward()
            steps.step()
        weights.append(torch.cat([t.detach().flatten() for _, t in chosen]))
        settled = steps.settled if twin else 0
    assert 0 < settled < 20
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-6, atol=1e-7)
