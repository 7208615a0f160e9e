"""How cost grows: rank, parameters and gradients each doubled four times, and the exponent of the line on log scales.

Time and memory of remembering should be linear in each (exponent 1), the basis quadratic in the rank. On a GPU the
largest model has 100 million parameters.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import sketchogd as so
from sketchogd.lab.models import mlp
from sketchogd.lab.runs.clock import synchronize
from sketchogd.lab.speed.peak import peak_bytes
from sketchogd.lab.speed.ratios import Ratio
from sketchogd.lab.speed.turns import fastest
from sketchogd.model.parameters import ProtectedParameters

DOUBLINGS = 4
MOST = {"rank": 1.1, "p": 1.1, "gradients": 1.1}
"""The exponents that time and memory may have."""


@dataclass(frozen=True)
class Point:
    """One measurement: the three sizes, seconds for remembering and for the basis, peak bytes."""

    varied: str
    rank: int
    p: int
    gradients: int
    remember: float
    basis: float
    nbytes: float


def network(p: int, device: torch.device) -> torch.nn.Module:
    """1024 → h → 10 with about p parameters."""
    return mlp(hidden=(max(1, round((p - 10) / 1035)),)).to(device)


def point(varied: str, rank: int, p: int, gradients: int, device: torch.device) -> Point:
    """Measure one size, twice, and take the faster."""
    model = network(p, device)
    x, y = torch.rand(gradients, 1, 32, 32, device=device), torch.randint(0, 10, (gradients,), device=device)
    memory = so.GradientMemory(so.ProductSketch(rank))

    def work() -> None:
        memory.bind(ProtectedParameters(model), None)
        memory.observe(x, y)
        memory.sketch.basis()

    nbytes = peak_bytes(work, device)
    sketch = memory.sketch
    assert isinstance(sketch, so.ProductSketch)
    turns = {"restore": sketch.summand, "remember": lambda: memory.observe(x, y), "basis": sketch.basis}
    took = fastest(turns, device, seconds=0.0, most=2)
    return Point(varied, rank, memory.parameters.p, gradients, took["remember"], took["basis"], nbytes)


def sizes(device: torch.device, quick: bool) -> list[tuple[str, int, int, int]]:
    """(varied, rank, p, gradients) of every point."""
    powers = [2**i for i in range(DOUBLINGS + 1)]
    if quick:
        first = {"rank": (4, 8000, 64), "p": (8, 4000, 64), "gradients": (8, 8000, 32)}
    elif device.type == "cuda":
        first = {"rank": (128, 113_610, 2048), "p": (64, 6_250_000, 64), "gradients": (256, 113_610, 2048)}
    else:
        first = {"rank": (75, 113_610, 256), "p": (150, 28_400, 256), "gradients": (150, 113_610, 128)}
    found = []
    for varied, (rank, p, gradients) in first.items():
        for n in powers:
            scale = {"rank": (n, 1, 1), "p": (1, n, 1), "gradients": (1, 1, n)}[varied]
            found.append((varied, rank * scale[0], p * scale[1], gradients * scale[2]))
    return found


def points(device: torch.device, quick: bool) -> list[Point]:
    """All measurements; memory is released between them."""
    found = []
    for varied, rank, p, gradients in sizes(device, quick):
        found.append(point(varied, rank, p, gradients, device))
        gc.collect()
        if device.type == "cuda":
            synchronize(device)
            torch.cuda.empty_cache()
    return found


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of the least-squares line through (log x, log y).

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    a, b = torch.tensor(x, dtype=torch.float64).log(), torch.tensor(y, dtype=torch.float64).log()
    a = a - a.mean()
    return float((a * b).sum() / (a * a).sum())


def exponents(found: Sequence[Point]) -> list[Ratio]:
    """The fitted exponents of time and memory over each size."""
    ratios = []
    for varied, most in MOST.items():
        mine = [point for point in found if point.varied == varied]
        x = [float(getattr(point, varied)) for point in mine]
        measured = {"time of remembering": [point.remember for point in mine]}
        if varied != "gradients":
            measured["time of the basis"] = [point.basis for point in mine]
        measured["memory"] = [point.nbytes for point in mine]
        for name, y in measured.items():
            if not all(value > 0 for value in y):
                continue  # memory is not known here, or there was too little to see
            target = 2.2 if (varied, name) == ("rank", "time of the basis") else most
            note = f"exponent, {varied} from {x[0]:,.0f} to {x[-1]:,.0f}; last point {y[-1]:.3g}"
            ratios.append(Ratio(f"{name} over {varied}", exponent(x, y), target, at_least=False, unit_note=note))
    return ratios


def measure(device: str, quick: bool) -> list[Ratio]:
    """The exponents, from new measurements."""
    return exponents(points(torch.device(device), quick))


def plot(found: Sequence[Point], path: Path) -> None:
    """Time and memory over each size, on log scales, with a line of exponent 1 (needs matplotlib)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    for varied, axes in zip(MOST, figure.subplots(1, 3), strict=True):
        mine = [point for point in found if point.varied == varied]
        x = [getattr(point, varied) for point in mine]
        axes.loglog(x, [point.remember for point in mine], "o-", label="remembering, s")
        axes.loglog(x, [point.basis for point in mine], "s-", label="basis, s")
        axes.loglog(x, [point.nbytes / 1e9 for point in mine], "^-", label="memory, GB")
        axes.loglog(x, [mine[0].remember * value / x[0] for value in x], "--", color="grey", label="exponent 1")
        axes.set_xlabel({"rank": "rank", "p": "parameters", "gradients": "gradients remembered"}[varied])
        axes.set_xticks(x, [f"{value / 1e6:.3g} M" if value >= 1e6 else f"{value:,}" for value in x])
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)
