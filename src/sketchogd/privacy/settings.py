"""`Privacy`: the guarantee that a memory is to have, as settings."""

from dataclasses import dataclass, field

from .mechanism.accounting import noise_multiplier
from .units import Example, Unit


@dataclass(frozen=True)
class Privacy:
    """What is kept of a task is differentially private: whoever has it learns next to nothing of a single example.

    For any two data sets D and D' that differ by one unit, which is in one of them only, and any set S of what may be
    kept, P(kept(D) ∈ S) ≤ e^ε P(kept(D') ∈ S) + δ. Not covered are the weights, and what follows from them
    (docs/privacy.md).

    Args:
        epsilon: ε > 0 of all releases together; 1 is strong, 10 is weak.
        delta: δ in (0, 1), well below one over the number of examples.
        releases: how many calls of `remember` the budget pays for; each of them is a release.
        disjoint: say that no unit is in more than one call of `remember`. Each call then has all of ε, and there may be
            any number of them. If it is not true, neither is the guarantee.
        unit: `Example()` or `User(examples)`.
    """

    epsilon: float
    delta: float
    releases: int = 1
    disjoint: bool = False
    unit: Unit = field(default_factory=Example)

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < float("inf"):
            raise ValueError(f"epsilon is a positive number, such as 3.0; got {self.epsilon!r}")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta is between 0 and 1 and well below 1 / examples, such as 1e-5; got {self.delta!r}")
        if isinstance(self.releases, bool) or not isinstance(self.releases, int) or self.releases < 1:
            raise ValueError(f"releases is the number of calls of remember, at least 1; got {self.releases!r}")
        if self.disjoint and self.releases != 1:
            raise ValueError("with disjoint=True each call of remember has all of ε: leave releases= out")

    @property
    def noise(self) -> float:
        """z of each release: the standard deviation of the noise over what a unit can change, jointly for all sums."""
        return noise_multiplier(self.epsilon, self.delta, self.releases)
