"""`audit`: attack a memory, say how well that works, and what the same attacks do without the memory."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...model.batches import limited, map_tensors
from ...model.calls import Takes
from ..guarantee import Guarantee
from . import membership, reconstruction
from .reconstruction import Reconstruction
from .scores import Attack, allowed, allowed_area, likelihood_ratios

if TYPE_CHECKING:
    from ...protection import Protection

SHOWN = 8
"""Pictures per attack."""


@dataclass(frozen=True)
class Audit:
    """What attacks on a memory achieve. Print it, or take the numbers from `rows()`.

    Args:
        attacks: on membership; "weights alone" is the same attack without the memory.
        reconstructions: of inputs, empty where no layer sees whole inputs.
        guarantee: that of the memory, if it has one.
        members: inputs of members that pictures are compared with, flattened.
        shape: of one input.
    """

    attacks: tuple[Attack, ...]
    reconstructions: tuple[Reconstruction, ...]
    guarantee: Guarantee | None
    members: Tensor = field(repr=False)
    shape: tuple[int, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """Plain numbers, a mapping per attack."""
        found: list[dict[str, Any]] = []
        for attack in self.attacks:
            row = {"attack": f"membership, {attack.name}", "area": attack.area, "error": attack.error}
            row |= {f"tpr at {rate:g}": tpr for rate, tpr in attack.rates.items()} | {"advantage": attack.advantage}
            found.append(row)
        for each in self.reconstructions:
            row = {"attack": f"reconstruction, {each.name}", "candidates": len(each.candidates), "share": each.share}
            if len(each.candidates):
                row |= {"to members": float(each.members.mean()), "to others": float(each.others.mean())}
            found.append(row)
        return found

    def bound(self) -> dict[str, float] | None:
        """The most that any attack on membership can achieve; None without a guarantee."""
        if self.guarantee is None:
            return None
        epsilon, delta = self.guarantee.epsilon, self.guarantee.delta
        rates = self.attacks[0].rates
        return {"area": allowed_area(epsilon, delta)} | {
            f"tpr at {rate:g}": allowed(epsilon, delta, rate) for rate in rates
        }

    def __str__(self) -> str:
        lines = []
        for row in self.rows():
            numbers = ", ".join(f"{k} {v:.3f}" for k, v in row.items() if isinstance(v, float))
            lines.append(f"{row['attack']}: {numbers}")
        bound = self.bound()
        if bound is not None:
            lines.append(f"{self.guarantee} allows: " + ", ".join(f"{k} {v:.3f}" for k, v in bound.items()))
        return "\n".join(lines)

    def figure(self, path: str | os.PathLike[str]) -> None:
        """Draw the best candidates of each attack above the members nearest to them. Needs matplotlib.

        Raises ValueError where there are no pictures to draw.
        """
        side = self._side()
        shown = [each for each in self.reconstructions if len(each.candidates)]
        if side is None or not shown:
            raise ValueError("there are no pictures: inputs are no images, or no layer sees whole inputs")
        from matplotlib.figure import Figure

        figure = Figure(figsize=(SHOWN, 2.6 * len(shown)))
        for i, each in enumerate(shown):
            for j, best in enumerate(each.members.argsort(descending=True)[:SHOWN].tolist()):
                pair = (
                    _upright(each.candidates[best], self.members[each.nearest[best]]),
                    self.members[each.nearest[best]],
                )
                for k, picture in enumerate(pair):
                    axes = figure.add_subplot(2 * len(shown), SHOWN, (2 * i + k) * SHOWN + j + 1)
                    axes.imshow(picture.view(side).cpu().numpy(), cmap="gray")
                    axes.set_axis_off()
                    if k == 0:
                        axes.set_title(f"{float(each.members[best]):.2f}", fontsize=8)
                    if k == 0 and j == 0:
                        axes.text(0, -0.42 * side[0], f"{each.name}: candidates, the nearest member below", fontsize=8)
        figure.savefig(os.fspath(path), dpi=110, bbox_inches="tight")

    def _side(self) -> tuple[int, int] | None:
        flat = [n for n in self.shape if n > 1]
        return (flat[0], flat[1]) if len(flat) == 2 else None


def audit(
    protection: "Protection",
    members: Iterable[Any],
    others: Iterable[Any],
    *,
    examples: int | None = 2000,
    inputs: bool = True,
    seed: int = 0,
) -> Audit:
    """Attack what a protection keeps, knowing everything but who was remembered: weights, memory, seeds.

    `others` are to come from where the members come from: what tells them apart otherwise, such as their classes, would
    be mistaken for a leak. To see what the memory adds to the weights, take others that were trained on, but not
    remembered.

    Args:
        protection: whose memory is attacked; it stays as it is.
        members: batches that were remembered.
        others: batches that were not.
        examples: how many of each to take at most.
        inputs: whether to look for inputs too, which takes most of the time.
        seed: for the halves of the likelihood ratios, and the starts of the search.
    """
    memory, model = protection.memory, protection.parameters.model
    device, most = protection.parameters.device, Takes.of(model).most
    mine, theirs = (
        [tuple(map_tensors(lambda t: t.to(device), part) for part in pair) for pair in limited(each, examples, most)]
        for each in (members, others)
    )
    if not mine or not theirs:
        raise ValueError("an audit needs examples that were remembered and others that were not")
    of_memory = [membership.features(memory, each) for each in (mine, theirs)]
    of_weights = [membership.of_weights(model, each) for each in (mine, theirs)]
    both = [torch.cat(pair, 1) for pair in zip(of_memory, of_weights, strict=True)]
    named = {"memory": of_memory, "weights alone": of_weights, "memory and weights": both}
    attacks = [Attack.of(name, *likelihood_ratios(each[0], each[1], seed)) for name, each in named.items()]
    own, shape = _flat(mine)
    theirs_flat, _ = _flat(theirs)
    reconstructions = []
    found = None if own is None or not inputs else reconstruction.first_linear(memory, own.shape[1])
    if found is not None and own is not None and theirs_flat is not None:
        layer, weight = found
        for name, candidates in (
            ("memory", reconstruction.of_memory(memory, layer, weight, seed)),
            ("weights alone", reconstruction.of_weights(weight)),
        ):
            if len(candidates):
                reconstructions.append(reconstruction.judged(name, candidates, own, theirs_flat))
    kept = torch.zeros(0, 0) if own is None else own
    return Audit(tuple(attacks), tuple(reconstructions), protection.privacy, kept, shape)


def _flat(batches: Any) -> tuple[Tensor | None, tuple[int, ...]]:
    """All inputs as rows, and the shape of one; None where inputs are no tensor of numbers."""
    if not all(isinstance(x, Tensor) and x.is_floating_point() for x, _ in batches):
        return None, ()
    whole = torch.cat([x for x, _ in batches])
    return whole.flatten(1).double(), tuple(whole.shape[1:])


def _upright(candidate: Tensor, like: Tensor) -> Tensor:
    """With the sign that correlates with a picture."""
    return candidate * torch.sign(((candidate - candidate.mean()) * (like - like.mean())).sum())
