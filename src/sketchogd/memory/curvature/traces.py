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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from ...model.layers import MIXED, Layer, Use, grouped, input_rows, sensitivity_rows
from ...sketch import ProductSketch, SecondMoment, Sketch
from .factors import LayerFactors

EXPLICIT_BYTES = 64 << 20
"""About the bytes of gradients that are written down at once."""

SMALLEST, LARGEST = 1e-25, 1e30
"""Between these energies float32 products lose nothing that matters; others are added row by row, with scaling."""


@dataclass
class Added:
    """What a batch adds to one sketch: Ωᵀ M (k, d), how many gradients it is of, and their energy Σ ‖G‖²."""

    sketch: ProductSketch | SecondMoment
    total: Tensor
    count: int = 0
    energy: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    _dense: Tensor | None = None

    @staticmethod
    def to(sketch: ProductSketch | SecondMoment) -> "Added":
        """Nothing yet."""
        total = torch.zeros(sketch.rank_limit or 0, sketch.d, dtype=sketch.dtype, device=sketch.device)
        return Added(sketch, total, energy=torch.zeros((), dtype=torch.float64, device=sketch.device))

    @property
    def omega(self) -> Tensor | None:
        """Ω (d, k); None for the identity of an exact moment."""
        if isinstance(self.sketch, SecondMoment):
            return None
        if self._dense is None:
            cpu = torch.device("cpu")  # it makes these few hashes before a GPU has launched all the kernels for them
            self._dense = self.sketch.omega.dense(self.total.dtype, cpu).to(self.total.device)
        return self._dense

    def add(self, left: Tensor, right: Tensor) -> None:
        """Add Ωᵀ Σ leftᵀ right over all leading dimensions, for rows left, right (…, d)."""
        omega = self.omega
        left = left if omega is None else left @ omega
        self.total.addmm_(left.flatten(0, -2).T, right.flatten(0, -2))


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
        self.added: dict[tuple[str, str], Added] = {}
        self.tokens: dict[str, Tensor] = {}
        self._layers: dict[str, Positions] = {}
        self._read: dict[str, tuple[Tensor, Tensor]] = {}

    def add(self, deltas: Sequence[Tensor | None]) -> None:
        """Add one scalar per example: the gradients of Σ_e ± scalar_e with respect to the output of every use."""
        for layer, mine, examples in _by_layer(self.uses, self.orders, deltas, self.b):
            if any(use.head for use, _, _ in mine) and layer.kind == "embedding":
                self._add_tied(layer, mine, examples)
            elif layer.kind == "embedding":
                self._add_embedding(layer, mine, examples)
            elif any(use.options.get("groups", 1) > 1 for use, _, _ in mine):
                self._add_grouped(layer, mine, examples)
            else:
                self._add_layer(layer, mine, examples)

    def _sums(self, layer: Layer, examples: int) -> tuple[Added | None, Added | None]:
        """What is added to both factors of a layer, counted."""
        factors = self.factors[layer.name]
        inputs = self._added(layer.name, "inputs", factors.inputs)
        outputs = self._added(layer.name, "outputs", factors.outputs)
        for added in (inputs, outputs):
            if added is not None:
                added.count += examples
        return inputs, outputs

    def _add_layer(self, layer: Layer, uses: Sequence[tuple[Use, str, Tensor]], examples: int) -> None:
        inputs, outputs = self._sums(layer, examples)
        dtype = self.factors[layer.name].dtype
        sides = [_sides(use, delta, dtype) for use, _, delta in uses]
        D = _joined([grouped(d(), order, examples) for (_, d), (_, order, _) in zip(sides, uses, strict=True)])
        known, (T, o), w = self._layers.get(layer.name), D.shape[1:], layer.width
        if known is None and not any(use.head for use, _, _ in uses) and (T == 1 or T * (w + o) < w * o):
            known = Positions.of([(use, order) for use, order, _ in uses], examples, dtype)
            self._layers[layer.name] = known
        if known is not None and known.fits([use for use, _, _ in uses], examples):
            known.add(D, outputs)
            return
        A = _joined([grouped(a(), order, examples) for (a, _), (_, order, _) in zip(sides, uses, strict=True)])
        most = max(1, EXPLICIT_BYTES // (A.shape[2] * D.shape[2] * A.element_size()))
        for a, d in zip(A.split(most), D.split(most), strict=True):
            _add_explicit(d.mT @ a, inputs, outputs)

    def _finish(self) -> None:
        """Add to the input factors what all scalars together add to them."""
        for name, known in self._layers.items():
            known.finish(self.factors[name].dtype, self.added.get((name, "inputs")), self.added.get((name, "outputs")))
        self._layers = {}

    def _add_grouped(self, layer: Layer, uses: Sequence[tuple[Use, str, Tensor]], examples: int) -> None:
        """A convolution in groups of channels: each has rows of G of its own."""
        inputs, outputs = self._sums(layer, examples)
        dtype = self.factors[layer.name].dtype
        A, D = [], []
        for use, _, delta in uses:
            g = use.options["groups"]
            a = input_rows(use, dtype).view(examples, -1, g, layer.width)
            A.append(a)
            D.append(sensitivity_rows(use, delta, dtype).view(examples, a.shape[1], g, -1))
        a, d = (torch.cat(parts, 1).transpose(1, 2) for parts in (A, D))
        _add_explicit((d.mT @ a).flatten(1, 2), inputs, outputs)

    def _add_embedding(self, layer: Layer, uses: Sequence[tuple[Use, str, Tensor]], examples: int) -> None:
        factors, V = self.factors[layer.name], layer.fan_in
        assert factors.counts is not None
        rows = []
        for use, order, delta in uses:
            own = grouped(delta.reshape(-1, delta.shape[-1]), order, examples).flatten(0, 1)
            if use.options["padding"] is not None:  # the row of this token gets no gradient
                tokens = grouped(use.input.reshape(-1, 1), order, examples)[..., 0]
                own = own.masked_fill((tokens.flatten() == use.options["padding"])[:, None], 0.0)
            rows.append(own)
        D = _joined(rows, 0).to(factors.dtype)
        if layer.name not in self._read:
            each = [grouped(use.input.reshape(-1, 1), order, examples)[..., 0] for use, order, _ in uses]
            numbers = V * torch.arange(examples, device=each[0].device)[:, None]
            self._read[layer.name] = torch.cat([(t + numbers).flatten() for t in each]).unique(return_inverse=True)
        unique, inverse = self._read[layer.name]
        S = D.new_zeros(len(unique), layer.fan_out).index_add_(0, inverse, D)
        energy = S.double().square().sum(1)
        total = self.tokens.setdefault(layer.name, torch.zeros_like(factors.counts))
        total.index_add_(0, unique % V, energy.to(total.device))
        _, outputs = self._sums(layer, examples)
        if outputs is not None:
            outputs.add(S, S)
            outputs.energy += energy.sum()

    def _add_tied(self, layer: Layer, uses: Sequence[tuple[Use, str, Tensor]], examples: int) -> None:
        """An embedding that is an output layer too: G (tokens, fan-out) = Σ_t δ_t h_tᵀ + the rows of the tokens read.

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

    def _added(self, name: str, part: str, sketch: Sketch | None) -> Added | None:
        if sketch is None:
            return None
        assert isinstance(sketch, ProductSketch | SecondMoment)
        if (name, part) not in self.added:
            self.added[name, part] = Added.to(sketch)
        return self.added[name, part]

    def hold(self) -> bool:
        """Whether everything is finite and of a size that float32 held; all numbers are read at once."""
        self._finish()
        found = [added for added in self.added.values() if added.count]
        if not found:
            return all(bool(total.isfinite().all()) for total in self.tokens.values())
        energies = torch.stack([added.energy for added in found])
        largest = torch.stack([added.total.abs().max() for added in found]).double()
        zero = energies == 0
        return bool((zero | ((energies > SMALLEST) & (energies < LARGEST) & (largest < LARGEST))).all())

    def commit(self) -> None:
        """Add all of it to the sketches and counts."""
        for added in self.added.values():
            if added.count:
                added.sketch.add_product(added.total, added.count, float(added.energy))
        for name, total in self.tokens.items():
            counts = self.factors[name].counts
            assert counts is not None
            counts += total


def _by_layer(
    uses: Sequence[Use], orders: Sequence[str], deltas: Sequence[Tensor | None], b: int
) -> Iterator[tuple[Layer, list[tuple[Use, str, Tensor]], int]]:
    """Each layer with all its uses, and how many examples are told apart: b, or 1 where they are mixed."""
    layers: dict[Layer, list[tuple[Use, str, Tensor]]] = {}
    for use, order, delta in zip(uses, orders, deltas, strict=True):
        if delta is not None:
            layers.setdefault(use.layer, []).append((use, order, delta))
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
        """A scalar with the sensitivities D (b, T, o)."""
        if D.shape[1] == 1:
            self.K_d += D.square().sum(2, keepdim=True)
            if outputs is not None:
                outputs.add(D * self.K_a, D)
            return
        self.K_d.baddbmm_(D, D.mT)
        if outputs is not None:
            left = self.K_a @ (D if outputs.omega is None else D @ outputs.omega)
            outputs.total.addmm_(left.flatten(0, 1).T, D.flatten(0, 1))

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
        left = self.K_d @ (A if inputs.omega is None else A @ inputs.omega)
        inputs.total.addmm_(left.flatten(0, 1).T, A.flatten(0, 1))


def _sides(use: Use, delta: Tensor, dtype: torch.dtype) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """The rows a and δ of a use; a table as an output layer has them the other way round."""
    a, d = partial(input_rows, use, dtype), partial(sensitivity_rows, use, delta, dtype)
    return (d, a) if use.head else (a, d)


def _joined(rows: Sequence[Tensor], dim: int = 1) -> Tensor:
    return rows[0] if len(rows) == 1 else torch.cat(list(rows), dim)


def _tied_rows(
    uses: Sequence[tuple[Use, str, Tensor]], e: int, examples: int, dtype: torch.dtype
) -> Iterator[tuple[Tensor, Tensor]]:
    """(L, R) of every use of a tied weight for one example, see `TraceSums`."""
    for use, order, delta in uses:
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
            outputs.total.addmm_(left.T, R)
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
    for layer, mine, examples in _by_layer(uses, orders, deltas, b):
        G: Tensor | None = None
        for use, order, delta in mine:
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
