"""A private release for a layer memory: both partial traces of every layer, whole, with one size for every example.

At a layer an example has the gradients G of its scalars and the energy t = Σ ‖G‖². It adds Σ GᵀG / t and Σ GGᵀ / t,
which are positive semidefinite and of trace 1. So their Frobenius norms, which are at most the traces, are at most 1.
The numbers of the tokens of an embedding, Σ ‖column of G‖² / t, sum to 1 and have a norm of at most 1. t itself is a
count in one bin of a histogram, as is the spread of an example's outputs. Parameters of no layer: `rows`.

The sketches of the memory are given what follows from the released sums, Ωᵀ M for the estimate of M: what a sketch
keeps of it is a function of what was released. Letters as in `memory.curvature.traces`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..errors import NonFiniteError, ProtectionError
from ..memory import LayerMemory
from ..memory.curvature import LayerFactors
from ..memory.curvature.energies import energies_of_examples, scaled_deltas
from ..memory.curvature.factors import require_finite_uses
from ..memory.curvature.traces import Passes, TraceSums
from ..memory.estimates import Estimate
from ..memory.layout import REST
from ..memory.staging import Commit
from ..model.batches import every_logit, map_tensors
from ..model.layers import MIXED, orders_of_positions
from ..model.sensitivities import COMBINATIONS, EVERY_LOGIT_UP_TO, Reading
from ..projector.rules import Pull
from ..sketch import SecondMoment, SketchedMoment
from .mechanism import histogram, spectra
from .mechanism.noise import uniform
from .mechanism.sums import Noisy, Sum, Sums
from .release import EXAMPLES, Release, require_alone
from .rows import RowSums
from .units import Unit

WIDEST = 8192
"""Factors are summed whole, in 8 d² bytes, while a task is remembered; of wider layers that would be too much."""

SPREAD = "outputs.spread"

TOGETHER = 256
"""So many examples go through the model at once."""


class LayerRelease(Release):
    """The sums of a task for a layer memory.

    Args:
        memory: a bound memory, which `finish` adds estimates to.
        unit: the unit of privacy.
    """

    def __init__(self, memory: LayerMemory, unit: Unit) -> None:
        super().__init__(unit, memory.parameters.device)
        self.memory = memory
        self.logits = 0
        self._warned = memory.examples > 0
        self.rest = None if memory.others is None else RowSums(REST, memory.others.parts[0].sketch)
        sums: list[Sum] = [self.count(), self.scale(SPREAD, signed=True)]
        for name, factors in memory.factors.items():
            sums.append(self.scale(f"{name}.size"))
            if factors.counts is not None:
                sums.append(Sum(f"{name}.counts", torch.zeros_like(factors.counts, dtype=torch.float64), size=1))
            for part, sketch in factors.sketches():
                sums.append(Sum(f"{name}.{part}", self._zeros(sketch.d), True, sketch.d))
        if self.rest is not None:
            sums += [*self.rest.sums(), self.scale(self.rest.size)]
        self.sums = Sums(sums)

    def _zeros(self, d: int) -> Tensor:
        return torch.zeros(d, d, dtype=torch.float64, device=self.device)

    @staticmethod
    def require_possible(memory: LayerMemory) -> None:
        """Raise ValueError for a memory that cannot be released with noise."""
        if memory.curvature.name != "traces" or not memory.outputs:
            raise ValueError(
                'with privacy= a layer memory keeps partial traces: leave curvature="positions" and outputs=False out'
            )
        if memory.others is not None and memory.others.parts[0].p < memory.others.parameters.p:
            raise ValueError("with privacy= parameters of no layer have one sketch: give LayerMemory(…, apart=False)")
        for name, sketch in memory.sketches():
            own = sketch if name == REST else None
            if not isinstance(sketch, (SketchedMoment, SecondMoment)) or (own and not RowSums.possible(own)):
                raise ValueError(
                    f"a {type(sketch).__name__} is not linear in the second moment of what it observes, so that noise "
                    "cannot be added to it once; leave sketch= out"
                )
            if own is None and sketch.d > WIDEST:
                raise ValueError(
                    f"{name} has rows of length {sketch.d:,}; with privacy= their second moment is summed whole, up "
                    f"to {WIDEST:,}. Leave the layer out with parameters=, or use so.ProductSketch(rank)"
                )

    # ---------------------------------------------------------------- examples

    def stage(self, inputs: Any, targets: Any, weights: Tensor) -> Commit:
        """See `Release`."""
        b, commits = len(weights), []
        for start in range(0, b, TOGETHER):
            here = slice(start, start + TOGETHER)
            part = [map_tensors(lambda t, here=here: t[here], each) for each in (inputs, targets)]  # type: ignore[misc]
            commits += self._stage(part[0], part[1], weights[here])

        def commit() -> None:
            for each in commits:
                each()

        return commit

    def _stage(self, inputs: Any, targets: Any, weights: Tensor) -> list[Commit]:
        memory, b = self.memory, len(weights)
        layers = [factors.layer for factors in memory.factors.values()]
        reading = Reading(memory.parameters.model, layers, inputs, targets, memory.output, 0)
        if not self._warned:
            memory.warn_of_unseen(reading)
            self._warned = True
        self._require_outputs(reading)
        require_alone(reading.call, memory.output, reading.outputs)
        orders = orders_of_positions(reading.uses, reading.outputs)
        if MIXED in orders:  # weights that do not see the batch, as those of positions: each example by itself
            apart = ([map_tensors(lambda t, e=e: t[e : e + 1], v) for v in (inputs, targets)] for e in range(b))  # type: ignore[misc]
            return [done for e, (x, y) in enumerate(apart) for done in self._stage(x, y, weights[e : e + 1])]
        numbers = self._spreads(reading)
        rest = None if self.rest is None else self._gradients(reading)
        passes = list(self._passes(reading))
        require_finite_uses(reading.uses, passes, inputs)
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            energies = energies_of_examples(reading.uses, orders, passes, b)
            sums = self._sums_of(reading, orders, passes, energies, weights)

        def commit() -> None:
            self.sums[EXAMPLES].add_(weights.sum())
            self.sums[SPREAD].add_(histogram.counts_of(numbers, weights, signed=True))
            for name, energy in energies.items():
                self.sums[f"{name}.size"].add_(histogram.counts_of(energy, weights))
            for (name, part), added in sums.added.items():
                self.sums[f"{name}.{part}"].add_(added.total)
            for name, total in sums.tokens.items():
                self.sums[f"{name}.counts"].add_(total)
            if self.rest is not None and rest is not None:
                self.rest.add(self.sums, rest, weights)

        return [commit]

    def _sums_of(
        self, reading: Reading, orders: Sequence[str], passes: Passes, energies: dict[str, Tensor], weights: Tensor
    ) -> TraceSums:
        """What the examples add to all factors, each scaled to trace 1 times its weight."""
        empty = {
            name: LayerFactors(
                own.layer,
                None if own.inputs is None else SecondMoment().bind(own.inputs.d, torch.float64, self.device),
                own.counts,
                None if own.outputs is None else SecondMoment().bind(own.outputs.d, torch.float64, self.device),
            )
            for name, own in self.memory.factors.items()
        }
        factors = {
            name: (weights / torch.where(energy > 0, energy, torch.inf)).sqrt() for name, energy in energies.items()
        }
        sums = TraceSums(empty, reading.uses, orders, len(weights))
        sums.add([scaled_deltas(reading.uses, orders, deltas, factors) for deltas in passes])
        if not sums.hold() and any(bool((energy > 0).any()) for energy in energies.values()):
            raise NonFiniteError("the gradients of a batch are not finite, or too large; nothing was observed", [])
        return sums

    def _require_outputs(self, reading: Reading) -> None:
        memory = self.memory
        if memory.output is every_logit and reading.logits.ndim > 2:
            raise ValueError(
                f"with privacy= a layer memory remembers outputs (b, C); the model returned "
                f"{tuple(reading.logits.shape)}. Give output=, the scalar of an example"
            )
        logits = reading.logits[0].numel() if memory.output is every_logit else 1
        if self.logits not in (0, logits):
            raise ProtectionError(f"the examples of one task have {self.logits} and {logits} logits")
        self.logits = logits

    def _passes(self, reading: Reading) -> Passes:
        """As `Reading.deltas`, with signs that nobody can draw again: they must not depend on an example's place."""
        outputs, edges = reading.outputs, [use.edge for use in reading.uses]
        C = outputs.shape[1] if outputs.ndim == 2 else 0
        counted = None if reading.counted is None else reading.counted.expand_as(reading.logits).reshape(outputs.shape)
        if C == 0:
            weights = [torch.ones_like(outputs)]
        elif C <= EVERY_LOGIT_UP_TO:
            weights = [row.expand_as(outputs) for row in torch.eye(C, dtype=outputs.dtype, device=outputs.device)]
        else:
            weights = [_signs(outputs) * COMBINATIONS**-0.5 for _ in range(COMBINATIONS)]
        found: list[Sequence[Tensor | None]] = []
        for i, weight in enumerate(weights):
            weight = weight if counted is None else weight * counted
            last = i + 1 == len(weights)
            found.append(torch.autograd.grad(outputs, edges, weight, retain_graph=not last, allow_unused=True))
        return found

    def _spreads(self, reading: Reading) -> Tensor:
        """Of each example Σ (z − z̄)² over its logits, or its one number z."""
        z = reading.outputs.detach().double()
        if z.ndim == 1 or z.shape[1] == 1:
            return z.reshape(-1)
        return z.var(1, correction=0) * z.shape[1]

    def _gradients(self, reading: Reading) -> Tensor:
        """Gradients (b, p) of one random combination of each example's logits, for the parameters of no layer."""
        others, targets = self.memory.others, reading.call.targets
        assert others is not None
        if self.memory.output is every_logit:
            targets = _signs(reading.logits.detach())
            targets = targets if reading.counted is None else targets * reading.counted
        rows = torch.cat(list(others.signals.chunks(reading.call.inputs, targets)))
        others.require_finite(rows)
        return rows

    # ---------------------------------------------------------------- the release

    def _take(self, found: dict[str, Noisy], weight: float) -> list[str]:
        most, spread = self.unit.most, isinstance(self.memory.rule, Pull)
        scalars = self.logits if self.logits <= EVERY_LOGIT_UP_TO else COMBINATIONS
        count = max(1, round(weight))
        moments: dict[str, Estimate] = {}
        tokens: dict[str, Tensor] = {}
        hidden: list[str] = []
        for name, factors in self.memory.factors.items():
            size, _ = histogram.moments(found[f"{name}.size"].value, found[f"{name}.size"].sigma)
            for part, _ in factors.sketches():
                own = spectra.of_moment(found[f"{name}.{part}"], count, spread)
                hidden += [] if size and len(own.values) else [f"{name}.{part}"]
                moments[f"{name}.{part}"] = replace(own.scaled(size * most), count=count * most * scalars)
            if factors.counts is not None:
                tokens[f"{name}.counts"] = spectra.of_diagonal(found[f"{name}.counts"], count) * size * most
        if self.rest is not None:
            moments[REST] = self.rest.estimate(found, weight, most, spread)
            hidden += [] if moments[REST].seen else [REST]
        numbers = found[SPREAD].value if self.logits == 1 else found[SPREAD].value[: histogram.BINS]
        mean, square = histogram.moments(numbers, found[SPREAD].sigma)
        examples = self.examples(weight)
        several = [examples * self.logits, 0.0, examples * mean]
        outputs = several if self.logits > 1 else [examples, examples * mean, examples * square]
        spreads = torch.tensor(outputs, dtype=torch.float64, device=self.device)
        self.memory.add_estimates(moments, tokens, spreads, examples, self.logits)
        return hidden


def _signs(like: Tensor) -> Tensor:
    """Random signs ±1 of this shape, from the secure generator."""
    drawn = torch.where(uniform(like.numel()) < 0.5, 1.0, -1.0)
    return drawn.view(like.shape).to(like)
