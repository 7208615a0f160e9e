"""Measure where training under a pull ends, for many optimizers: ‖∇ joint‖ / ‖∇ new‖, zero at the balance.

One linear layer at full rank, for which nothing is approximated: old outputs Z Wᵀ, new loss ‖X Wᵀ − Y‖² / (n C), and
the penalty strength/2 · ‖Z (W − W₀)ᵀ‖² / (N C). The pull is H D, D = W − W₀.
"""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import sketchogd as so
from sketchogd.optimizer.step_size import step_size

STRENGTH = 2.0


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023: the sign of a mean gradient."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.add_(m.mul(0.9).add(p.grad, alpha=0.1).sign(), alpha=-group["lr"])
                m.mul_(0.99).add_(p.grad, alpha=0.01)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "SGD, Nesterov": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "SGD, dampening": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.0),
    "AMSGrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.003),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "Lion": lambda p: Lion(p, lr=0.003),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.5),
}
if hasattr(torch.optim, "Muon"):
    OPTIMIZERS["Muon"] = lambda p: torch.optim.Muon(p, lr=0.01, weight_decay=0)


@dataclass(frozen=True)
class Ended:
    """Where training ended: ‖∇ joint‖ / ‖∇ new‖, the protection's mode, and the step size that a pull would count."""

    imbalance: float
    mode: str | None
    step_size: float


def train(make: Callable[[Any], torch.optim.Optimizer], every: int, steps: int, falling: bool = True) -> Ended:
    """Remember the old inputs and train on the new ones, with a rate that falls to almost nothing or stays."""
    g = torch.Generator().manual_seed(0)
    old, new = (torch.randn(n, 6, dtype=torch.float64, generator=g) for n in (40, 30))
    wanted = torch.randn(30, 3, dtype=torch.float64, generator=g)
    torch.manual_seed(0)
    model = nn.Linear(6, 3, bias=False).double()
    before = model.weight.detach().clone()
    optimizer = make(model.parameters())
    memory = so.LayerMemory(20, rule=so.Pull(STRENGTH, damping=0.0))
    protection = so.protect(model, optimizer, memory=memory, every=every)
    protection.remember([(old, None)])

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = mse_loss(model(new), wanted)
        loss.backward()
        return loss

    rates = [group["lr"] for group in optimizer.param_groups]
    for k in range(steps):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * (1 - k / steps + 1e-4) if falling else rate
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    protection.settle()
    closure()
    found = model.weight.grad
    assert found is not None
    spread = (old @ (before - before.mean(0)).T).square().sum()
    pull = STRENGTH * (model.weight.detach() - before) @ (old.T @ old) / spread
    size = step_size(optimizer, protection.parameters)
    return Ended(float((found + pull).norm() / found.norm()), protection.mode, size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000, help="of training; LBFGS takes a fiftieth")
    parser.add_argument("--every", type=int, nargs="+", default=[1, 10, 100], help="steps between two pulls")
    parser.add_argument("--constant", action="store_true", help="also with a rate that does not fall")
    options = parser.parse_args()
    print("A rate that falls to almost nothing:\n")
    print("| optimizer | mode | " + " | ".join(f"`every={m}`" for m in options.every) + " |")
    print("|---|---|" + "---:|" * len(options.every), flush=True)
    for name, make in OPTIMIZERS.items():
        steps = options.steps // (50 if name == "LBFGS" else 1)
        ended = [train(make, every, steps) for every in options.every]
        print(f"| {name} | {ended[0].mode} | " + " | ".join(f"{e.imbalance:.0e}" for e in ended) + " |", flush=True)
    if options.constant:
        print("\nA rate that stays:\n")
        print("| optimizer | `every` | steps | imbalance | step size at the end |\n|---|---:|---:|---:|---:|")
    for name in ("SGD", "AdamW") if options.constant else ():
        for every in options.every[1:]:
            last = train(OPTIMIZERS[name], every, options.steps, falling=False)
            cells = [name, every, f"{options.steps:,}", f"{last.imbalance:.2g}", f"{last.step_size:.2g}"]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
    print(f"\n{os.cpu_count()} CPU cores, {torch.get_num_threads()} thread(s), torch {torch.__version__}")


if __name__ == "__main__":
    main()
