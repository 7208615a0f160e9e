"""A private release for a gradient memory: one sum per block of the parameters."""

from typing import Any

from torch import Tensor

from ..memory import GradientMemory
from ..memory.staging import Commit
from ..model.batches import evaluating, every_logit
from ..model.calls import Call
from ..projector.rules import Pull
from .mechanism.noise import uniform
from .mechanism.sums import Noisy, Sums
from .release import EXAMPLES, Release, outputs_of, require_alone
from .rows import RowSums
from .units import Unit


class GradientRelease(Release):
    """The sums of a task for a gradient memory.

    Args:
        memory: a bound memory, which `finish` adds estimates to.
        unit: the unit of privacy.
    """

    def __init__(self, memory: GradientMemory, unit: Unit) -> None:
        super().__init__(unit, memory.parameters.device)
        self.memory = memory
        self.blocks = [(block, RowSums(block.name, block.sketch)) for block in memory.parts]
        sums = [each for _, rows in self.blocks for each in (*rows.sums(), self.scale(rows.size))]
        self.sums = Sums([self.count(), *sums])

    @staticmethod
    def require_possible(memory: GradientMemory) -> None:
        """Raise ValueError for a memory that cannot be released with noise."""
        if not RowSums.possible(memory.sketch):
            raise ValueError(
                f"a {type(memory.sketch).__name__} keeps rows, or does not add up, so that noise cannot be added to "
                "it once. With privacy= use so.ProductSketch(rank), so.GradientSketch(rank) or so.LayerMemory(rank)"
            )
        if memory.power:
            raise ValueError("with privacy= all examples weigh the same; leave power= out")

    def stage(self, inputs: Any, targets: Any, weights: Tensor) -> Commit:
        """See `Release`."""
        memory, model = self.memory, self.memory.parameters.model
        output = every_logit if memory.every else memory.signals.output
        with evaluating(model):
            call = Call.of(model, inputs, targets, output)
        require_alone(call, output, outputs_of(call, output))
        if memory.every:
            # Signs of logits are drawn for each example: were they those of its place, one more would change others.
            numbers = (uniform(len(weights)) * (1 << 30)).long().to(self.device)
            inputs, targets = call.inputs, {"number": numbers, "counted": call.counted}
        chunks = list(memory.signals.chunks(inputs, targets))
        for rows in chunks:
            memory.parts[0].sketch.require_finite(rows[:, memory.parts[0].place])
            for block in memory.parts[1:]:
                block.sketch.require_finite(rows[:, block.place])

        def commit() -> None:
            self.sums[EXAMPLES].add_(weights.sum())
            start = 0
            for rows in chunks:
                own = weights[start : start + len(rows)]
                for block, sums in self.blocks:
                    sums.add(self.sums, rows[:, block.place], own)
                start += len(rows)

        return commit

    def _take(self, found: dict[str, Noisy], weight: float) -> list[str]:
        spread = isinstance(self.memory.rule, Pull)
        estimates = {rows.name: rows.estimate(found, weight, self.unit.most, spread) for _, rows in self.blocks}
        self.memory.add_estimates(estimates, self.examples(weight))
        return [name for name, estimate in estimates.items() if not estimate.seen]
