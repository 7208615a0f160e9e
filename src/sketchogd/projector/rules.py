"""Rules: the three ways to protect what is remembered.

`Project` forbids directions (the paper's), `Shrink` scales each update down once, `Pull` draws weights back to an
anchor in balance with the new loss. A rule turns the eigenpairs that a memory knows into a projector, and says whether
that needs an anchor and how it is stored. Letters: λ eigenvalues, α the share of an update that is removed.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..sketch.columns import UNSPLIT, Columns
from .base import Anchor, Projector
from .basis import BasisProjector, PullingBasis
from .kronecker import LayerProjector, LayerSpectra, PullingLayer, ShrinkingLayer, soft_weights

STRENGTH, DAMPING = 2.0, 0.05
"""The usual weight of remembered outputs, in their own units, and of all output directions: see `Pull`."""


@dataclass(eq=False)
class BasisSpectra:
    """What is known of gradients: a basis of their span with its eigenvalues.

    Args:
        basis: orthonormal rows B (r, p).
        values: λ (r,) of Σ g gᵀ.
        mean: the mean λ over all p directions.
        outside: the mean λ of the directions outside of the basis.
        dtype: in which updates are projected; a basis may be kept in fewer bits.
        gram_inverse: see `BasisProjector`.
        columns: see `BasisProjector`.
    """

    basis: Tensor
    values: Tensor
    mean: float = 0.0
    outside: float = 0.0
    dtype: torch.dtype = torch.float32
    gram_inverse: Tensor | None = None
    columns: Columns = UNSPLIT

    def placed(self, numbers: Tensor) -> Tensor:
        """Numbers (r,), one per row of the basis, where and as updates are projected."""
        return numbers.to(self.basis.device, self.dtype)


class Rule(ABC):
    """How what is remembered becomes a projector."""

    @property
    def anchor(self) -> Anchor | None:
        """How the weights that are pulled back to are stored; None where there is nothing to pull back to."""
        return None

    def with_usual(self, strength: float) -> "Rule":
        """The rule with a memory's usual strength where it needs one and none was given."""
        return self

    @abstractmethod
    def on_basis(self, spectra: BasisSpectra, weight: float) -> Projector:
        """The projector on the basis of a sketch of gradients.

        `weight` is what a square change of an output of an example weighs in the mean over examples, per task.
        """

    @abstractmethod
    def on_layer(self, spectra: LayerSpectra, weight: float) -> LayerProjector:
        """The projector of a layer; `weight` as in `on_basis`, for a logit of an example."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The keywords from which `rule_from` makes an equal rule."""


@dataclass(frozen=True)
class Project(Rule):
    """Hard: Δw ← (I − BᵀB) Δw, as in the paper. Directions that are remembered are no longer free to learn with."""

    def on_basis(self, spectra: BasisSpectra, weight: float) -> BasisProjector:
        """See `Rule`."""
        return BasisProjector(spectra.basis, None, spectra.gram_inverse, spectra.columns)

    def on_layer(self, spectra: LayerSpectra, weight: float) -> ShrinkingLayer:
        """See `Rule`."""
        return ShrinkingLayer(spectra, ridge=0.0)

    def settings(self) -> dict[str, Any]:
        """See `Rule`."""
        return {"ridge": 0.0}


@dataclass(frozen=True)
class Shrink(Rule):
    """Soft: each update is shrunk once, α = λ / (λ + ridge · mean λ), as SGP (Saha, Roy 2023) scales GPM's projection.

    Args:
        ridge: 0 is hard, larger is softer.
        energy: of each layer only the largest products λδ λa that hold this share of their sum count. With ridge=0,
            energy=0.99 and a layer memory of inputs only this is GPM (Saha et al. 2021), streaming.
    """

    ridge: float
    energy: float = 1.0

    def __post_init__(self) -> None:
        if not self.ridge >= 0:
            raise ValueError(f"ridge is a number >= 0 (0 projects hard); got {self.ridge!r}")
        require_share(self.energy)

    def on_basis(self, spectra: BasisSpectra, weight: float) -> BasisProjector:
        """See `Rule`; `energy` is for layers."""
        if self.ridge == 0:
            return BasisProjector(spectra.basis, None, spectra.gram_inverse, spectra.columns)
        alpha = soft_weights(spectra.values, self.ridge, spectra.mean)
        return BasisProjector(spectra.basis, spectra.placed(alpha), spectra.gram_inverse, spectra.columns)

    def on_layer(self, spectra: LayerSpectra, weight: float) -> ShrinkingLayer:
        """See `Rule`."""
        return ShrinkingLayer(spectra, self.ridge, self.energy)

    def settings(self) -> dict[str, Any]:
        """See `Rule`."""
        return {"ridge": float(self.ridge), "energy": float(self.energy)}


@dataclass(frozen=True)
class Pull(Rule):
    """Weights are pulled back to where they were when the projector was made, their anchor.

    Training then descends on the new loss + strength/2 · the mean square change of remembered outputs, summed over
    tasks: a balance that forbids no direction. It is the quadratic penalty of the Laplace approximation (Ritter, Botev,
    Barber 2018, with Kronecker factors), on outputs in place of losses, applied as an implicit step.

    Args:
        strength: weight of remembered outputs against the new loss; None for the memory's usual one. A layer memory
            measures changes against the spread of the outputs, Σ (z − z̄)², and counts each layer's as many times as
            there are layers, since they move outputs together: with a strength of 3 and L layers, of which each alone
            would change all outputs by a share x of their spread, these changes count 3 / 2 · L² x² in the loss. A
            gradient memory, and a layer memory with `curvature="positions"`, measure single changes in the outputs'
            own units.
        damping: in a layer memory, this share of the largest sensitivity is added to every output direction, for what
            later layers may come to read there.
        anchor_dtype: "int8" keeps the anchor in one byte per weight, None in the dtype of the weights. "span", for
            layer memories, keeps its coordinates in the directions that the sketches hold, in half precision: far
            fewer bytes where ranks are small, and nothing is pulled outside of these directions.
    """

    strength: float | None = None
    damping: float = DAMPING
    anchor_dtype: str | None = None

    def __post_init__(self) -> None:
        given = STRENGTH if self.strength is None else self.strength
        if not (given > 0 and math.isfinite(given)) or not self.damping >= 0:
            raise ValueError(
                f"strength is a number > 0 and damping one >= 0; got {self.strength!r} and {self.damping!r}"
            )
        if self.anchor_dtype not in (None, "int8", "span"):
            raise ValueError(f'anchor_dtype is "int8", "span", or None for that of weights; got {self.anchor_dtype!r}')

    @property
    def anchor(self) -> Anchor:
        """See `Rule`."""
        return Anchor(self.anchor_dtype)

    def with_usual(self, strength: float) -> "Pull":
        """See `Rule`."""
        return replace(self, strength=strength) if self.strength is None else self

    def _scaled(self, weight: float) -> float:
        return weight * (STRENGTH if self.strength is None else self.strength)

    def on_basis(self, spectra: BasisSpectra, weight: float) -> PullingBasis:
        """See `Rule`; `damping` is for layers."""
        weight = self._scaled(weight)
        pull, elsewhere = spectra.placed(weight * spectra.values), weight * spectra.outside
        return PullingBasis(spectra.basis, pull, elsewhere, self.anchor, spectra.gram_inverse, spectra.columns)

    def on_layer(self, spectra: LayerSpectra, weight: float) -> PullingLayer:
        """See `Rule`."""
        everywhere = 0.0 if spectra.output_values is None else self.damping * float(spectra.output_values.max())
        if self.anchor.in_span and not spectra.whole:
            # Nothing is known of the displacement outside of the directions that coordinates are in.
            spectra = replace(spectra, unseen_outputs=0.0) if spectra.tokens else replace(spectra, unseen=0.0)
            everywhere = 0.0 if spectra.tokens else everywhere
        return PullingLayer(spectra, self._scaled(weight) * spectra.scale, everywhere)

    def settings(self) -> dict[str, Any]:
        """See `Rule`."""
        pull = {"strength": self._scaled(1.0), "damping": float(self.damping)}
        return {**pull, "anchor_dtype": self.anchor_dtype}


def rule_from(
    rule: Rule | None,
    default: Rule,
    *,
    ridge: float | None = None,
    strength: float | None = None,
    damping: float | None = None,
    energy: float | None = None,
    anchor_dtype: str | None = None,
) -> Rule:
    """A rule from its short form: the keywords of `Project`, `Shrink` and `Pull`.

    Args:
        rule: the rule itself, in which case there are no keywords.
        default: the rule where nothing is given.
        ridge: means `Shrink`, and 0 with all the energy `Project`.
        strength: means `Pull`.
        damping: of a pull.
        energy: of a `Shrink`.
        anchor_dtype: of a pull.

    Raises:
        ValueError: keywords of different rules, or keywords beside a rule.
    """
    given = {"ridge": ridge, "strength": strength, "damping": damping, "energy": energy, "anchor_dtype": anchor_dtype}
    given = {key: value for key, value in given.items() if value is not None}
    if rule is not None:
        if given:
            raise ValueError(f"give rule= or its short form, not both; got {rule!r} and {', '.join(given)}=")
        if not isinstance(rule, Rule):
            raise TypeError(f"rule is so.Project(), so.Shrink(ridge) or so.Pull(strength); got {rule!r}")
        return rule
    if ridge is not None and strength is not None:
        raise ValueError("ridge= is for a fixed soft projection, strength= for a pull to the anchor; give one of them")
    if ridge is not None and anchor_dtype is not None:
        raise ValueError("anchor_dtype= is for the anchor, and with ridge= there is none; leave one of them out")
    if ridge is not None:
        shrink = Shrink(float(ridge), 1.0 if energy is None else float(energy))
        return Project() if (shrink.ridge, shrink.energy) == (0.0, 1.0) else shrink
    if energy is not None:
        require_share(energy)
    if strength is None and not isinstance(default, Pull):
        return default
    return Pull(
        None if strength is None else float(strength),
        DAMPING if damping is None else float(damping),
        anchor_dtype,
    )


def require_share(energy: float) -> None:
    """Raise ValueError unless `energy` is a share in (0, 1]."""
    if not 0 < energy <= 1:
        raise ValueError(f"energy is a share in (0, 1]; got {energy!r}")
