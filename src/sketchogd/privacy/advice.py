"""How many examples a task needs for a direction with some share of the energy to be seen above the noise.

A direction with the share s of the energy of n examples has the eigenvalue ℓ = n s. In noise of standard deviation σ it
is seen from ℓ = σ √(d/2) on, and cos² of the angle to what is seen is 1 − σ² d / (2 ℓ²) (Capitaine, Donati-Martin,
Féral 2009). At ℓ = σ √d half of it is right. How the noise is divided among the sums is in `sums`; d is the row length.
"""

from ..memory import GradientMemory, LayerMemory
from .account import RELEASES
from .settings import Privacy


def examples_needed(memory: LayerMemory | GradientMemory, privacy: Privacy, share: float = 0.1) -> dict[str, int]:
    """About how many examples of a task show a direction with this share of a sketch's energy half right, by sketch.

    The errors of a guarantee go down with the number of examples, not with its root: twice as many examples are as good
    as half the noise.

    Args:
        memory: bound to a model; what it remembers does not matter.
        privacy: the guarantee.
        share: between 0 and 1.

    Raises:
        ValueError: the share is not between 0 and 1.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share is that of a direction in all energy, between 0 and 1; got {share!r}")
    sums = RELEASES[type(memory)](memory, privacy.unit).sums
    shares = sums.shares()
    return {
        each.name: round(privacy.noise / shares[each.name] ** 0.5 * each.size**0.5 / share * privacy.unit.most)
        for each in sums.sums
        if each.size > 1
    }


def hidden(names: list[str]) -> str:
    """What is to be said of sketches of which noise hides every direction."""
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return (
        f"at this ε noise hides all directions of {shown}: what is remembered of these has no directions, and protects "
        "them all alike or none. Remember more examples (sketchogd.privacy.examples_needed says how many), choose a "
        "larger epsilon, or protect fewer layers with parameters="
    )
