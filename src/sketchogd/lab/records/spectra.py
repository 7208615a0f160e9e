"""Singular values of remembered gradients as a run has them: all of them, or those at a few indices.

The arrays of a run (`Run.spectra`) are `singular_values`, descending; `index`, the index of each counted from 1, if
some are left out; and `stable_rank`, ‖G‖_F²/‖G‖₂².
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

POINTS = 300
"""Number of points that a figure needs at most, evenly spaced on a logarithmic axis."""


@dataclass(frozen=True)
class Spectrum:
    """Singular values at the indices `index` (counted from 1), and the stable rank."""

    index: np.ndarray
    values: np.ndarray
    stable_rank: float


def read(arrays: Mapping[str, np.ndarray]) -> Spectrum | None:
    """The spectrum in the arrays of a run; None if there is none, or if it is not one.

    Its values must be finite and positive at the first of their indices, which must rise.
    """
    s = np.asarray(arrays.get("singular_values", ()), dtype=float).ravel()
    index = np.asarray(arrays.get("index", np.arange(1, len(s) + 1)))
    if not len(s) or not np.isfinite(s).all() or s[0] <= 0 or index.shape != s.shape:
        return None
    rank = np.asarray(arrays.get("stable_rank", np.sum(s**2) / s[0] ** 2), dtype=float)
    rising = index[0] > 0 and (np.diff(index) > 0).all() and index[-1] < 2**53
    if not rising or rank.size != 1 or not np.isfinite(rank).all():
        return None
    return Spectrum(index, s, rank.item())


def mean_spectrum(runs: Iterable[Mapping[str, np.ndarray]]) -> Spectrum | None:
    """Means over the runs that have a spectrum, cut to the length of the shortest; None if no run has one."""
    found = [each for arrays in runs if (each := read(arrays)) is not None]
    if not found:
        return None
    shortest = min((each.index for each in found), key=len)
    same = [each for each in found if np.array_equal(each.index[: len(shortest)], shortest)]
    values = np.mean([each.values[: len(shortest)] for each in same], axis=0)
    return Spectrum(shortest, values, float(np.mean([each.stable_rank for each in same])))


def thinned(found: Spectrum) -> Spectrum:
    """At most `POINTS` of the values, among them the first and the last; thinning a second time changes nothing."""
    wanted = np.unique(np.geomspace(1, found.index[-1], POINTS).round().astype(int))
    kept = np.isin(found.index, wanted)
    return Spectrum(found.index[kept], found.values[kept], found.stable_rank)
