"""Layer memories that pull weights back to an anchor, against closed forms in float64."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import sketchogd as so
from sketchogd.memory.curvature import RELATIVE_STRENGTH
from sketchogd.optimizer.step_size import step_size
from sketchogd.projector import LayerSpectra, PullingLayer


def orthonormal(rows, d, seed):
    q, _ = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
    return q[:rows]


@pytest.mark.parametrize("unseen", [0.0, 0.4])
@pytest.mark.parametrize("outputs", [5, 3, None])
def test_a_pull_is_one_implicit_step(outputs, unseen):
    """v − A v = (I + s (D + γ I) ⊗ M)⁻¹ v, with D of full or lower rank, or the identity, and M with a tail or not."""
    V, a = orthonormal(4, 7, 0), torch.linspace(3.0, 0.5, 4, dtype=torch.float64)
    U = None if outputs is None else orthonormal(outputs, 5, 1)
    d = None if outputs is None else torch.linspace(2.0, 0.2, outputs, dtype=torch.float64)
    everywhere, weight, travelled = (0.0 if U is None else 0.3), 0.7, 1.9
    tail = 0.0 if U is None else 0.2  # the mean sensitivity outside of U
    layer = PullingLayer(LayerSpectra(V, a, U, d, 1.0, unseen, tail), weight, everywhere)
    v = torch.randn(5, 7, dtype=torch.float64)
    W, bias = v[:, :-1].clone(), v[:, -1].clone()
    layer.protected_part_(W, bias, travelled)
    found = v - torch.cat([W, bias[:, None]], 1)
    D = eye = torch.eye(5, dtype=torch.float64)
    if U is not None:
        D = U.T @ torch.diag(d) @ U + everywhere * eye + tail * (eye - U.T @ U)
    M = V.T @ torch.diag(a - unseen) @ V + unseen * torch.eye(7, dtype=torch.float64)
    system = torch.eye(35, dtype=torch.float64) + travelled * weight * torch.kron(D, M)
    torch.testing.assert_close(found.flatten(), torch.linalg.solve(system, v.flatten()))


def problem(seed=0):
    generator = torch.Generator().manual_seed(seed)
    old, new = (torch.randn(n, 6, dtype=torch.float64, generator=generator) for n in (40, 30))
    return old, new, torch.randn(30, 3, dtype=torch.float64, generator=generator)


def spread_of(z):
    """Σ (z − z̄)² of logits (n, C), each row less its mean."""
    return float((z - z.mean(1, keepdim=True)).square().sum())


def model_with(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(6, 3).double()


@pytest.mark.parametrize(("every", "lr", "steps"), [(1, 0.05, 2000), (10, 0.01, 8000)])
def test_training_ends_at_the_balance_of_both_losses(every, lr, steps):
    """For one linear layer nothing is left out: the end is the minimum of new loss + strength/2 · relative change²."""
    old, new, wanted = problem()
    model = model_with()
    before = torch.cat([model.weight, model.bias[:, None]], 1).detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    protection = so.protect(model, optimizer, memory=so.LayerSketch(20, strength=0.5, damping=0.0), every=every)
    protection.remember([(old, None)])
    for _ in range(steps):
        optimizer.zero_grad()
        mse_loss(model(new), wanted).backward()
        optimizer.step()
    protection.settle()
    found = torch.cat([model.weight, model.bias[:, None]], 1).detach()
    X, Z = (torch.cat([x, torch.ones(len(x), 1).double()], 1) for x in (new, old))
    # new loss: ‖X Wᵀ − Y‖² / (n C); change of old logits: strength / 2 · ‖Z (W − W₀)ᵀ‖² / their spread
    H_new, H_old = X.T @ X * 2 / (30 * 3), Z.T @ Z * 0.5 / spread_of(Z @ before.T)
    right = X.T @ wanted * 2 / (30 * 3) + H_old @ before.T
    expected = torch.linalg.solve(H_new + H_old, right).T
    # taking turns, a few steps on one term and one implicit step on the other, is exact in the limit of small steps
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02 * float((expected - before).abs().max()))


def test_every_task_weighs_as_much():
    """Two tasks of the same examples weigh twice what one does, whatever their number of examples."""
    old = problem()[0]

    def weight(batches):
        model = model_with()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        protection = so.protect(model, optimizer, memory=so.LayerSketch(20, strength=2.0))
        for batch in batches:
            protection.remember([(batch, None)])
        layer = protection.projector.layers[""]
        known = layer.spectra
        A = known.inputs.T @ torch.diag(known.input_values) @ known.inputs
        D = known.outputs.T @ torch.diag(known.output_values) @ known.outputs
        return layer.weight * torch.kron(D, A)

    one, two = weight([old]), weight([old, old])
    torch.testing.assert_close(two, 2 * one)
    Z = torch.cat([old, torch.ones(len(old), 1).double()], 1)
    expected = 2.0 * torch.kron(torch.eye(3).double(), Z.T @ Z) / spread_of(model_with()(old).detach())
    torch.testing.assert_close(one, expected)


def test_parameters_of_no_layer_are_pulled_too():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3, dtype=torch.float64))

        def forward(self, x):
            return x * self.scale

    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    protection = so.protect(model, optimizer, memory=so.LayerSketch(8, strength=5.0))
    x = torch.tensor([[1.0, 0.0, 0.0], [0.0, 3.0, 0.0]], dtype=torch.float64)
    protection.remember([(x, None)])
    (model(torch.ones(1, 3, dtype=torch.float64)).sum()).backward()
    optimizer.step()
    # gradients of random signs ± x: second moment diag(1, 9, 0); weight 5 / spread of the logits, travelled 0.1
    s = 0.1 * 5.0 / spread_of(x)
    expected = 1 - 0.1 / (1 + s * torch.tensor([1.0, 9.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(model.scale.detach(), expected)


@pytest.mark.parametrize("anchor_dtype", [None, "int8"])
def test_a_saved_anchor_goes_on_in_the_middle_of_a_task(tmp_path, anchor_dtype):
    old, new, wanted = problem()

    def start():
        model = model_with()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        memory = so.LayerSketch(20, strength=2.0, anchor_dtype=anchor_dtype)
        return model, optimizer, so.protect(model, optimizer, memory=memory, every=3)

    def steps(model, optimizer, count):
        for _ in range(count):
            optimizer.zero_grad()
            mse_loss(model(new), wanted).backward()
            optimizer.step()

    model, optimizer, protection = start()
    protection.remember([(old, None)])
    steps(model, optimizer, 12)
    protection.save(tmp_path / "memory.safetensors")
    weights = {name: t.clone() for name, t in model.state_dict().items()}
    steps(model, optimizer, 12)

    again, other, loaded = start()
    again.load_state_dict(weights)
    loaded.load(tmp_path / "memory.safetensors")
    steps(again, other, 12)
    assert torch.equal(again.weight, model.weight)
    # without its anchor it would be pulled to where it was loaded
    state = protection.state_dict()
    kept = {name: t for name, t in state["tensors"].items() if not name.startswith("anchor.")}
    assert len(kept) == len(state["tensors"]) - (2 if anchor_dtype is None else 4)
    before = {name: t.clone() for name, t in loaded.state_dict()["tensors"].items()}
    incomplete = {**kept, "anchor.weight": state["tensors"]["anchor.weight"]}
    with pytest.raises(so.StorageError, match="anchor"):
        loaded.load_state_dict({"meta": state["meta"], "tensors": incomplete})
    name = "anchor.weight" if anchor_dtype is None else "anchor.weight.scales"
    spoilt = {**state["tensors"], name: torch.full_like(state["tensors"][name], float("nan"))}
    with pytest.raises(so.StorageError, match="NaN"):
        loaded.load_state_dict({"meta": state["meta"], "tensors": spoilt})
    assert all(torch.equal(t, before[name]) for name, t in loaded.state_dict()["tensors"].items())


def test_an_anchor_of_another_kind_is_refused():
    def protection(anchor_dtype):
        model = model_with()
        memory = so.LayerSketch(20, anchor_dtype=anchor_dtype)
        protection = so.protect(model, torch.optim.SGD(model.parameters(), lr=0.05), memory=memory)
        protection.remember([(problem()[0], None)])
        model(problem()[1]).sum().backward()
        protection._projection.optimizer.step()
        return protection.state_dict(), protection

    (whole, _), (rounded, loaded) = protection(None), protection("int8")
    tensors = rounded["tensors"]
    for wrong in (
        whole["tensors"],
        {**tensors, "anchor.weight": tensors["anchor.weight"].double()},
        {**tensors, "anchor.weight": tensors["anchor.weight"][:1]},
        {**tensors, "anchor.weight.scales": tensors["anchor.weight.scales"][:1]},
    ):
        with pytest.raises(so.StorageError, match="anchor"):
            loaded.load_state_dict({"meta": rounded["meta"], "tensors": wrong})
    # a file from before there was a choice has its anchor in full
    older = {**whole["meta"], "settings": {k: v for k, v in whole["meta"]["settings"].items() if k != "anchor_dtype"}}
    loaded.load_state_dict({"meta": older, "tensors": whole["tensors"]})
    assert loaded.memory.rule.anchor_dtype is None


def test_a_module_may_be_called_anchor(tmp_path):
    """The names of an anchor's tensors begin with that word; those of this module's sketches do as well."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("anchor", nn.Linear(6, 3))
    protection = so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=so.LayerSketch(4))
    protection.remember([(torch.randn(9, 6), None)])
    protection.save(tmp_path / "memory.safetensors")
    protection.load(tmp_path / "memory.safetensors")
    assert protection.memory.examples == 9


def test_a_rounded_anchor_ends_near_the_one_in_full():
    """Where training ends it is off by about what was rounded away: half a step of 1/127 of a row's largest weight."""
    old, new, wanted = problem()

    def end(anchor_dtype, every):
        model = model_with()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        memory = so.LayerSketch(20, strength=2.0, anchor_dtype=anchor_dtype)
        protection = so.protect(model, optimizer, memory=memory, every=every)
        protection.remember([(old, None)])
        step = float(model.weight.detach().abs().max()) / 127
        for _ in range(600):
            optimizer.zero_grad()
            mse_loss(model(new), wanted).backward()
            optimizer.step()
        protection.settle()
        return model.weight.detach(), step

    for every in (1, 10):
        (whole, step), (rounded, _) = end(None, every), end("int8", every)
        assert 0 < float((whole - rounded).abs().max()) < step


@pytest.mark.parametrize(("anchor_dtype", "nbytes"), [(None, 4 * 21), ("int8", 21 + 4 * 3 + 4)])
def test_the_anchor_is_in_the_ledger_and_the_budget(anchor_dtype, nbytes):
    model = model_with().float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    protection = so.protect(model, optimizer, memory=so.LayerSketch(4, anchor_dtype=anchor_dtype))
    assert protection.ledger().nbytes == protection.memory.nbytes + nbytes
    protection.remember([(torch.randn(9, 6), None)])
    model(torch.randn(2, 6)).sum().backward()
    optimizer.step()
    assert protection.mode == "update"
    assert protection.ledger().nbytes == protection.memory.nbytes + nbytes
    assert any("pulls back" in entry.purpose for entry in protection.ledger().entries)


def test_both_ways_at_once_are_refused():
    with pytest.raises(ValueError, match="one of them"):
        so.LayerSketch(4, ridge=0.1, strength=1.0)
    with pytest.raises(ValueError, match="strength"):
        so.LayerSketch(4, strength=0.0)
    with pytest.raises(ValueError, match="damping"):
        so.LayerSketch(4, damping=-1.0)
    with pytest.raises(ValueError, match="int8"):
        so.LayerSketch(4, anchor_dtype="int4")
    with pytest.raises(ValueError, match="there is none"):
        so.LayerSketch(4, ridge=0.1, anchor_dtype="int8")


def test_step_sizes():
    model = model_with()
    parameters = so.ProtectedParameters(model)
    assert step_size(torch.optim.SGD(model.parameters(), lr=0.1), parameters) == 0.1
    assert step_size(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), parameters) == pytest.approx(1.0)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        model.weight.grad, model.bias.grad = torch.full_like(model.weight, 4.0), torch.full_like(model.bias, 0.5)
        adam.step()
    # 18 entries move by lr for a gradient of 4, and 3 for one of a half
    assert step_size(adam, parameters) == pytest.approx(0.01 * 21 / (18 * 4.0 + 3 * 0.5), rel=1e-6)


def test_damping_is_a_share_of_the_largest_sensitivity_and_the_rest_is_the_mean_of_what_is_left():
    """Against Σ δ δᵀ and Σ a aᵀ from autograd; at rank 4 the sketch of 9 input directions has no room for five."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x = torch.randn(50, 8, dtype=torch.float64)
    memory = so.LayerMemory({"0": 4, "2": 20}, damping=0.3, curvature="positions")
    protection = so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=memory)
    protection.remember([(x, None)])
    hidden = model[0](x).detach().requires_grad_()
    deltas = [torch.autograd.grad(model[2](torch.tanh(hidden))[:, c].sum(), hidden)[0] for c in range(3)]
    first, last = (protection.projector.layers[name] for name in ("0", "2"))
    # Σ δ δᵀ (6, 6) is sketched at rank 4 as well: its largest value is a little underrated, never overrated.
    largest = float(torch.linalg.eigvalsh(sum(d.T @ d for d in deltas))[-1])
    assert first.everywhere == pytest.approx(0.3 * float(first.spectra.output_values.max()))
    assert 0.9 * 0.3 * largest < first.everywhere <= 0.3 * largest * (1 + 1e-9)
    energy = float(x.square().sum()) + len(x)
    assert first.spectra.unseen == pytest.approx((energy - float(first.spectra.input_values.sum())) / (9 - 4))
    assert last.everywhere == pytest.approx(0.3 * len(x))  # the sensitivity of a logit to itself is 1
    assert last.spectra.unseen == 0


def test_the_usual_strength_and_damping_are_those_that_the_results_are_for():
    usual = so.LayerSketch(4, curvature="positions")
    assert (usual.rule.strength, usual.rule.damping) == (2.0, 0.05)
    assert so.LayerMemory(4, rule=so.Pull()).rule == so.LayerMemory(4).rule == so.Pull(RELATIVE_STRENGTH)


def classified(memory, every=1, rate=lambda i: 0.15):
    """Mean square change of old outputs in 100 steps of SGD on other labels."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    old, new = torch.randn(5, 6), torch.randn(40, 6)
    labels = torch.randint(0, 3, (40,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if memory is not None:
        protection = so.protect(model, optimizer, memory=memory, every=every)
        protection.remember([(old, None)])
    before = model(old).detach()
    for i in range(100):
        optimizer.param_groups[0]["lr"] = rate(i)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(new), labels).backward()
        optimizer.step()
    return float((model(old).detach() - before).square().mean())


@pytest.mark.parametrize("every", [1, 10, 50])
def test_the_rate_of_each_step_counts_and_not_that_of_the_last(every):
    """A rate that falls to zero within every 50 steps, the mean of which is that of a constant one."""
    falling, constant = (
        classified(so.LayerMemory(50), every, rate) for rate in (lambda i: 0.3 * (1 - i % 50 / 49), lambda i: 0.15)
    )
    assert falling < 2 * constant < 0.02 * classified(None)


def test_a_pull_by_inputs_alone_protects_without_further_settings():
    """The weight of an example is not divided by a number of logits, of which none enters."""
    assert classified(so.LayerMemory(50, outputs=False)) < 0.2 * classified(None)
