"""Dividing a budget's rows: so many for each side of each layer that the error of the whole is least.

What a side lacks at rank r, of its spectrum λ as the first examples show it:

    E(r) = Σ_{j > r} |λ_j − m|,    m the mean of these λ_j, which stands for them, or 0 where nothing does,

as a share of Σ λ, and times the layer's share of the energy of all layers. A flat spectrum is its mean, and gets next
to no rows; a steep one gets them as long as they pay. The ranks minimise Σ E(r) + μ · bytes(r), with the smallest price
μ per byte at which all fit. Letters: d row length, r rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

SMALLEST = 4
"""No side gets fewer rows."""

STEPS = 96
"""About so many ranks are compared per side."""

WIDER = 4
"""The spectra are read off sketches of so many times the even rank."""

PROBED = 512
"""Spectra are those of about so many examples."""

PROBING = 2
"""And of so many combinations of the logits of each."""


@dataclass(frozen=True)
class Division:
    """What is to be divided.

    Args:
        nbytes: for all sides, with what the anchor and corrections take.
        copies: bytes per coordinate of the anchor and of corrections; 0 where they do not depend on ranks.
    """

    nbytes: int
    copies: int = 0


@dataclass(frozen=True, eq=False)
class Side:
    """The inputs or the outputs of a layer.

    Args:
        name: as in files, such as "fc.inputs".
        d: length of a row.
        values: the largest λ, in descending order.
        energy: Σ λ, of directions known or not.
        share: of the energy of all layers.
        copies: bytes of copies per row.
        dropped: whether nothing stands for what has no row.
        itemsize: bytes per number of a sketch.
    """

    name: str
    d: int
    values: Tensor
    energy: float
    share: float
    copies: int = 0
    dropped: bool = False
    itemsize: int = 4

    @cached_property
    def ranks(self) -> Tensor:
        """The ranks to choose from."""
        top = min(self.d, max(SMALLEST, len(self.values)))
        low = min(SMALLEST, self.d)
        steps = torch.logspace(0, 1, STEPS, base=max(top, 2) / low, dtype=torch.float64) * low
        return torch.cat([steps.round().long().clamp(low, top), torch.tensor([top])]).unique()

    @cached_property
    def errors(self) -> Tensor:
        """E(r) of these ranks."""
        values = self.values.double().cpu()
        beyond = max(0.0, self.energy - float(values.sum()))
        unknown = self.d - len(values)
        each = beyond / unknown if unknown else 0.0
        found = []
        for r in self.ranks.tolist():
            rest = values[r:]
            left = float(rest.sum()) + beyond
            mean = 0.0 if self.dropped or r >= self.d else left / (self.d - r)
            found.append(float((rest - mean).abs().sum()) + unknown * abs(each - mean))
        return torch.tensor(found, dtype=torch.float64) * (self.share / max(self.energy, 1e-300))

    @cached_property
    def bytes(self) -> Tensor:
        """Of these ranks: an exact second moment (d, d), or rows with their factor and values; and the copies."""
        r, d = self.ranks.double(), self.d
        rows = self.itemsize * (r * d + r * r) + 8 * r
        return torch.where(r >= d, torch.as_tensor(self.itemsize * d * d + 8.0 * d), rows) + self.copies * r

    def best(self, price: float) -> int:
        """The index of the rank with the least error and price; the smaller of equals."""
        return int((self.errors + price * self.bytes).argmin())


def divided(sides: Sequence[Side], nbytes: int) -> dict[str, int] | None:
    """Ranks by side that fit into so many bytes; None where the smallest do not.

    >>> steep, flat = torch.tensor([100.0, 50.0, 25.0, 12.0, 6.0, 3.0, 2.0, 1.0]), torch.ones(8)
    >>> divided([Side("a", 8, steep, 199.0, 0.5), Side("b", 8, flat, 8.0, 0.5)], 560)
    {'a': 8, 'b': 4}
    """

    def taken(price: float) -> float:
        return sum(float(side.bytes[side.best(price)]) for side in sides)

    if taken(float("inf")) > nbytes:
        return None
    low, high = 1e-18, 1.0
    if taken(low) > nbytes:
        for _ in range(60):
            price = (low * high) ** 0.5
            low, high = (price, high) if taken(price) > nbytes else (low, price)
    else:
        high = low
    return {side.name: int(side.ranks[side.best(high)]) for side in sides}
