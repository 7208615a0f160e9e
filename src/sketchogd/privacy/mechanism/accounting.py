"""The accountant: what ε several Gaussian mechanisms have together, all of it by Google's dp-accounting.

The mechanism is the same everywhere: a vector to which one unit of privacy adds at most 1 in Euclidean norm, plus
normal noise of standard deviation z, the noise multiplier, in every coordinate (`sums`).
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

TOLERANCE = 1e-4
"""By how much a calibrated noise multiplier may be larger than needed."""

GRID = 1e-4
"""Privacy losses are rounded up to multiples of this share of ε."""


def library() -> Any:
    """The module `dp_accounting`. Raises ImportError, with what to install, where it is missing."""
    try:
        import dp_accounting
        from dp_accounting import pld
    except ImportError as error:
        raise ImportError(
            'a privacy guarantee needs the accountant of dp-accounting: pip install "sketchogd[privacy]"'
        ) from error
    assert pld
    return dp_accounting


@lru_cache(maxsize=64)
def noise_multiplier(epsilon: float, delta: float, releases: int) -> float:
    """The smallest z with which so many releases of the same data together are (ε, δ)-differentially private."""
    dp = library()

    def event(z: float) -> Any:
        return dp.SelfComposedDpEvent(dp.GaussianDpEvent(z), releases)

    # That of one mechanism, times √releases, is close: the accountant is asked a few times only.
    guess = dp.get_sigma_gaussian(epsilon, delta) * releases**0.5
    bracket = dp.ExplicitBracketInterval(0.99 * guess, 1.05 * guess)
    tolerance = TOLERANCE * guess
    return float(
        dp.calibrate_dp_mechanism(
            lambda: _accountant(epsilon, False), event, epsilon, delta, bracket_interval=bracket, tol=tolerance
        )
    )


def _accountant(epsilon: float, replace: bool) -> Any:
    """For ε about this large: losses are rounded up to multiples of a small share of it, and never understated."""
    dp = library()
    relation = dp.NeighboringRelation
    return dp.pld.PLDAccountant(
        relation.REPLACE_ONE if replace else relation.ADD_OR_REMOVE_ONE,
        value_discretization_interval=max(1e-4, GRID * epsilon),
    )


def epsilon_of(noise: Sequence[float], delta: float, *, replace: bool = False) -> float:
    """ε of releases with these noise multipliers, all of the same data.

    Args:
        noise: one multiplier per release; without any ε is 0.
        delta: δ.
        replace: for data sets in which one unit is replaced by another, instead of added or removed: its sums differ by
            2 in place of 1.
    """
    return _epsilon(tuple(sorted(noise)), delta, replace) if noise else 0.0


@lru_cache(maxsize=256)
def _epsilon(noise: tuple[float, ...], delta: float, replace: bool) -> float:
    dp = library()
    about = dp.get_epsilon_gaussian(sum(z**-2 for z in noise) ** -0.5 / (2 if replace else 1), delta)
    accountant = _accountant(about, replace)
    for z in noise:
        accountant.compose(dp.GaussianDpEvent(z))
    return float(accountant.get_epsilon(delta))
