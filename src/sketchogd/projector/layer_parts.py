"""Where a layer's weight and bias are among the parameters, and how they are replaced where these are split.

Letters as in `kronecker`; R processes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..linalg.stacks import stacked
from ..model.parameters import ProtectedParameters, local
from .kronecker import LayerProjector, LayerStack
from .span import Span

SUM_BYTES = 256 << 20
"""About the bytes that one all-reduce of a projection sums."""


@dataclass(frozen=True)
class LayerPlace:
    """Where a layer is among the protected parameters.

    Args:
        weight: index of the weight.
        bias: index of the bias, if it has one.
        transposed: whether the weight is stored as (fan-in, fan-out).
        tokens: whether it is an embedding, whose inputs are tokens.
    """

    weight: int
    bias: int | None
    transposed: bool
    tokens: bool = False

    def span(self, layer: "LayerProjector | None", tensors: Sequence[Tensor]) -> Span | None:
        """The directions in which a layer is pulled: none while nothing is remembered of it."""
        t, turned = tensors[self.weight], self.transposed and not self.tokens
        n = len(t) if turned else t.shape[1:].numel()
        if layer is None:
            return Span(local(t.detach()).new_empty(0, n), None, turned)
        V = layer.spectra.outputs if self.tokens else layer.spectra.inputs
        if V is None:
            return None
        return Span(V[:, :n], None if self.bias is None or self.tokens else V[:, n], turned)


Stacks = Sequence[tuple[LayerStack, list[LayerPlace]]]


Compute = Callable[[LayerStack, list[Tensor], list[Tensor | None]], Tensor]
"""What comes in place of the first of several ΔW (L, fan-out, fan-in + 1) of alike layers, and their totals."""


def replace(stacks: Stacks, vectors: Sequence[Sequence[Tensor]], compute: Compute) -> None:
    """Overwrite weights and biases by what is computed from them.

    Args:
        stacks: alike layers with their places.
        vectors: all parameters, of one vector or of several; those of the first are overwritten.
        compute: the new ones.
    """
    for stack, places in stacks:
        turned = places[0].transposed
        given = [_whole(places, pieces) for pieces in vectors]
        weights, biases = given[0]
        Ms = [stacked(each).mT if turned else stacked(each) for each, _ in given]
        n = Ms[0].shape[2]
        if biases:
            Ms = [torch.cat([M, stacked(each)[:, :, None]], 2) for M, (_, each) in zip(Ms, given, strict=True)]
        parts = compute(stack, Ms, [None] * len(Ms))
        torch._foreach_copy_(weights, list((parts[:, :, :n].mT if turned else parts[:, :, :n]).unbind()))
        if biases:
            torch._foreach_copy_(biases, list(parts[:, :, n].unbind()))


def replace_parts(
    parameters: ProtectedParameters, stacks: Stacks, vectors: Sequence[Sequence[Tensor]], compute: Compute
) -> None:
    """`replace` for this process's parts of weights and biases, where parameters are split.

    Args:
        parameters: which are split.
        stacks: see `replace`; the same in all processes.
        vectors: see `replace`, parts of all parameters.
        compute: see `replace`.
    """
    for some in _portions(parameters, stacks):
        given = [[_given(parameters, places, pieces) for pieces in vectors] for _, places in some]
        sums = [
            [_summands(parameters, stack, places, own) for own in each]
            for (stack, places), each in zip(some, given, strict=True)
        ]
        flat = [t for each in sums for own in each for t in own if t is not None]
        if flat:
            total = parameters.columns.total(torch.cat([t.reshape(-1) for t in flat]))
            found = iter(total.split([t.numel() for t in flat]))
            sums = [[(_next(product, found), _next(bias, found)) for product, bias in each] for each in sums]
        for (stack, places), each, totals in zip(some, given, sums, strict=True):
            Ms, turned = [], places[0].transposed
            for (weights, biases), (_, bias) in zip(each, totals, strict=True):
                M = stacked(weights).mT if turned else stacked(weights)
                n, whole = M.shape[2], bias if turned else (stacked(biases) if biases else None)
                Ms.append(M if whole is None else torch.cat([M, whole[:, :, None]], 2))
            parts = compute(stack, Ms, [product for product, _ in totals])
            weights, biases = each[0]
            torch._foreach_copy_(weights, list((parts[:, :, :n].mT if turned else parts[:, :, :n]).unbind()))
            if biases:
                rows = parameters.rows(places[0].bias or 0) if turned else slice(None)
                torch._foreach_copy_(biases, list(parts[:, rows, n].unbind()))


def _whole(places: Sequence[LayerPlace], pieces: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Weights as matrices, and biases."""
    weights = [pieces[place.weight].flatten(1) for place in places]
    return weights, [pieces[place.bias] for place in places if place.bias is not None]


def _given(
    parameters: ProtectedParameters, places: Sequence[LayerPlace], pieces: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """The parts of weights (…, …) and of biases."""
    weights = [pieces[p.weight].view(len(pieces[p.weight]), parameters.shapes[p.weight][1:].numel()) for p in places]
    return weights, [pieces[p.bias] for p in places if p.bias is not None]


def _summands(
    parameters: ProtectedParameters,
    stack: LayerStack,
    places: Sequence[LayerPlace],
    given: tuple[list[Tensor], list[Tensor]],
) -> tuple[Tensor | None, Tensor | None]:
    """What must be summed of alike layers: their products, and the biases of those that are split by inputs."""
    weights, biases = given
    M = stacked(weights)
    if not places[0].transposed:
        M = torch.cat([M, stacked(biases)[:, :, None]], 2) if biases else M
        return stack.summand(M), None
    bias = None
    if places[0].bias is not None:
        # Each process has the bias of other outputs, and all of it is one column.
        bias = M.new_zeros(len(places), parameters.shapes[places[0].bias][0])
        bias[:, parameters.rows(places[0].bias)] = stacked(biases)
    return stack.summand(M.mT), bias


def _portions(parameters: ProtectedParameters, stacks: Stacks) -> Iterator[Stacks]:
    """Consecutive stacks whose weights together take about SUM_BYTES, which is more than their sums take."""
    found: list[tuple[LayerStack, list[LayerPlace]]] = []
    total = 0
    for stack, places in stacks:
        size = sum(parameters.shapes[place.weight].numel() for place in places) * parameters.dtype.itemsize
        if found and total + size > SUM_BYTES:
            yield found
            found, total = [], 0
        found.append((stack, places))
        total += size
    if found:
        yield found


def _next(t: Tensor | None, totals: Iterator[Tensor]) -> Tensor | None:
    return None if t is None else next(totals).view(t.shape)
