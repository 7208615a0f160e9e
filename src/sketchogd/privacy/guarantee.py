"""`Guarantee`: what was released, with how much noise, and what that amounts to. Files carry it, merging adds it up."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .. import schema
from ..errors import StorageError
from .mechanism.accounting import epsilon_of

NOT_COVERED = (
    "the weights, the anchor (a copy of weights), running statistics, and whatever follows from these; private "
    "training, as with Opacus, covers them"
)

Groups = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Guarantee:
    """The releases that a memory is made of, as noise multipliers, and the ε that they have together.

    Args:
        delta: δ.
        unit: "example" or "user".
        groups: noise multipliers of the releases. A unit takes part in at most one release of each group, and may be in
            every group.
        examples: how many examples of a user count in a release.
    """

    delta: float
    unit: str = "example"
    groups: Groups = ()
    examples: int = 1

    @property
    def epsilon(self) -> float:
        """ε spent, for a unit that is added or removed; 0 before the first release."""
        return epsilon_of([min(group) for group in self.groups], self.delta)

    @property
    def epsilon_replaced(self) -> float:
        """ε for data sets in which a unit is replaced by another one."""
        return epsilon_of([min(group) for group in self.groups], self.delta, replace=True)

    @property
    def releases(self) -> int:
        """How many times noise was added and sums were released."""
        return sum(map(len, self.groups))

    @property
    def covered(self) -> str:
        """What the guarantee is for."""
        return "all sketches, counts, spectra and numbers of examples that the memory keeps"

    @property
    def not_covered(self) -> str:
        """What it says nothing of."""
        return NOT_COVERED

    def released(self, noise: float, disjoint: bool) -> "Guarantee":
        """After one more release, of units that are in no other one if `disjoint`."""
        if disjoint and self.groups:
            *before, last = self.groups
            return replace(self, groups=(*before, (*last, noise)))
        return replace(self, groups=(*self.groups, (noise,)))

    def composed(self, other: "Guarantee") -> "Guarantee":
        """Of two memories together, a unit being possibly in both.

        Raises ValueError for guarantees of other units.
        """
        if (self.unit, self.examples) != (other.unit, other.examples):
            raise ValueError(
                f"the guarantees are for other units of privacy: {self.said_unit} and {other.said_unit}. Remember with "
                "the same unit= in so.Privacy"
            )
        return replace(self, delta=max(self.delta, other.delta), groups=self.groups + other.groups)

    @property
    def said_unit(self) -> str:
        """The unit in words."""
        return "an example" if self.unit == "example" else f"a user of up to {self.examples} examples"

    def __str__(self) -> str:
        return self.said(self.epsilon)

    def said(self, epsilon: float) -> str:
        """The guarantee in words, with this ε."""
        return (
            f"(ε = {epsilon:.3g}, δ = {self.delta:g})-differentially private for {self.said_unit} that is added "
            f"or removed, over {self.releases} release{'' if self.releases == 1 else 's'}"
        )

    # ---------------------------------------------------------------- files

    def meta(self) -> dict[str, Any]:
        """Plain data for a file."""
        return {
            "delta": self.delta,
            "unit": self.unit,
            "examples": self.examples,
            "noise": [list(group) for group in self.groups],
            "epsilon": self.epsilon,
        }

    @staticmethod
    def of(meta: Mapping[str, Any]) -> "Guarantee | None":
        """The guarantee that the metadata of a file states; None where it states none.

        Raises StorageError where that is damaged.
        """
        if "privacy" not in meta:
            return None
        said = meta["privacy"]
        FORM(said, "privacy")
        if any(not group for group in said["noise"]):
            raise StorageError("privacy.noise has an empty group of releases; the file is damaged")
        groups = tuple(tuple(float(z) for z in group) for group in said["noise"])
        return Guarantee(float(said["delta"]), said["unit"], groups, int(said["examples"]))


FORM = schema.record(
    {
        "delta": schema.number(1e-300, 1.0),
        "unit": schema.word("example", "user"),
        "examples": schema.whole(1),
        "noise": schema.many(schema.many(schema.number(1e-6, 1e12))),
        "epsilon": schema.number(0.0),
    }
)
"""What files say of a guarantee. `epsilon` is what the accountant said when it was written, for whoever has none."""


def described(meta: Mapping[str, Any]) -> str | None:
    """What the metadata of a file says of its guarantee, in words; None where it has none.

    Without the accountant ε is the one that stands in the file.
    """
    guarantee = Guarantee.of(meta)
    if guarantee is None:
        return None
    try:
        epsilon = guarantee.epsilon
    except ImportError:
        epsilon = float(meta["privacy"]["epsilon"])
    return f"{guarantee.said(epsilon)}; not covered: {guarantee.not_covered}"
