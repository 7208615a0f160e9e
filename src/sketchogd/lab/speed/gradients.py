"""How fast a gradient memory is: remembering, the basis, one projection, and a whole run put together from them.

Sizes are the paper's: p = 113,610 parameters and rank 1200 (`quick`: rank 128, to see that everything runs). What is
compared has the same shapes and number of threads, in the same process; TF32 stays off, torch's default.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import sketchogd as so
from sketchogd.lab.models import mlp
from sketchogd.lab.speed import limits, literal
from sketchogd.lab.speed.peak import peak_bytes
from sketchogd.lab.speed.ratios import Ratio
from sketchogd.lab.speed.turns import fastest
from sketchogd.lab.streams import benchmark
from sketchogd.lab.streams.benchmarks.rotated_mnist import ROTATED_MNIST
from sketchogd.linalg.dense import coefficients, combination, plain_coefficients, plain_combination
from sketchogd.model.parameters import ProtectedParameters

STEPS, GRADIENTS, TASKS, EVERY = 300_000, 100_000, 10, 100
"""A Rotated MNIST run of table 1: optimizer steps, remembered gradients, bases, and our steps per projection."""

KINDS = ("gaussian", "sparse")
"""Test matrices of a `GradientSketch`: the paper's, and one that adds each gradient to a few rows only."""

LARGE_P = 1_601_500
"""The parameters that the paper protects of its LeNet."""


@dataclass(frozen=True)
class Setting:
    """On which device to measure, and whether only to see that everything runs."""

    device: torch.device
    quick: bool

    @property
    def rank(self) -> int:
        """The paper's, or a small one for `quick`."""
        return 128 if self.quick else 1200

    @property
    def seconds(self) -> float:
        """How long things take turns."""
        return 1.0 if self.quick else 6.0 if self.device.type == "cuda" else 15.0

    @property
    def cuda(self) -> bool:
        """Whether this is a GPU."""
        return self.device.type == "cuda"


def remembering(setting: Setting) -> list[Ratio]:
    """Gradients and sketch for one chunk, against the product alone and against the literal algorithm."""
    device, k = setting.device, setting.rank
    first, second = (bound(sketch, device) for sketch in (so.GradientSketch(k), so.ProductSketch(k)))
    sparse = bound(so.GradientSketch(k, test_matrix="sparse"), device)
    b, p = first.signals.chunk, first.parameters.p
    x, y = torch.rand(b, 1, 32, 32, device=device), torch.randint(0, 10, (b,), device=device)
    turns: dict[str, Callable[[], object]] = {
        "product": limits.product(k, b, p, device),
        "method 1": lambda: first.observe(x, y),
        "method 2": lambda: second.observe(x, y),
        "sparse": lambda: sparse.observe(x, y),
    }
    took = fastest(turns, device, seconds=setting.seconds)
    rate = 2e-9 * k * b * p / took["product"]
    of_rate = f"of the float32 product's rate ({rate:.0f} GFLOP/s, TF32 off)"
    share = {name: took["product"] / took[name] for name in ("method 1", "method 2")}
    notes = {name: f"{of_rate}, {1e3 * took[name] / b:.3f} ms a gradient" for name in share}
    least = 0.6 if setting.cuda else 0.8
    found = [Ratio("remembering with GradientSketch", share["method 1"], least, unit_note=notes["method 1"])]
    if setting.cuda:
        found.append(Ratio("remembering with ProductSketch", share["method 2"], least, unit_note=notes["method 2"]))
        return found
    slower = took["method 2"] / took["method 1"]
    note = f"x GradientSketch's time, {1e3 * took['method 2'] / b:.3f} ms a gradient"
    found.append(Ratio("remembering with ProductSketch", slower, 1.25, at_least=False, unit_note=note))
    slow = literal_gradient(setting)
    for name, kind in zip(("method 1", "sparse"), KINDS, strict=True):
        most = slow * b / took["product"]
        note = (
            f"x as fast as one gradient at a time, which takes {1e3 * slow:.0f} ms; here {1e3 * took[name] / b:.2f} ms"
        )
        note += f" (the product alone would give {most:.0f} x)" if name == "method 1" else ""
        found.append(Ratio(f"remembering, {kind} test matrix", slow * b / took[name], 150.0, unit_note=note))
    return found


def literal_gradient(setting: Setting) -> float:
    """Seconds for one gradient and its rank-one update in the literal algorithm."""
    model = mlp().to(setting.device)
    x = torch.rand(1, 32, 32, device=setting.device)
    Y = torch.zeros(ProtectedParameters(model).p, setting.rank, device=setting.device)

    def one() -> None:
        literal.update_sketch(Y, literal.gradient(model, x, 3))

    return fastest({"one": one}, setting.device, seconds=setting.seconds / 3, most=10)["one"]


def bases(setting: Setting) -> list[Ratio]:
    """The basis of a sketch of real gradients, in place, against a QR factorisation of the same rows."""
    found = []
    for sketch in (so.GradientSketch(setting.rank), so.ProductSketch(setting.rank)):
        remembered(sketch, setting)
        name = type(sketch).__name__
        extra = peak_bytes(sketch.basis, setting.device) / sketch.nbytes  # first, before freed memory is used again
        took = basis_seconds(sketch, setting)
        note = f"x the time of torch.linalg.qr ({took['basis']:.2f} s against {took['qr']:.2f} s)"
        found.append(Ratio(f"basis of {name}", took["basis"] / took["qr"], 1.0, at_least=False, unit_note=note))
        found.append(Ratio(f"memory for the basis of {name}", extra, 0.15, at_least=False, unit_note="of the sketch"))
    return found


def basis_seconds(sketch: so.GradientSketch | so.ProductSketch, setting: Setting) -> dict[str, float]:
    """Seconds for the basis, for restoring the rows from it, and for a QR factorisation of the rows."""

    def qr() -> Tensor:
        return torch.linalg.qr(sketch.summand().T).Q

    turns: dict[str, Callable[[], object]] = {"qr": qr, "basis": sketch.basis, "restore": sketch.summand}
    return fastest(turns, setting.device, seconds=setting.seconds, most=4)


def projecting(setting: Setting) -> list[Ratio]:
    """One projection with a float32 and with a bfloat16 basis, against one reading (CPU) or copy (GPU) of the rows."""
    found = projecting_at(mlp_size(), setting)
    return found + projecting_at(LARGE_P, setting) if setting.cuda and not setting.quick else found


def projecting_at(p: int, setting: Setting) -> list[Ratio]:
    """The same for p parameters."""
    device = setting.device
    B = torch.randn(setting.rank, p, device=device).mul_(p**-0.5)
    v, out = torch.randn(p, device=device), torch.empty(p, device=device)
    narrow, correction = B.bfloat16(), torch.eye(setting.rank, device=device)
    turns: dict[str, Callable[[], object]] = {
        "float32": lambda: combination(B, coefficients(B, v), out),
        "bfloat16": lambda: combination(narrow, correction @ coefficients(narrow, v), out),
        "plain": lambda: plain_combination(B, plain_coefficients(B, v).to(v.dtype), out),
        **({"copy": limits.copying(B)} if setting.cuda else limits.reading(B)),
    }
    took = fastest(turns, device, seconds=setting.seconds, repeat=20 if setting.cuda else 1)
    once = took["copy"] / 2 if setting.cuda else min(took["sum"], took["max"])
    rate = 1e-9 * B.numel() * B.element_size() / once
    what = "copy" if setting.cuda else "read"
    plain = 2 * once / took["plain"]
    note = f"of the {what} bandwidth ({rate:.0f} GB/s), {1e3 * took['float32']:.2f} ms; plain torch has {plain:.2f}"
    return [
        Ratio(f"projection, p = {p:,}", 2 * once / took["float32"], 0.8 if setting.cuda else 0.75, unit_note=note),
        Ratio(
            f"projection with a bfloat16 basis, p = {p:,}",
            took["float32"] / took["bfloat16"],
            1.7 if setting.cuda else 1.6,
            unit_note=f"x as fast as float32, {1e3 * took['bfloat16']:.2f} ms",
        ),
    ]


def whole_run(setting: Setting) -> list[Ratio]:
    """A Rotated MNIST run of table 1 with all gradients and `every=100`, both put together from measured parts."""
    if setting.cuda:
        return []
    ours, theirs = our_parts(setting), literal_parts(setting)
    other = theirs["step"] * STEPS + theirs["gradient"] * GRADIENTS + theirs["basis"] * TASKS
    found = []
    for kind in KINDS:
        mine = ours["100 steps"] * STEPS / EVERY + ours[kind] * GRADIENTS + ours["basis"] * TASKS
        note = f"x as fast as the literal algorithm: {mine / 60:.1f} min against {other / 3600:.1f} h, both from parts"
        found.append(Ratio(f"a Rotated MNIST run of table 1, {kind} test matrix", other / mine, 60.0, unit_note=note))
    return found


def our_parts(setting: Setting) -> dict[str, float]:
    """Seconds for 100 steps with their projection, for remembering a gradient, and for a basis and its undoing."""
    sketch = so.GradientSketch(setting.rank)
    model = mlp().to(setting.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    protection = so.protect(model, optimizer, memory=so.GradientMemory(sketch), every=EVERY)
    x, y = examples(setting)
    protection.remember([(x, y)])

    def steps() -> None:
        for i in range(EVERY):
            optimizer.zero_grad()
            cross_entropy(model(x[10 * i : 10 * i + 10]), y[10 * i : 10 * i + 10]).backward()
            optimizer.step()

    took = fastest({"steps": steps}, setting.device, seconds=setting.seconds)
    protection.detach()
    memories = {kind: bound(so.GradientSketch(setting.rank, test_matrix=kind), setting.device) for kind in KINDS}
    b = min(len(x), memories["gaussian"].signals.chunk)
    turns = {kind: partial(memory.observe, x[:b], y[:b]) for kind, memory in memories.items()}
    observed = fastest(turns, setting.device, seconds=setting.seconds / 2)
    basis = fastest({"basis": sketch.basis, "restore": sketch.summand}, setting.device, seconds=1.0, most=2)
    gradients = {kind: seconds / b for kind, seconds in observed.items()}
    return {"100 steps": took["steps"], "basis": sum(basis.values()), **gradients}


def literal_parts(setting: Setting) -> dict[str, float]:
    """Seconds for a projected step, for a gradient with its update, and for a basis, in the literal algorithm."""
    model = mlp().to(setting.device)
    Y = torch.randn(mlp_size(), setting.rank, device=setting.device)
    x, y = examples(setting)
    took = fastest({"basis": lambda: literal.basis(Y)}, setting.device, seconds=1.0, most=2)
    B = Y.div_(mlp_size() ** 0.5)

    def step() -> None:
        literal.step(model, cross_entropy(model(x[:10]), y[:10]), 1e-3, B)

    took |= fastest({"step": step}, setting.device, seconds=setting.seconds / 2)
    return {**took, "gradient": literal_gradient(setting)}


# ---------------------------------------------------------------- what is measured


def mlp_size() -> int:
    """The parameters of the paper's MLP, 113,610."""
    return ProtectedParameters(mlp()).p


def bound(sketch: so.Sketch, device: torch.device) -> so.GradientMemory:
    """A memory of the paper's MLP."""
    memory = so.GradientMemory(sketch)
    memory.bind(ProtectedParameters(mlp().to(device)), None)
    return memory


def examples(setting: Setting) -> tuple[Tensor, Tensor]:
    """Images and labels of Rotated MNIST's first task, more than there are rows in a sketch."""
    x, y = benchmark(ROTATED_MNIST.name, tasks=1, n_train=1000 if setting.quick else 2000).train(0)
    return x.to(setting.device), y.to(setting.device)


def remembered(sketch: so.Sketch, setting: Setting) -> None:
    """Let a sketch observe real gradients."""
    bound(sketch, setting.device).observe(*examples(setting))


GROUPS: dict[str, Callable[[Setting], list[Ratio]]] = {
    "remember": remembering,
    "basis": bases,
    "project": projecting,
    "run": whole_run,
}
