"""Partial traces: what a batch adds to the two factors of a layer whose weight is used at many positions.

The gradient of a scalar with respect to a shared weight is G = Σ_t δ_t a_tᵀ over positions t. The factors are the
partial traces of the layer's block of Σ vec(G) vec(G)ᵀ over examples and scalars,

    M_a = Σ Gᵀ G (width, width),    M_δ = Σ G Gᵀ (fan-out, fan-out),    Tr M_a = Tr M_δ = Σ ‖G‖²,

and M_δ ⊗ M_a / Tr M_a is the Kronecker product with the block's trace and both its partial traces, however the weight
is shared. (The factors are those of Shampoo, Gupta et al. 2018; K-FAC's would be the second moments of single a_t and
δ_t, which drop every term t ≠ t'.) A weight used once per example has M_a = Σ ‖δ‖² a aᵀ and M_δ = Σ ‖a‖² δ δᵀ.

Letters: b examples, T positions of one, w = width, o = fan-out, A (b, T, w) inputs and D (b, T, o) sensitivities, Ω a
sketch's test matrix (w or o, k).
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...model.layers import MIXED, Layer, Use, grouped, input_rows, sensitivity_rows
from ...sketch import SecondMoment, SketchedMoment
from ...sketch.testmatrix import dense_matrices
from .factors import LayerFactors

EXPLICIT_BYTES = 64 << 20
"""About the bytes of gradients that are written down at once."""

SMALLEST, LARGEST = 1e-25, 1e30
"""Between these energies float32 products lose nothing that matters; others are added row by row, with scaling."""


@dataclass
class Added:
    """What a batch adds to one sketch: Ωᵀ M (k, d), how many gradients it is of, and their energy Σ ‖G‖².

    Args:
        sketch: which is not changed.
        total: Ωᵀ M.
        energy: a number in double precision.
        omega: Ω (d, k); None for the identity of an exact moment.
    """

    sketch: SketchedMoment | SecondMoment
    total: Tensor
    energy: Tensor
    omega: Tensor | None
    count: int = 0

    def add(self, left: Tensor, right: Tensor) -> None:
        """Add Ωᵀ Σ leftᵀ right over all leading dimensions, for rows left, right (…, d)."""
        self.add_product(left if self.omega is None else left @ self.omega, right)

    def add_product(self, left: Tensor, right: Tensor) -> None:
        """The same for rows left (…, k) that were multiplied by Ω."""
        self.total.addmm_(left.flatten(0, -2).T, right.flatten(0, -2))


def nothing_yet(sketches: Mapping[tuple[str, str], SketchedMoment | SecondMoment]) -> dict[tuple[str, str], Added]:
    """Zeros for every sketch, in a few allocations for all of them."""
    if not sketches:
        return {}
    device = next(iter(sketches.values())).device
    energies = torch.zeros(len(sketches), dtype=torch.float64, device=device)
    omegas: dict[tuple[str, str], Tensor] = {}
    totals: dict[tuple[str, str], Tensor] = {}
    for dtype in {sketch.dtype for sketch in sketches.values()}:
        own = {key: sketch for key, sketch in sketches.items() if sketch.dtype == dtype}
        sizes = [(sketch.rank_limit or 0, sketch.d) for sketch in own.values()]
        pieces = torch.zeros(sum(k * d for k, d in sizes), dtype=dtype, device=device).split([k * d for k, d in sizes])
        totals |= {key: piece.view(size) for key, piece, size in zip(own, pieces, sizes, strict=True)}
        drawn = {key: sketch.omega for key, sketch in own.items() if isinstance(sketch, SketchedMoment)}
        omegas |= zip(drawn, dense_matrices(list(drawn.values()), dtype, device), strict=True)
    return {
        key: Added(sketch, totals[key], energy, omegas.get(key))
        for (key, sketch), energy in zip(sketches.items(), energies, strict=True)
    }


Passes = Sequence[Sequence[Tensor | None]]
"""For some scalars, one after the other: their gradients with respect to the output of every use, None for zero."""

Used = tuple[Use, str, Sequence[Tensor]]
"""A use, the order of its positions, and the gradients of all scalars with respect to its output."""


class TraceSums:
    """What one batch adds to all factors, computed without changing them; `commit` does.

    Args:
        factors: the factors of every layer.
        uses: the uses of the layers in a forward pass.
        orders: the order of the positions of each use (`model.layers.orders_of_positions`).
        b: the number of examples in the batch.
    """

    def __init__(self, factors: Mapping[str, LayerFactors], uses: Sequence[Use], orders: Sequence[str], b: int) -> None:
        self.factors = factors
        self.uses = uses
        self.orders = orders
        self.b = b
        used = {use.layer.name for use in uses}
        sketches = {(name, part): s for name in factors if name in used for part, s in factors[name].sketches()}
        self.added = nothing_yet(sketches)  # type: ignore[arg-type]
        self.tokens: dict[str, Tensor] = {}
        self._layers: dict[str, Positions] = {}
        self._read: dict[str, tuple[Tensor, Tensor]] = {}

    def add(self, passes: Passes) -> None:
        """Add scalars: of each the gradients of Σ_e ± scalar_e with respect to the output of every use.

        Scalars that are added together are multiplied together, in as many kernels as one.
        """
        alike: dict[tuple[bool, ...], list[Sequence[Tensor | None]]] = {}
        for deltas in passes:
            alike.setdefault(tuple(delta is None for delta in deltas), []).append(deltas)
        for some in alike.values():
            for layer, mine, examples in _by_layer(self.uses, self.orders, some, self.b):
                self._add_one(layer, mine, examples)

    def _add_one(self, layer: Layer, uses: Sequence[Used], examples: int) -> None:
        heads = [use.head for use, _, _ in uses]
        if any(
            heads
        ):  # its sensitivities and inputs are the other way round, so that each scalar has inputs of its own
            for each in zip(*(deltas for _, _, deltas in uses), strict=True):
                own = [(use, order, [delta]) for (use, order, _), delta in zip(uses, each, strict=True)]
                (self._add_tied if layer.kind == "embedding" else self._add_layer)(layer, own, examples)
        elif layer.kind == "embedding":
            self._add_embedding(layer, uses, examples)
        elif any(use.options.get("groups", 1) > 1 for use, _, _ in uses):
            self._add_grouped(layer, uses, examples)
        else:
            self._add_layer(layer, uses, examples)

    def _sums(self, layer: Layer, gradients: int) -> tuple[Added | None, Added | None]:
        """What is added to both factors of a layer, with so many gradients more."""
        inputs, outputs = (self.added.get((layer.name, part)) for part in ("inputs", "outputs"))
        for added in (inputs, outputs):
            if added is not None:
                added.count += gradients
        return inputs, outputs

    def _add_layer(self, layer: Layer, uses: Sequence[Used], examples: int) -> None:
        scalars = len(uses[0][2])
        inputs, outputs = self._sums(layer, examples * scalars)
        dtype = self.factors[layer.name].dtype
        D = _joined([_stacked(use, deltas, order, examples, dtype) for use, order, deltas in uses])
        known = None if any(use.head for use, _, _ in uses) else self._known(layer, uses, examples, D)
        if known is not None:
            known.add(D, outputs)
            return
        A = _joined([_inputs(use, deltas, order, examples, dtype) for use, order, deltas in uses])
        most = max(1, EXPLICIT_BYTES // (A.shape[2] * D[0, 0].nbytes or 1))
        for a, d in zip(A.split(most), D.flatten(2).split(most), strict=True):
            _add_explicit((d.mT @ a).view(len(a) * scalars, -1, A.shape[2]), inputs, outputs)

    def _known(self, layer: Layer, uses: Sequence[Used], examples: int, D: Tensor) -> "Positions | None":
        """What is kept of a layer whose gradients need not be written down."""
        T, o, w = D.shape[1], D.shape[3], layer.width
        known = self._layers.get(layer.name)
        if known is None and (T == 1 or T * (w + o) < w * o):
            known = Positions.of([(use, order) for use, order, _ in uses], examples, self.factors[layer.name].dtype)
            self._layers[layer.name] = known
        return known if known is not None and known.fits([use for use, _, _ in uses], examples) else None

    def _finish(self) -> None:
        """Add to the input factors what all scalars together add to them."""
        for name, known in self._layers.items():
            known.finish(self.factors[name].dtype, self.added.get((name, "inputs")), self.added.get((name, "outputs")))
        self._layers = {}

    def _add_grouped(self, layer: Layer, uses: Sequence[Used], examples: int) -> None:
        """A convolution in groups of channels: each has rows of G of its own."""
        scalars = len(uses[0][2])
        inputs, outputs = self._sums(layer, examples * scalars)
        dtype = self.factors[layer.name].dtype
        A, D = [], []
        for use, order, deltas in uses:
            g = use.options["groups"]
            a = input_rows(use, dtype).view(examples, -1, g, layer.width)
            A.append(a)
            d = _stacked(use, deltas, order, examples, dtype)  # (b, T, scalars, g · rows)
            D.append(d.unflatten(3, (g, -1)).transpose(2, 3).flatten(3))
        a, d = (torch.cat(parts, 1).transpose(1, 2) for parts in (A, D))
        G = (d.mT @ a).unflatten(2, (scalars, -1)).transpose(1, 2)  # (b, scalars, g, rows, w)
        _add_explicit(G.flatten(2, 3).flatten(0, 1), inputs, outputs)

    def _add_embedding(self, layer: Layer, uses: Sequence[Used], examples: int) -> None:
        factors, V, scalars = self.factors[layer.name], layer.fan_in, len(uses[0][2])
        assert factors.counts is not None
        rows = []
        for use, order, deltas in uses:
            own = _stacked(use, deltas, order, examples, factors.dtype).flatten(0, 1)
            if use.options["padding"] is not None:  # the row of this token gets no gradient
                tokens = grouped(use.input.reshape(-1, 1), order, examples)[..., 0]
                own = own.masked_fill((tokens.flatten() == use.options["padding"])[:, None, None], 0.0)
            rows.append(own)
        D = _joined(rows, 0)
        if layer.name not in self._read:
            each = [grouped(use.input.reshape(-1, 1), order, examples)[..., 0] for use, order, _ in uses]
            numbers = V * torch.arange(examples, device=each[0].device)[:, None]
            self._read[layer.name] = torch.cat([(t + numbers).flatten() for t in each]).unique(return_inverse=True)
        unique, inverse = self._read[layer.name]
        S = D.new_zeros(len(unique), *D.shape[1:]).index_add_(0, inverse, D)
        energy = S.double().square().sum((1, 2))
        total = self.tokens.setdefault(layer.name, torch.zeros_like(factors.counts))
        total.index_add_(0, unique % V, energy.to(total.device))
        _, outputs = self._sums(layer, examples * scalars)
        if outputs is not None:
            outputs.add(S, S)
            outputs.energy += energy.sum()

    def _add_tied(self, layer: Layer, uses: Sequence[Used], examples: int) -> None:
        """One scalar of an embedding that is an output layer too.

        G (tokens, fan-out) is Σ_t δ_t h_tᵀ plus the rows of the tokens read.

        With both as G = Lᵀ R for rows L (r, tokens) and R (r, fan-out), Gᵀ G = Rᵀ (L Lᵀ) R and the square norms of the
        rows of G are those of the columns of L in the metric R Rᵀ. Where r is large, G is written down in pieces.
        """
        factors = self.factors[layer.name]
        assert factors.counts is not None
        _, outputs = self._sums(layer, examples)
        total = self.tokens.setdefault(layer.name, torch.zeros_like(factors.counts))
        for e in range(examples):
            L, R = (torch.cat(parts) for parts in zip(*_tied_rows(uses, e, examples, factors.dtype), strict=True))
            pieces = [L] if 2 * len(L) < layer.fan_out else L.split(max(1, EXPLICIT_BYTES // (R[0].nbytes or 1)), 1)
            for start, piece in zip(_starts(pieces), pieces, strict=True):
                squares = _add_tied_piece(piece, R, outputs, 2 * len(L) < layer.fan_out)
                total[start : start + len(squares)] += squares.to(total.device)

    def hold(self) -> bool:
        """Whether everything is finite and of a size that float32 held; all numbers are read at once."""
        self._finish()
        found = [added for added in self.added.values() if added.count]
        if not found:
            return all(bool(total.isfinite().all()) for total in self.tokens.values())
        energies = torch.stack([added.energy for added in found])
        largest = torch.stack(torch._foreach_norm([added.total for added in found], float("inf"))).double()
        zero = energies == 0
        return bool((zero | ((energies > SMALLEST) & (energies < LARGEST) & (largest < LARGEST))).all())

    def commit(self) -> None:
        """Add all of it to the sketches and counts."""
        found = [added for added in self.added.values() if added.count]
        energies = torch.stack([added.energy for added in found]).tolist() if found else []
        for added, energy in zip(found, energies, strict=True):
            added.sketch.add_product(added.total, added.count, energy)
        for name, total in self.tokens.items():
            counts = self.factors[name].counts
            assert counts is not None
            counts += total


def _by_layer(
    uses: Sequence[Use], orders: Sequence[str], passes: Passes, b: int
) -> Iterator[tuple[Layer, list[Used], int]]:
    """Each layer with all its uses, and how many examples are told apart: b, or 1 where they are mixed."""
    layers: dict[Layer, list[Used]] = {}
    for use, order, deltas in zip(uses, orders, zip(*passes, strict=True), strict=True):
        if deltas[0] is not None:
            layers.setdefault(use.layer, []).append((use, order, deltas))
    for layer, mine in layers.items():
        yield layer, mine, 1 if any(order == MIXED for _, order, _ in mine) else b


@dataclass
class Positions:
    """A layer whose gradients G = Σ_t δ_t a_tᵀ are never written down, while scalars come one after the other.

    Gᵀ G = Aᵀ (D Dᵀ) A, summed over scalars, needs Σ D Dᵀ only; G Gᵀ = Dᵀ (A Aᵀ) D is added for each. With one position
    per example the Gram matrices (T, T) are numbers, ‖a‖² and ‖δ‖².

    Args:
        uses: with the order of their positions.
        examples: b.
        K_a: A Aᵀ (b, T, T).
        K_d: Σ D Dᵀ (b, T, T).
    """

    uses: Sequence[tuple[Use, str]]
    examples: int
    K_a: Tensor
    K_d: Tensor

    @staticmethod
    def inputs(uses: Sequence[tuple[Use, str]], examples: int, dtype: torch.dtype) -> Tensor:
        """A (b, T, w)."""
        return _joined([grouped(input_rows(use, dtype), order, examples) for use, order in uses])

    @staticmethod
    def of(uses: Sequence[tuple[Use, str]], examples: int, dtype: torch.dtype) -> "Positions":
        """Before the first scalar."""
        A = Positions.inputs(uses, examples, dtype)
        K_a = A.square().sum(2, keepdim=True) if A.shape[1] == 1 else A @ A.mT
        return Positions(uses, examples, K_a, torch.zeros_like(K_a))

    def fits(self, uses: Sequence[Use], examples: int) -> bool:
        """Whether a scalar depends on the same uses as the first one."""
        mine = [use for use, _ in self.uses]
        return examples == self.examples and len(uses) == len(mine) and all(map(operator.is_, uses, mine))

    def add(self, D: Tensor, outputs: Added | None) -> None:
        """Scalars with the sensitivities D (b, T, scalars, o)."""
        flat = D.flatten(2)
        if D.shape[1] == 1:
            self.K_d += flat.square().sum(2, keepdim=True)
            if outputs is not None:
                left = D if outputs.omega is None else D @ outputs.omega
                outputs.add_product(left * self.K_a[..., None], D)
            return
        self.K_d.baddbmm_(flat, flat.mT)
        if outputs is not None:
            left = D if outputs.omega is None else D @ outputs.omega
            outputs.add_product((self.K_a @ left.flatten(2)).view(left.shape), D)

    def finish(self, dtype: torch.dtype, inputs: Added | None, outputs: Added | None) -> None:
        """What all scalars together add to the input factor, and their energy."""
        energy = (self.K_a.double() * self.K_d).sum()
        for added in (inputs, outputs):
            if added is not None:
                added.energy += energy
        if inputs is None:
            return
        A = Positions.inputs(self.uses, self.examples, dtype)
        if A.shape[1] == 1:
            inputs.add(A * self.K_d, A)
            return
        inputs.add_product(self.K_d @ (A if inputs.omega is None else A @ inputs.omega), A)


def _stacked(use: Use, deltas: Sequence[Tensor], order: str, examples: int, dtype: torch.dtype) -> Tensor:
    """The sensitivities of some scalars, (examples, positions, scalars, fan-out).

    Where a table is an output layer, with one scalar: its inputs, which stand where sensitivities do elsewhere.
    """
    if use.head:
        return grouped(input_rows(use, dtype), order, examples).unsqueeze(2)
    rows = [sensitivity_rows(use, delta, dtype) for delta in deltas]
    together = rows[0] if len(rows) == 1 else torch.stack(rows, 1).flatten(1)
    return grouped(together, order, examples).unflatten(2, (len(rows), -1))


def _inputs(use: Use, deltas: Sequence[Tensor], order: str, examples: int, dtype: torch.dtype) -> Tensor:
    """The inputs (examples, positions, width) of a use; where a table is an output layer, its sensitivities."""
    rows = sensitivity_rows(use, deltas[0], dtype) if use.head else input_rows(use, dtype)
    return grouped(rows, order, examples)


def _joined(rows: Sequence[Tensor], dim: int = 1) -> Tensor:
    return rows[0] if len(rows) == 1 else torch.cat(list(rows), dim)


def _tied_rows(uses: Sequence[Used], e: int, examples: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """(L, R) of every use of a tied weight for one example, see `TraceSums`."""
    for use, order, (delta,) in uses:
        if use.head:
            rows = grouped(sensitivity_rows(use, delta, dtype), order, examples)[e]
            yield rows, grouped(input_rows(use, dtype), order, examples)[e]
            continue
        tokens = grouped(use.input.reshape(-1, 1), order, examples)[e, :, 0]
        own = grouped(delta.reshape(-1, delta.shape[-1]), order, examples)[e].to(dtype)
        if use.options["padding"] is not None:  # the row of this token gets no gradient
            own = own.masked_fill((tokens == use.options["padding"])[:, None], 0.0)
        unique, inverse = tokens.unique(return_inverse=True)
        R = own.new_zeros(len(unique), own.shape[1]).index_add_(0, inverse, own)
        L = R.new_zeros(len(unique), use.layer.fan_in)
        yield L.scatter_(1, unique[:, None], 1.0), R


def _starts(pieces: Sequence[Tensor]) -> Iterator[int]:
    start = 0
    for piece in pieces:
        yield start
        start += piece.shape[1]


def _add_tied_piece(L: Tensor, R: Tensor, outputs: Added | None, grams: bool) -> Tensor:
    """Add Gᵀ G for G = Lᵀ R; returns the square norms of the rows of G."""
    if not grams:
        G = L.T @ R
        if outputs is not None:
            outputs.add(G, G)
        squares = torch.linalg.vector_norm(G, dim=1).double().square()
    else:
        if outputs is not None:
            left = (L @ L.T) @ (R if outputs.omega is None else R @ outputs.omega)
            outputs.add_product(left, R)
        squares = (L * (R @ R.T @ L)).sum(0).double().clamp_min(0.0)
    if outputs is not None:
        outputs.energy += squares.sum()
    return squares


def _add_explicit(G: Tensor, inputs: Added | None, outputs: Added | None) -> None:
    """From G (b, o, w) itself."""
    energy = torch.linalg.vector_norm(G.flatten(1), dim=1).double().square().sum()
    for added, rows in ((inputs, G), (outputs, G.mT)):
        if added is not None:
            added.add(rows, rows)
            added.energy += energy


def explicit_gradients(
    uses: Sequence[Use], orders: Sequence[str], deltas: Sequence[Tensor | None], b: int
) -> Iterator[tuple[str, Tensor]]:
    """Yield (layer, G (examples, o, w)) for one scalar: the slow twin of `TraceSums`, for every kind of sketch.

    Of an embedding w is the number of tokens.
    """
    for layer, mine, examples in _by_layer(uses, orders, [deltas], b):
        G: Tensor | None = None
        for use, order, (delta,) in mine:
            g = use.options.get("groups", 1)
            if use.head:
                a, delta = sensitivity_rows(use, delta, delta.dtype), input_rows(use, delta.dtype)
            elif layer.kind == "embedding":
                tokens = use.input.reshape(-1, 1)
                a = torch.nn.functional.one_hot(tokens[:, 0], layer.fan_in).to(delta.dtype)
                if use.options["padding"] is not None:
                    a[:, use.options["padding"]] = 0
            else:
                a = input_rows(use, delta.dtype)
            A = grouped(a.view(-1, g * a.shape[1]), order, examples).unflatten(2, (g, -1)).transpose(1, 2)
            rows = delta if use.head else sensitivity_rows(use, delta, delta.dtype)
            D = grouped(rows, order, examples).unflatten(2, (g, -1)).transpose(1, 2)
            own = (D.mT @ A).flatten(1, 2)
            G = own if G is None else G + own
        assert G is not None
        yield layer.name, G
