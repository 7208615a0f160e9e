"""Sensitivities: the gradients of a batch's outputs with respect to the outputs of each layer, δ.

Letters: b examples, C logits of one example, a the inputs of a layer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..seeds import derive_seed
from .batches import Output, evaluating, every_logit, logits_of, per_example
from .calls import Call
from .gathered import Gathered
from .layers import Layer, Use, find_layers, input_rows, record, sensitivity_rows
from .parameters import ProtectedParameters, Selection
from .signs import mask_of, sign_rows
from .watching import WatchedCall, record_calls

T = TypeVar("T")

EVERY_LOGIT_UP_TO = 10
"""Up to this many logits, sensitivities are those of each; beyond, those of COMBINATIONS random combinations."""

COMBINATIONS = 8
"""Number of random combinations of the logits; one backward pass each."""


def layer_signals(
    model: nn.Module,
    inputs: Any,
    targets: Any = None,
    *,
    output: Output = every_logit,
    parameters: Selection = None,
    seed: int = 0,
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return {layer: (inputs (rows, fan-in, plus 1 for a bias), sensitivities (rows, fan-out))} of a batch.

    There is one input row per example and position (of a sequence or image), for an embedding one row of token counts
    per example. Sensitivities have one row per example, position and logit (or combination of logits, see
    `Reading.deltas`). The model is evaluated in eval mode.

    Args:
        model: Any module.
        inputs: A batch of inputs, as for `per_example_gradients`.
        targets: Targets of the batch; `every_logit` needs none.
        output: The scalar of an example; the default stands for every logit by itself.
        parameters: Selection of parameters; by default all that require gradients.
        seed: Seed of the random combinations of logits.

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
) -> tuple[list[Use], list[Sequence[Tensor]]]:
    """Run one forward pass, then the backward passes for the sensitivities.

    Args:
        model: Any module, in the mode in which it should be evaluated.
        layers: Layers whose uses are recorded.
        inputs: A batch of inputs.
        targets: Its targets, or None if `output` needs none.
        output: The scalar of an example.
        seed: Seed of the random combinations of logits.

    Returns:
        The uses of the layers and, for every backward pass, one δ per use (None if the outputs do not depend on it).
    """
    reading = Reading(model, layers, inputs, targets, output, seed)
    return reading.uses, list(reading.deltas())


@dataclass(frozen=True)
class Reading:
    """One forward pass of a batch with the uses of its layers, from which sensitivities are taken once.

    Args:
        model: any module, which is evaluated in eval mode.
        layers: the layers whose uses are recorded.
        inputs: a batch of inputs.
        targets: its targets, or None if `output` needs none.
        output: the scalar of an example.
        seed: seed of random signs.
        watched: parameters of no layer, whose calls are recorded.
        combinations: number of random combinations where there are more logits, or None for the usual rule.
        protected: the protected parameters, where these are split over processes. All of them must then make the same
            passes, since each gathers parameters from all.
    """

    model: nn.Module
    layers: Sequence[Layer]
    inputs: Any
    targets: Any
    output: Output
    seed: int
    watched: Sequence[Tensor] = ()
    combinations: int | None = None
    protected: ProtectedParameters | None = None

    def anywhere(self, flag: bool) -> bool:
        """Whether it is so here or, where parameters are split, in any process."""
        return flag if self.protected is None else self.protected.anywhere(flag)

    def in_step(self, action: Callable[[], T]) -> T:
        """What `action` returns; where parameters are split and it fails in any process, all raise."""
        return action() if self.protected is None else self.protected.in_step(action)

    @cached_property
    def gathered(self) -> Gathered:
        """What the model computes with in place of the parameters."""
        layers = [t for layer in self.layers for t in (layer.weight, layer.bias) if t is not None]
        return Gathered(self.model, [*layers, *self.watched])

    @cached_property
    def call(self) -> Call:
        """How the model is called, with targets in line with its outputs."""
        with evaluating(self.model):
            return Call.of(self.model, self.inputs, self.targets, self.output)

    @cached_property
    def _recorded(self) -> tuple[tuple[Any, list[WatchedCall], list[Tensor]], list[Use], set[str]]:
        call = self.call  # before anything is recorded, since the model may be run for it

        def run() -> Any:
            return self.gathered.watch(call.run)

        def forward() -> tuple[Any, list[WatchedCall], list[Tensor]]:
            if not self.watched:
                return run(), [], []
            return record_calls(self.watched, (call.inputs, call.keywords), run, self.gathered)

        with evaluating(self.model):
            return record(self.layers, forward, self.gathered)

    @property
    def _result(self) -> Any:
        return self._recorded[0][0]

    @property
    def calls(self) -> list[WatchedCall]:
        """Every call in which watched parameters meet the batch, in order."""
        return self._recorded[0][1]

    @property
    def values(self) -> list[Tensor]:
        """The values of the watched parameters."""
        return self._recorded[0][2]

    @property
    def uses(self) -> list[Use]:
        """Every use of the layers' weights, in order."""
        return self._recorded[1]

    @property
    def hidden(self) -> set[str]:
        """The names of layers that the model uses only where gradients are disabled."""
        return self._recorded[2]

    def uses_of_tokens(self) -> list[Use]:
        """The uses with the inputs of all positions but those of padding, for what remembers inputs alone."""
        tokens = self.call.tokens
        if tokens is None:
            return self.uses
        return [replace(use, input=_of_tokens(use, tokens)) for use in self.uses]

    @property
    def logits(self) -> Tensor:
        """The logits that the model returned."""
        return logits_of(self._result)

    @cached_property
    def counted(self) -> Tensor | None:
        """Which logits count, to be broadcast to them; None where all do."""
        return mask_of(self.call.counted, self.logits)

    @property
    def count(self) -> int:
        """How many logits count for an example, on average."""
        logits = self.logits[0].numel()
        share = 1.0 if self.counted is None else float(self.counted.double().mean())
        return max(1, round(logits * share))

    @cached_property
    def outputs(self) -> Tensor:
        """What is remembered, (b, C) for every logit or (b,) for another scalar, in the autograd graph."""
        with torch.enable_grad():
            if self.output is every_logit:
                return self.logits.reshape(len(self.logits), -1)
            return per_example(self.output, self._result, self.call.targets)

    def signs(self, count: int, seed: int) -> Iterator[Tensor]:
        """Random signs ±1/√count shaped like the logits, with zeros where they do not count."""
        return sign_rows(self.logits.detach(), count, seed, self.counted)

    def deltas(self, signed: bool = False) -> Iterator[Sequence[Tensor]]:
        """Yield the gradients of the outputs with respect to the output of every use, once per backward pass, lazily.

        For `every_logit` there is one pass per logit or, with more than EVERY_LOGIT_UP_TO logits per example, one per
        random combination Σ_c ±logit_c / √COMBINATIONS, which are orthogonal where logits are few; the expected second
        moment of these is that of all logits. So the passes do not grow with a vocabulary, and a pass needs one tensor
        of the logits' size beside them. Logits that do not count are left out. The graph is gone afterwards.

        Args:
            signed: Give every example a random sign, so that the sum over examples has the expected second moment of
                single examples.
        """
        edges = [use.edge for use in self.uses]
        if not edges:
            return
        most = self._most_passes()
        outputs, passes, weights = self.outputs, self._passes, iter([torch.ones_like(self.outputs)])
        if self.output is every_logit and outputs.shape[1] == passes:
            weights = self._of_single_logits()
        elif self.output is every_logit:
            weights = (w.view_as(outputs) for w in self.signs(passes, self.seed))
            signed = signed and self.logits.ndim <= 2  # of sequences every position has a random sign
        if signed:
            weights = _with_signs(weights, derive_seed(self.seed, "examples"))
        for i, weight in enumerate(weights):
            yield torch.autograd.grad(outputs, edges, weight, retain_graph=i + 1 < most, allow_unused=True)
        self.accompany(most - passes)

    @property
    def _passes(self) -> int:
        """How many backward passes the sensitivities take."""
        if self.output is not every_logit:
            return 1
        logits = self.outputs.shape[1]
        return logits if logits <= (self.combinations or EVERY_LOGIT_UP_TO) else (self.combinations or COMBINATIONS)

    def _most_passes(self) -> int:
        """How many they take in any process that holds parts of the parameters."""
        return self._passes if self.protected is None else self.protected.most(self._passes)

    def accompany(self, passes: int) -> None:
        """Make backward passes for nothing, since other processes make so many and need this one's parameters."""
        edges = [use.edge for use in self.uses]
        for _ in range(passes if edges else 0):
            zeros = torch.zeros_like(self.outputs)
            torch.autograd.grad(self.outputs, edges, zeros, retain_graph=True, allow_unused=True)

    def _of_single_logits(self) -> Iterator[Tensor]:
        outputs = self.outputs
        one_hot = torch.eye(outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
        counted = None if self.counted is None else self.counted.expand_as(self.logits).reshape(outputs.shape)
        for row in one_hot:
            yield row.expand_as(outputs) if counted is None else row * counted

    def again(self) -> "Reading":
        """Another forward pass."""
        return replace(self)


def _of_tokens(use: Use, tokens: Tensor) -> Tensor:
    """The input of a use without padding, where it has one entry for each position (b, T) or (b · T)."""
    positions = use.input.shape if use.layer.tokens else use.input.shape[:-1]
    if use.layer.kind == "conv" or positions not in (tokens.shape, (tokens.numel(),)):
        return use.input
    return use.input[tokens.view(positions)]


def _with_signs(weights: Iterator[Tensor], seed: int) -> Iterator[Tensor]:
    """The weights (b, …), each example's times a random sign."""
    generator = torch.Generator().manual_seed(seed)
    for weight in weights:
        signs = torch.randint(0, 2, (len(weight),), generator=generator, dtype=torch.int8) * 2 - 1
        yield weight * signs.to(weight).view(-1, *[1] * (weight.ndim - 1))
