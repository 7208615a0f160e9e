"""A protection's privacy account: who may release, what is spent, and what a memory would have to be to be released."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import ProtectionError
from ..memory import GradientMemory, LayerMemory, Memory
from .gradients import GradientRelease
from .guarantee import Guarantee
from .layers import LayerRelease
from .release import Release
from .settings import Privacy

RELEASES: dict[type[Memory], Callable[..., Release]] = {LayerMemory: LayerRelease, GradientMemory: GradientRelease}
"""How each kind of memory is released."""


class Account:
    """The settings of a guarantee and what was released so far.

    Args:
        privacy: the settings.
    """

    def __init__(self, privacy: Privacy) -> None:
        self.privacy = privacy
        self.guarantee = Guarantee(privacy.delta, **_unit(privacy))
        self.noise = privacy.noise  # now, so that a missing accountant is known before anything is trained

    def require_possible(self, memory: Memory, model: nn.Module) -> None:
        """Raise ValueError for a memory that cannot be released with noise, or a model that mixes examples."""
        if isinstance(memory, LayerMemory):
            LayerRelease.require_possible(memory)
        elif isinstance(memory, GradientMemory):
            GradientRelease.require_possible(memory)
        else:
            raise ValueError(f"a {type(memory).__name__} has no private form; use so.LayerMemory or so.ProductSketch")
        mixing = [
            name
            for name, module in model.named_modules()
            if isinstance(module, _BatchNorm) and module.running_mean is None
        ]
        if mixing:
            raise ValueError(
                f"{', '.join(mixing[:5])}: without running statistics the outputs of an example depend on its batch, "
                "and nothing bounds what one example adds. Use track_running_stats=True, or LayerNorm"
            )

    def begin(self, memory: Memory) -> Release:
        """Empty sums for a task. Raises ProtectionError where the budget is spent."""
        self.require_left()
        return RELEASES[type(memory)](memory, self.privacy.unit)

    def require_left(self) -> None:
        """Raise ProtectionError unless one more release stays within ε."""
        privacy = self.privacy
        if not privacy.disjoint and self.guarantee.releases >= privacy.releases:
            raise ProtectionError(
                f"the privacy budget is spent: {self.guarantee}, and one more release would exceed ε = "
                f"{privacy.epsilon:g}. Give so.Privacy the number of tasks, releases=…, or disjoint=True if no "
                f"{'example' if privacy.unit.most == 1 else 'user'} is in two of them"
            )

    def charge(self) -> None:
        """Count a release; before it is made, so that an error can only count too much."""
        self.guarantee = self.guarantee.released(self.noise, self.privacy.disjoint)

    def weighed(self, batches: Iterable[Any]) -> Iterable[tuple[Any, Any]]:
        """Batches with the weights of their examples."""
        return self.privacy.unit.weighed(batches)

    def require_same_unit(self, guarantee: Guarantee | None) -> Guarantee:
        """The guarantee of another memory. Raises ValueError where it has none, or one for another unit."""
        if guarantee is None:
            raise ValueError(
                "that memory has no privacy guarantee, and together with it this one would have none. Use a "
                "protection without privacy=, or remember its data with privacy="
            )
        self.guarantee.composed(guarantee)
        return guarantee


def _unit(privacy: Privacy) -> dict[str, Any]:
    settings = privacy.unit.settings()
    return {"unit": settings["unit"], "examples": privacy.unit.most}
