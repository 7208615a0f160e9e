"""Where training under a pull ends: the gradient of new loss and pull together is zero, for any optimizer.

A linear layer at full rank, for which nothing is approximated: old outputs Z Wᵀ, new loss ‖X Wᵀ − Y‖² / (n C), and the
penalty strength/2 · ‖Z (W − W₀)ᵀ‖² / (N C).
"""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import sketchogd as so
from sketchogd.optimizer.joint import SUMS, signed_sums


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023: the sign of a mean gradient."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.add_(m.mul(0.9).add(p.grad, alpha=0.1).sign(), alpha=-group["lr"])
                m.mul_(0.99).add_(p.grad, alpha=0.01)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "dampening": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.0),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.003),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "lion": lambda p: Lion(p, lr=0.003),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.5),
}


def adafactor_of_transformers(p, **options):
    return pytest.importorskip("transformers.optimization").Adafactor(p, scale_parameter=False, **options)


OPTIMIZERS["transformers' adafactor"] = lambda p: adafactor_of_transformers(p, lr=0.01, relative_step=False)
if hasattr(torch.optim, "Muon"):
    OPTIMIZERS["muon"] = lambda p: torch.optim.Muon(p, lr=0.01, weight_decay=0)


def problem():
    g = torch.Generator().manual_seed(0)
    old, new = (torch.randn(n, 6, dtype=torch.float64, generator=g) for n in (40, 30))
    return old, new, torch.randn(30, 3, dtype=torch.float64, generator=g)


class Trained:
    """A linear layer protected on old inputs and trained on new ones."""

    def __init__(self, make, every=1, strength=2.0, memory=None):
        torch.manual_seed(0)
        self.old, self.new, self.wanted = problem()
        self.strength = strength
        self.model = nn.Linear(6, 3, bias=False).double()
        self.before = self.model.weight.detach().clone()
        self.optimizer = make(self.model.parameters())
        memory = memory or so.LayerMemory(20, rule=so.Pull(strength, damping=0.0))
        self.protection = so.protect(self.model, self.optimizer, memory=memory, every=every)
        self.protection.remember([(self.old, None)])

    def loss(self):
        return mse_loss(self.model(self.new), self.wanted)

    def closure(self):
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        return loss

    def train(self, steps):
        """Train with a rate that falls to almost nothing."""
        rates = [group.get("lr") for group in self.optimizer.param_groups]
        for k in range(60 if isinstance(self.optimizer, torch.optim.LBFGS) else steps):
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                if rate is not None:
                    group["lr"] = rate * (1 - k / steps + 1e-4)
            if isinstance(self.optimizer, torch.optim.LBFGS):
                self.optimizer.step(self.closure)
            else:
                self.closure()
                self.optimizer.step()
        self.protection.settle()
        return self

    def imbalance(self):
        """‖∇ joint‖ / ‖∇ new‖."""
        self.optimizer.zero_grad()
        self.loss().backward()
        g = self.model.weight.grad
        spread = self.old @ (self.before - self.before.mean(0)).T
        moved = self.model.weight.detach() - self.before
        pull = self.strength * moved @ (self.old.T @ self.old) / spread.square().sum()
        return float((g + pull).norm() / g.norm())


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_ends_at_the_balance_for_every_optimizer(name, every):
    trained = Trained(OPTIMIZERS[name], every).train(3000)
    assert trained.imbalance() < 0.05
    assert (trained.model.weight - trained.before).norm() > 0.1  # and the new task was learned


@pytest.mark.parametrize("options", [{"lr": None, "relative_step": True}, {"lr": 0.01, "relative_step": False}])
def test_adafactor_of_transformers_is_pulled(options):
    """It may have a learning rate of None, and keeps second moments of vectors (biases), but no betas."""

    def change(strength):
        torch.manual_seed(0)
        model = nn.Linear(6, 3).double()
        old, new, wanted = problem()
        before = model(old).detach()
        optimizer = adafactor_of_transformers(model.parameters(), **options)
        so.protect(model, optimizer, memory=so.LayerMemory(20, strength=strength)).remember([(old, None)])
        for _ in range(500):
            optimizer.zero_grad()
            mse_loss(model(new), wanted).backward()
            optimizer.step()
        return float((model(old).detach() - before).square().mean())

    assert change(50.0) < 0.1 * change(1e-9)


@pytest.mark.parametrize("every", [1, 10])
def test_tokens_that_do_not_occur_change_nothing(every):
    """Entries without any gradient take no steps; counted in the step size they made it 1,000 times too large."""

    def change(tokens):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(tokens, 8), nn.Flatten(), nn.Linear(32, 4))
        g = torch.Generator().manual_seed(0)
        with torch.no_grad():
            model[0].weight[:50] = torch.randn(50, 8, generator=g)
            model[2].weight.copy_(torch.randn(4, 32, generator=g) / 5)
            model[2].bias.zero_()
        old, new = (torch.randint(0, 50, (64, 4), generator=g) for _ in range(2))
        y = torch.randint(0, 4, (64,), generator=g)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        protection = so.protect(model, optimizer, memory=so.LayerMemory(50), every=every)
        protection.remember([(old, None)])
        before = model(old).detach()
        for _ in range(100):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(new), y).backward()
            optimizer.step()
        return float((model(old).detach() - before).square().mean())

    assert change(5000) == pytest.approx(change(50), rel=0.2)


@pytest.mark.parametrize("name", ["adamw", "adadelta", "dampening"])
def test_few_corrections_end_at_the_balance_too(name):
    """Training settles between two of thirty corrections, so that m steps lead less far than m times one."""
    assert Trained(OPTIMIZERS[name], every=100).train(3000).imbalance() < 1e-3


def test_how_far_a_displacement_moved_is_known_from_a_few_sums():
    v = torch.randn(20_000, generator=torch.Generator().manual_seed(1))
    assert float(signed_sums(v).norm() / v.norm()) == pytest.approx(1.0, abs=3 / (2 * SUMS) ** 0.5)


def test_the_balance_holds_for_a_stiff_pull():
    """Directions in which lr · strength · λ is 50: an explicit step on the penalty would diverge."""
    for name in ("sgd", "adam"):
        trained = Trained(OPTIMIZERS[name], strength=5000.0).train(4000)
        assert trained.model.weight.isfinite().all()
        assert trained.imbalance() < 0.05


def test_a_gradient_memory_balances_too():
    memory = so.GradientMemory(so.ProductSketch(18), rule=so.Pull(2.0))
    torch.manual_seed(0)
    model = nn.Linear(6, 1, bias=False).double()
    old, new, wanted = problem()
    before = model.weight.detach().clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    protection = so.protect(model, optimizer, memory=memory, output=lambda output, target: output.sum())
    protection.remember([(old, torch.zeros(40))])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 - k / 3000 + 1e-4)
    for _ in range(3000):
        optimizer.zero_grad()
        mse_loss(model(new), wanted[:, :1]).backward()
        optimizer.step()
        schedule.step()
    optimizer.zero_grad()
    mse_loss(model(new), wanted[:, :1]).backward()
    pull = 2.0 * (model.weight.detach() - before) @ (old.T @ old) / 40
    assert (model.weight.grad + pull).norm() < 0.05 * model.weight.grad.norm()


def test_parameter_groups_with_rates_of_their_own_are_pulled_alike():
    """The first group stands still; the second is protected all the same."""

    def change(protect):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        old, new, wanted = problem()
        before = model(old).detach()
        groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters(), "lr": 0.01}]
        optimizer = torch.optim.Adam(groups)
        if protect:
            so.protect(model, optimizer, memory=so.LayerMemory(20, rule=so.Pull(50.0))).remember([(old, None)])
        for _ in range(300):
            optimizer.zero_grad()
            mse_loss(model(new), wanted).backward()
            optimizer.step()
        return float((model(old).detach() - before).square().mean())

    assert change(True) < 0.1 * change(False)


def test_a_parameter_without_a_gradient_stays_where_it_is():
    """A head that is not in use gets no gradient, so that weight decay and momentum of the optimizer leave it alone."""
    torch.manual_seed(0)
    body, heads = nn.Linear(6, 8), nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3)])
    model = nn.ModuleDict({"body": body, "heads": heads})
    model.forward = lambda x: heads[model.head](torch.tanh(body(x)))
    model.head = 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    protection = so.protect(model, optimizer, memory=so.LayerMemory(20))
    x, y = torch.randn(20, 6), torch.randint(0, 3, (20,))
    protection.remember([(x, y)])
    model.head = 1
    kept = heads[0].weight.detach().clone()
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert torch.equal(heads[0].weight, kept)
    assert protection.mode == "joint"


def test_sparse_gradients_are_pulled_after_the_step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Flatten(), nn.Linear(12, 3))
    optimizer = torch.optim.SparseAdam(list(model[0].parameters()), lr=0.01)
    protection = so.protect(model, optimizer, memory=so.LayerMemory(8), parameters="0")
    x, y = torch.randint(0, 20, (16, 3)), torch.randint(0, 3, (16,))
    protection.remember([(x, y)])
    before = model[0].weight.detach().clone()
    for _ in range(3):
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert protection.mode == "update"
    assert not torch.equal(before, model[0].weight)


def test_an_optimizer_without_a_learning_rate_is_pulled():
    class Plain(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                p.add_(p.grad, alpha=-0.05)

    assert Trained(Plain).train(3000).imbalance() < 0.05
