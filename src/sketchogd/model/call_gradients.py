"""Per-example gradients with respect to parameters of no layer, from one forward and one backward pass of a batch.

A backward pass of the batch gives δ, the gradient of Σ_e s_e (s_e the scalar of example e) with respect to the results
of every recorded call (`watching`). The gradient of s_e is then that of Σ δ_e · results over the entries of example e,
which needs the call alone. There are five ways to it: two are for parameters that scale or shift entries, as those
of norms do; *vmap* runs the call for all examples at once, *each* for one after the other, *masked* for the whole batch
with the δ of one example. The last is always right, and slow; the others are taken for a call if they agree with it on
two examples.

Letters: b examples, n some of them, p parameters, θ one of these.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from .parameters import ProtectedParameters
from .sensitivities import Reading
from .watching import WatchedCall


@dataclass(frozen=True)
class Place:
    """Where the examples are in a tensor: the dimension `dim`; or dimension 0 holds (b, T) or (T, b) as one."""

    dim: int
    examples: int
    folded: bool = False

    @property
    def first(self) -> int:
        """The dimension that examples are in."""
        return 0 if self.folded else self.dim

    def apart(self, t: Tensor) -> Tensor:
        """The tensor with the examples as a first dimension of their own."""
        if self.folded:
            b = self.examples
            t = t.reshape(b, -1, *t.shape[1:]) if self.dim == 0 else t.reshape(-1, b, *t.shape[1:])
        return t.movedim(self.dim, 0)

    def alone(self, t: Tensor) -> Tensor:
        """What one example of `apart` is in a batch of its own."""
        return t if self.folded else t.unsqueeze(self.dim)

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape can have examples here."""
        if self.folded:
            return len(shape) > 0 and shape[0] % self.examples == 0
        return len(shape) > self.dim and shape[self.dim] == self.examples


def place_of(first: Tensor, last: Tensor, b: int) -> Place | None:
    """Where the examples are in a tensor, from its gradients for the outputs of the first and of the last example."""
    candidates = [Place(k, b) for k in range(first.ndim)] + [Place(k, b, folded=True) for k in (0, 1)]
    for place in candidates:
        if place.fits(first.shape):
            own, other = (place.apart(t).reshape(b, -1).any(1) for t in (first, last))
            if bool(own[0] & ~own[1:].any() & other[-1] & ~other[:-1].any()):
                return place
    return None


@dataclass(frozen=True)
class Sensitive:
    """A call with the sensitivity δ of each of its results that has one, by its position among them."""

    call: WatchedCall
    deltas: dict[int, Tensor]
    places: dict[int, Place]

    def place_of_input(self, t: Tensor) -> Place | None:
        """A guess of where the examples are in a tensor that the call was given; None where it seems to have none."""
        at, place = next(iter(self.places.items()))
        result = self.call.shapes[at]
        if place.folded:
            found = [place] if t.shape[:1] == result[:1] else [Place(0, place.examples)]
        else:
            aligned = place.dim - (len(result) - t.ndim)  # as broadcasting aligns dimensions
            found = [Place(k, place.examples) for k in dict.fromkeys((place.dim, max(aligned, 0), 0))]
        return next((each for each in found if each.fits(t.shape)), None)


Way = Callable[[Sensitive, Sequence[Tensor], Sequence[int]], list[Tensor]]
"""(call, all parameters, examples) → the gradients (n, …) with respect to the parameters that the call was given."""


def by_scaling(own: Sensitive, tensors: Sequence[Tensor], rows: Sequence[int]) -> list[Tensor]:
    """See `Way`: for results r(0) + Σ_θ J_θ ∘ θ with θ broadcast to them, as the weights of a LayerNorm are."""
    return _by_scaling(own, tensors, rows, lambda shape, n: [*[1] * (n - len(shape)), *shape])


def by_scaling_channels(own: Sensitive, tensors: Sequence[Tensor], rows: Sequence[int]) -> list[Tensor]:
    """See `by_scaling`; θ is broadcast to the second dimension, as in BatchNorm."""
    return _by_scaling(own, tensors, rows, lambda shape, n: [1, *shape, *[1] * (n - 2)])


def _by_scaling(
    own: Sensitive,
    tensors: Sequence[Tensor],
    rows: Sequence[int],
    broadcast: Callable[[Sequence[int], int], list[int]],
) -> list[Tensor]:
    """One call for zeros in place of all θ, and one for each θ with signs ±1 in its place.

    The signs, and not ones, find out |θ|, whose J changes where θ does its sign.
    """
    indices, inputs = own.call.indices, {id(t): t for t in own.call.of_batch}
    zeros = {i: torch.zeros_like(tensors[i]) for i in indices}
    before = _run(own, tensors, zeros, inputs)
    found = []
    for i in indices:
        signs = torch.ones(tensors[i].shape, dtype=tensors[i].dtype, device=tensors[i].device)
        signs.view(-1)[::2] = -1.0
        after = _run(own, tensors, {**zeros, i: signs}, inputs)
        sums = torch.zeros(len(rows), *signs.shape, dtype=signs.dtype, device=signs.device)
        for at, delta in own.deltas.items():
            place, shape = own.places[at], broadcast(signs.shape, delta.ndim)
            if len(shape) != delta.ndim or shape[place.first] != 1:
                raise ValueError("this parameter is not broadcast over examples")
            product = delta * (after[at] - before[at]) * signs.view(shape)
            summed = [k for k, size in enumerate(shape) if size == 1 and k != place.first]
            product = product.sum(summed, keepdim=True) if summed else product
            apart = place.apart(product)[torch.as_tensor(rows, device=signs.device)]
            sums += apart.sum(1).view(sums.shape) if place.folded else apart.reshape(sums.shape)
        found.append(sums)
    return found


def by_vmap(own: Sensitive, tensors: Sequence[Tensor], rows: Sequence[int]) -> list[Tensor]:
    """See `Way`: the call for all examples at once."""
    inputs, indices = own.call.of_batch, own.call.indices
    places = [own.place_of_input(t) for t in inputs]
    chosen = torch.as_tensor(rows, device=tensors[0].device)
    parts = [t if place is None else place.apart(t)[chosen] for t, place in zip(inputs, places, strict=True)]
    deltas = {at: own.places[at].apart(delta)[chosen] for at, delta in own.deltas.items()}

    def scalar(values: tuple[Tensor, ...], parts: list[Tensor], deltas: dict[int, Tensor]) -> Tensor:
        alone = (t if place is None else place.alone(t) for t, place in zip(parts, places, strict=True))
        found = _run(
            own, tensors, dict(zip(indices, values, strict=True)), dict(zip(map(id, inputs), alone, strict=True))
        )
        return torch.stack([(found[at] * own.places[at].alone(delta)).sum() for at, delta in deltas.items()]).sum()

    in_dims = (None, [None if place is None else 0 for place in places], 0)
    values = tuple(tensors[i].detach() for i in indices)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")  # correct all the same
        return list(vmap(grad(scalar), in_dims)(values, parts, deltas))


def by_each(own: Sensitive, tensors: Sequence[Tensor], rows: Sequence[int]) -> list[Tensor]:
    """See `Way`: the call for one example after the other."""
    inputs = own.call.of_batch
    places = [own.place_of_input(t) for t in inputs]
    found = []
    for e in rows:
        parts = [t if p is None else p.alone(p.apart(t)[e]) for t, p in zip(inputs, places, strict=True)]
        deltas = [own.places[at].alone(own.places[at].apart(delta)[e]) for at, delta in own.deltas.items()]
        found.append(_backward(own, tensors, dict(zip(map(id, inputs), parts, strict=True)), [deltas]))
    return [torch.cat(each) for each in zip(*found, strict=True)]


def by_masks(own: Sensitive, tensors: Sequence[Tensor], rows: Sequence[int]) -> list[Tensor]:
    """See `Way`: the call for the whole batch, with the sensitivities of one example after the other."""
    cotangents = []
    for e in rows:
        cotangents.append([_only(delta, own.places[at], e) for at, delta in own.deltas.items()])
    return _backward(own, tensors, {id(t): t for t in own.call.of_batch}, cotangents)


def _only(delta: Tensor, place: Place, e: int) -> Tensor:
    masked = torch.zeros(delta.shape, dtype=delta.dtype, device=delta.device)
    place.apart(masked)[e] = place.apart(delta)[e]
    return masked


def _run(
    own: Sensitive, tensors: Sequence[Tensor], values: dict[int, Tensor], of_batch: dict[int, Tensor]
) -> list[Tensor]:
    parameters = [values.get(i, t) for i, t in enumerate(tensors)]
    return own.call.recipe.run(parameters, lambda t: of_batch[id(t)])


def _backward(
    own: Sensitive, tensors: Sequence[Tensor], of_batch: dict[int, Tensor], cotangents: list[list[Tensor]]
) -> list[Tensor]:
    """The gradients (n, …) for n lists of cotangents of the results."""
    indices = own.call.indices
    values = [tensors[i].detach().requires_grad_() for i in indices]
    with torch.enable_grad():
        results = _run(own, tensors, dict(zip(indices, values, strict=True)), of_batch)
    results = [results[at] for at in own.deltas]
    found = [torch.zeros(len(cotangents), *t.shape, dtype=t.dtype, device=t.device) for t in values]
    for i, each in enumerate(cotangents):
        gradients = torch.autograd.grad(results, values, each, retain_graph=True, allow_unused=True)
        for out, gradient in zip(found, gradients, strict=True):
            if gradient is not None:
                out[i] = gradient.to_dense()
    return found


_FASTER: tuple[Way, ...] = (by_scaling, by_scaling_channels, by_vmap, by_each)

_REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)
"""What a function raises that cannot be vectorised, or that was given examples of another form than it knows."""


def _way(own: Sensitive, tensors: Sequence[Tensor]) -> Way:
    """The fastest way that agrees with the slowest on the first and the last example."""
    b = next(iter(own.places.values())).examples
    rows = sorted({0, b - 1})
    if b == 1:
        return by_masks
    expected = by_masks(own, tensors, rows)
    for way in _FASTER:
        try:
            found = way(own, tensors, rows)
        except torch.OutOfMemoryError:
            raise
        except _REFUSALS:
            continue
        if all(close(a, e) for a, e in zip(found, expected, strict=True)):
            return way
    return by_masks


def close(found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors are the same but for rounding in the precision that they have."""
    coarse = expected.dtype.itemsize < 4
    error = (found - expected).norm() / expected.norm().clamp_min(torch.finfo(expected.dtype).tiny)
    return found.shape == expected.shape and bool(error < (5e-2 if coarse else 1e-3))


@dataclass(frozen=True)
class ExampleGradients:
    """Gradients of one scalar per example of a batch, computed for some of the examples when asked for."""

    parameters: ProtectedParameters
    values: Sequence[Tensor]
    calls: list[tuple[Sensitive, Way]]

    def rows(self, examples: Sequence[int]) -> Tensor:
        """The gradients (n, p) of some examples."""
        parameters = self.parameters
        out = torch.zeros(len(examples), parameters.p, dtype=parameters.dtype, device=parameters.device)
        for own, way in self.calls:
            found = way(own, self.values, examples)
            for i, gradients in zip(own.call.indices, found, strict=True):
                out[:, parameters.places[i]] += gradients.reshape(len(examples), -1)
        return out


class CallGradients:
    """How the recorded calls of a model are told apart by examples: found once for batches of one kind.

    Args:
        parameters: the watched parameters.
    """

    def __init__(self, parameters: ProtectedParameters) -> None:
        self.parameters = parameters
        self._places: dict[Any, list[dict[int, Place]]] = {}
        self._ways: dict[Any, Way] = {}

    def read(self, reading: Reading, weights: Tensor) -> ExampleGradients | None:
        """The gradients of Σ weights · outputs for each example; None where a call mixes examples.

        The graph is kept. Two more backward passes for batches of a new kind.

        Args:
            reading: a forward pass that watches the parameters.
            weights: like its outputs.
        """
        calls = reading.calls
        deltas = _deltas(calls, reading.outputs, weights)
        places = self._found_places(reading, deltas)
        if places is None:
            return None
        found = []
        for i, (call, delta, own) in enumerate(zip(calls, deltas, places, strict=True)):
            if delta:
                sensitive = Sensitive(call, delta, {at: own[at] for at in delta})
                found.append((sensitive, self._way(i, sensitive, reading.values)))
        return ExampleGradients(self.parameters, reading.values, found)

    def _way(self, i: int, own: Sensitive, values: Sequence[Tensor]) -> Way:
        guesses = tuple(own.place_of_input(t) for t in own.call.of_batch)
        key = (i, own.call.name, *own.places.items(), guesses)
        if key not in self._ways:
            if not all(bool(delta.isfinite().all()) for delta in own.deltas.values()):
                return by_masks  # nothing agrees with what is not a number
            self._ways[key] = _way(own, values)
        return self._ways[key]

    def _found_places(self, reading: Reading, deltas: list[dict[int, Tensor]]) -> list[dict[int, Place]] | None:
        """Where the examples are in the results of every call, as found for another batch where that must be so."""
        calls, outputs = reading.calls, reading.outputs
        known = self._known_places(calls, len(outputs), deltas)
        if not reading.anywhere(known is None):
            return known
        found = _probed(calls, outputs, deltas)  # also where they are known, since another process makes these passes
        if found is None or known is not None:
            return known
        folded = any(place.folded for each in found for place in each.values())
        key, shapes = _keys(calls, len(outputs))
        self._places[(key, shapes) if folded else key] = found
        return found

    def _known_places(
        self, calls: Sequence[WatchedCall], b: int, deltas: list[dict[int, Tensor]]
    ) -> list[dict[int, Place]] | None:
        if b == 1:
            return [{at: Place(0, 1, folded=True) for at in each} for each in deltas]
        key, shapes = _keys(calls, b)
        # Dimensions stay where they are for sequences of other lengths; folded ones are found anew.
        for found in (self._places.get(key), self._places.get((key, shapes))):
            if found is not None and all(own.keys() <= each.keys() for own, each in zip(deltas, found, strict=True)):
                pairs = [(place, s[at]) for each, s in zip(found, shapes, strict=True) for at, place in each.items()]
                if all(place.fits(shape) for place, shape in pairs):
                    return found
        return None


def _keys(calls: Sequence[WatchedCall], b: int) -> tuple[Any, Any]:
    """What batches of one kind have in common, and what those have whose tensors have the same shapes."""
    return (b, *((each.name, tuple(map(len, each.shapes))) for each in calls)), tuple(each.shapes for each in calls)


def _probed(
    calls: Sequence[WatchedCall], outputs: Tensor, deltas: list[dict[int, Tensor]]
) -> list[dict[int, Place]] | None:
    """Where the examples are, by what the outputs of the first and of the last example depend on."""
    b = len(outputs)
    signs = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(b)).to(outputs)
    probes = []
    for e in (0, b - 1):
        only = torch.zeros_like(signs)
        only[e] = signs[e]
        probes.append(_deltas(calls, outputs, only))
    found: list[dict[int, Place]] = []
    for first, last, own in zip(*probes, deltas, strict=True):
        places = {at: place_of(first[at], last[at], b) for at in own}
        if None in places.values():
            return None
        found.append({at: place for at, place in places.items() if place is not None})
    return found


def _deltas(calls: Sequence[WatchedCall], outputs: Tensor, weights: Tensor) -> list[dict[int, Tensor]]:
    """δ of every result that the outputs depend on, by its position, for every call."""
    edges = [edge for call in calls for edge in call.edges if edge is not None]
    if not edges:
        return [{} for _ in calls]
    found = iter(torch.autograd.grad(outputs, edges, weights, retain_graph=True, allow_unused=True))
    deltas = [{at: next(found) for at, edge in enumerate(call.edges) if edge is not None} for call in calls]
    return [{at: delta for at, delta in each.items() if delta is not None} for each in deltas]
