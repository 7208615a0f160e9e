"""The gradients of a batch's outputs with respect to the outputs of each layer, and the rows that come of them.

Letters: b examples, C logits of one example. They are taken with evaluation statistics and without dropout, whatever
mode the model is in.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .batches import Output, call, evaluating, every_logit, logits_of, per_example
from .layers import Layer, Use, find_layers, input_rows, record, sensitivity_rows
from .parameters import ProtectedParameters, Selection

EVERY_LOGIT_UP_TO = 16
"""With more logits than this, layer sensitivities are those of a few random combinations of them."""


COMBINATIONS = 8


def layer_signals(
    model: nn.Module,
    inputs: Any,
    targets: Any = None,
    *,
    output: Output = every_logit,
    parameters: Selection = None,
    seed: int = 0,
) -> dict[str, tuple[Tensor, Tensor]]:
    """{layer: (inputs (rows, fan-in + 1 for a bias), sensitivities (rows, fan-out))} of a batch.

    A sequence or an image gives several rows an example, an embedding one row of token counts an example; the
    sensitivities have a row for every position and every logit (or random combination of logits, see `deltas_of`).

    >>> signals = layer_signals(nn.Linear(2, 3), torch.ones(4, 2))
    >>> [tuple(rows.shape) for rows in signals[""]]
    [(4, 3), (12, 3)]
    """
    chosen = ProtectedParameters(model, parameters)
    with evaluating(model):
        uses, deltas = read_layers(model, find_layers(chosen), inputs, targets, output, seed)
    dtype = chosen.dtype
    rows: dict[str, tuple[list[Tensor], list[Tensor]]] = {}
    for i, use in enumerate(uses):
        a, d = rows.setdefault(use.layer.name, ([], []))
        a.append(input_rows(use, dtype))
        d.extend(sensitivity_rows(use, delta[i], dtype) for delta in deltas if delta[i] is not None)
    empty = {use.layer.name: torch.zeros(0, use.layer.fan_out, dtype=dtype) for use in uses}
    return {name: (torch.cat(a), torch.cat(d) if d else empty[name]) for name, (a, d) in rows.items()}


def read_layers(
    model: nn.Module,
    layers: Sequence[Layer],
    inputs: Any,
    targets: Any,
    output: Output,
    seed: int,
    backward: bool = True,
) -> tuple[list[Use], list[Sequence[Tensor]]]:
    """One forward pass, and the backward passes for the sensitivities: (uses, for each scalar a δ for every use)."""
    result, uses = record(layers, lambda: call(model, inputs))
    if not backward or not uses:
        return uses, []
    return uses, list(deltas_of(result, targets, [use.edge for use in uses], output, seed))


def deltas_of(result: Any, targets: Any, edges: Sequence[Any], output: Output, seed: int) -> Iterator[Sequence[Tensor]]:
    """The gradients of the outputs with respect to every edge, one sequence for each backward pass, as it is asked for.

    For `every_logit`: each logit in turn, or, when an example has more than EVERY_LOGIT_UP_TO, COMBINATIONS random
    combinations Σ_c ±logit_c / √COMBINATIONS, whose second moment has that of all logits as its expectation.
    """
    with torch.enable_grad():
        outputs = logits_of(result).flatten(1) if output is every_logit else per_example(output, result, targets)
    passes = 1
    weights: Iterator[Tensor] = iter([torch.ones_like(outputs)])
    if output is every_logit:
        passes = outputs.shape[1]
        if passes <= EVERY_LOGIT_UP_TO:
            one_hot = torch.eye(passes, dtype=outputs.dtype, device=outputs.device)
            weights = (row.expand_as(outputs) for row in one_hot)
        else:
            passes, weights = COMBINATIONS, sign_rows(outputs.detach(), COMBINATIONS, seed)
    for i, weight in enumerate(weights):
        yield torch.autograd.grad(outputs, edges, weight, retain_graph=i + 1 < passes, allow_unused=True)


def sign_rows(logits: Tensor, count: int, seed: int) -> Iterator[Tensor]:
    """`count` tensors of ±1/√count shaped like the logits, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        signs = torch.randint(0, 2, logits.shape, generator=generator, dtype=torch.int8)
        yield (signs * 2 - 1).to(device=logits.device, dtype=logits.dtype) * count**-0.5
