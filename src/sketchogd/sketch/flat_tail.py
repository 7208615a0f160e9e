"""A sketch for second moments whose spectrum falls and then goes on, nearly flat, for many directions.

The Nyström approximation of M from Y = Ωᵀ M has the rank of Ω, and where M has a long tail the tail blurs what it says
of the largest directions too: of their eigenvalues a part is missing, and is then spread over all directions that the
sketch does not hold. A flat tail τ I is known without a sketch, and can be taken off first (Tropp, Yurtsever, Udell,
Cevher 2017 shift by rounding errors for stability; here the shift is the tail itself):

    M ≈ τ I + (Y − τ Ωᵀ)ᵀ ((Y − τ Ωᵀ) Ω)⁺ (Y − τ Ωᵀ),    with τ such that both sides have one trace.

With W Ωᵀ Ω Wᵀ = I and W Y Ω Wᵀ = diag(β), the trace of the right side is

    τ d + Σ_i (β_i − τ) + Σ_i (‖w_i Y‖² − β_i²) / (β_i − τ),

which grows with τ from that of the Nyström approximation to infinity at the smallest β. So there is one such τ, for
which everything stays positive. Letters: d row length, k rank, w_i the rows of W.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import schema
from ..linalg.dense import eigenpairs_, gram, polish_, transform_, whiten
from ..linalg.scaling import unscaled
from .linear import SketchedMoment
from .stored import EXPONENT
from .testmatrix import SparseSign

CUTOFF = 1e-7
"""Smaller shares of the largest eigenvalue are rounding."""

EXPLAINED = 1e-4
"""Where the sketch lacks no more than this share of the energy there is no tail to speak of."""

HALVINGS = 60


class FlatTailSketch(SketchedMoment):
    """Y = Ωᵀ M as in `ProductSketch`, read as a low rank and a flat tail.

    `spectrum` has the largest eigenpairs of that estimate, the tail included; the directions outside of its rows have
    the mean of the energy that these values leave over, which is τ. Where nothing is left over this is `ProductSketch`.

    >>> sketch = FlatTailSketch(4).bind(12)
    >>> sketch.observe(torch.diag(torch.tensor([9.0, 16.0] + [1.0] * 10).sqrt()))
    >>> [round(float(value), 2) for value in sketch.spectrum()[0][:2]]
    [16.0, 9.0]
    """

    name = "flat-tail"
    usual = SparseSign(apart=True)
    counters: ClassVar[schema.Fields] = {"exponent": EXPONENT, "tail": schema.number(0.0)}

    tail: float = 0.0
    """τ, times 4^(−exponent), while `rows` are a basis."""

    def _counters(self) -> dict[str, Any]:
        return {"exponent": self.exponent, "tail": 0.0 if self.factor is None else self.tail}

    def _adopt_more(self, counters: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.exponent, self.tail = counters["exponent"], float(counters["tail"])

    def _add_shift_(self, rows: Tensor) -> None:
        self._shift_(rows, self.tail)

    def _shift_(self, rows: Tensor, tau: float) -> None:
        """Add τ Ωᵀ to rows, of the columns that are here."""
        if tau:
            omega = self.omega.dense(rows.dtype, rows.device)
            for here, there in self.columns.blocks(self.d):
                rows[:, here] += tau * omega[there].T

    def _factorise(self) -> tuple[Tensor, Tensor]:
        Y = self.rows
        omega = self.omega.dense(torch.float64, Y.device)
        total = self.columns.total
        C, D = total(self.omega.apply(Y, torch.float64)), omega.T @ omega
        W, beta = _ritz(C, D)
        energy = self.energy * 4.0 ** -(self.exponent or 0)
        squares = ((W @ total(gram(Y))) * W).sum(1)
        self.tail = flat_tail(beta.tolist(), squares.tolist(), energy, self.d)
        self._shift_(Y, -self.tail)
        T, R = whiten(total(gram(Y)))
        beta -= self.tail
        above = beta > CUTOFF * beta[-1:]
        half = W[above] * beta[above].rsqrt()[:, None] @ R
        values, Z = eigenpairs_(half.T @ half)
        values, Z = values.flip(0).clamp_min(0), Z.flip(0).T
        T, R = Z.T @ T, R @ Z
        transform_(Y, T)
        return R @ polish_(Y[: len(T)], T, total), unscaled(values + self.tail, self.exponent)


def _ritz(C: Tensor, D: Tensor) -> tuple[Tensor, Tensor]:
    """(W, β) with W D Wᵀ = I and W C Wᵀ = diag(β), for C = Ωᵀ M Ω and D = Ωᵀ Ω; both are overwritten.

    Directions that are zero but for rounding are left out.
    """
    sizes, U = eigenpairs_(D)
    kept = sizes > CUTOFF * sizes[-1]
    half = U[kept] / sizes[kept, None].sqrt()
    beta, V = eigenpairs_(half @ ((C + C.T) / 2) @ half.T)
    kept = beta > CUTOFF * beta[-1:].clamp_min(0)
    return V[kept] @ half, beta[kept]


def flat_tail(beta: list[float], squares: list[float], energy: float, d: int) -> float:
    """τ of the formula above, from β and ‖w_i Y‖²; 0 where the sketch explains all of the energy.

    >>> round(flat_tail([16.0, 9.0, 1.5], [16.0**2, 9.0**2, 1.5**2 + 0.5], 16.0 + 9.0 + 10.0, 12), 2)
    0.86
    """
    excess = [max(0.0, square - b * b) for b, square in zip(beta, squares, strict=True)]

    def trace(tau: float) -> float:
        return tau * (d - len(beta)) + sum(beta) + sum(e / (b - tau) for b, e in zip(beta, excess, strict=True))

    if not beta or trace(0.0) >= (1 - EXPLAINED) * energy:
        return 0.0
    low, high = 0.0, min(beta)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if middle >= min(beta) or trace(middle) > energy else (middle, high)
    return low
