"""Of each example by itself: Σ ‖G‖² over scalars for every layer, and sensitivities scaled by a number per example.

Multiplying all of an example's sensitivities at a layer by c multiplies its G by c and what it adds to both factors by
c². So contributions of any size that is wanted come out of the same sums (`traces`), for every kind of layer. Letters
as there.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...model.layers import EXAMPLES_LAST, Layer, Use, grouped
from .traces import Passes, Positions, Used, _by_layer, _inputs, _joined, _stacked, _tied_rows, explicit_gradients


def energies_of_examples(uses: Sequence[Use], orders: Sequence[str], passes: Passes, b: int) -> dict[str, Tensor]:
    """Return {layer: Σ ‖G‖² over the scalars of each example (b,)} in float64; layers without sensitivities lack.

    Args:
        uses: the uses of the layers in a forward pass.
        orders: the order of the positions of each use, none of them mixed.
        passes: for each scalar its gradients with respect to the output of every use.
        b: the number of examples.
    """
    found: dict[str, Tensor] = {}
    for deltas in passes:
        for layer, mine, _ in _by_layer(uses, orders, [deltas], b):
            found[layer.name] = found.get(layer.name, 0.0) + _energies(layer, mine, b)
    return found


def _energies(layer: Layer, uses: Sequence[Used], b: int) -> Tensor:
    """Of one scalar."""
    if any(use.options.get("groups", 1) > 1 for use, _, _ in uses):
        (_, G), *_ = explicit_gradients([use for use, _, _ in uses], [order for _, order, _ in uses], _deltas(uses), b)
        return G.flatten(1).double().square().sum(1)
    if layer.kind == "embedding" and any(use.head for use, _, _ in uses):
        each = [zip(*_tied_rows(uses, e, b, torch.float64), strict=True) for e in range(b)]
        return torch.stack([_gram_energy(*(torch.cat(parts) for parts in rows)) for rows in each])
    if layer.kind == "embedding":
        return _of_tokens(layer, uses, b)
    A = _joined([_inputs(use, deltas, order, b, torch.float64) for use, order, deltas in uses])
    D = _joined([_stacked(use, deltas, order, b, torch.float64) for use, order, deltas in uses])
    T, w, o = A.shape[1], A.shape[2], D.shape[3]
    if T == 1 or T * (w + o) < w * o:
        known = Positions([], b, A.square().sum(2, keepdim=True) if T == 1 else A @ A.mT, A.new_zeros(b, T, T))
        known.add(D, None)
        return (known.K_a * known.K_d).sum((1, 2))
    return torch.linalg.vector_norm((D.flatten(2).mT @ A).flatten(1), dim=1).square()


def _gram_energy(L: Tensor, R: Tensor) -> Tensor:
    """‖Lᵀ R‖²."""
    return ((L @ L.T) * (R @ R.T)).sum()


def _deltas(uses: Sequence[Used]) -> list[Tensor | None]:
    return [deltas[0] for _, _, deltas in uses]


def _of_tokens(layer: Layer, uses: Sequence[Used], b: int) -> Tensor:
    """Of an embedding: the sensitivities of a token that an example has several times are added first."""
    tokens, rows = [], []
    for use, order, deltas in uses:
        own = _stacked(use, deltas, order, b, torch.float64)[:, :, 0]
        read = grouped(use.input.reshape(-1, 1), order, b)[..., 0]
        if use.options["padding"] is not None:  # the row of this token gets no gradient
            own = own.masked_fill((read == use.options["padding"])[..., None], 0.0)
        tokens.append(read + layer.fan_in * torch.arange(b, device=read.device)[:, None])
        rows.append(own)
    unique, inverse = torch.cat(tokens, 1).flatten().unique(return_inverse=True)
    D = torch.cat(rows, 1).flatten(0, 1)
    S = D.new_zeros(len(unique), D.shape[1]).index_add_(0, inverse, D)
    return S.new_zeros(b).index_add_(0, unique // layer.fan_in, S.square().sum(1))


def scaled_deltas(
    uses: Sequence[Use], orders: Sequence[str], deltas: Sequence[Tensor | None], factors: Mapping[str, Tensor]
) -> list[Tensor | None]:
    """The gradients of one scalar with respect to all uses, those of example e at a layer times `factors[layer][e]`."""
    return [
        None if delta is None else _scaled(use, order, delta, factors[use.layer.name])
        for use, order, delta in zip(uses, orders, deltas, strict=True)
    ]


def _scaled(use: Use, order: str, delta: Tensor, factor: Tensor) -> Tensor:
    b, factor = len(factor), factor.to(delta.device)
    if order == EXAMPLES_LAST and b > 1:
        return (delta.double().reshape(-1, b, delta.shape[-1]) * factor[None, :, None]).view(delta.shape)
    return (delta.double().reshape(b, -1) * factor[:, None]).view(delta.shape)
