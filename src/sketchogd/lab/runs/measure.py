"""What is measured of a learner when its run ends: its own `measurements`, and those registered here by others.

The arrays become spectra.npz in the run's folder.
"""

from collections.abc import Callable

import numpy as np

from sketchogd.lab.methods.learner import Learner

Measurement = Callable[[Learner], dict[str, np.ndarray]]
"""The arrays that a measurement finds, by name; none for a learner that it does not apply to."""

MEASUREMENTS: list[Measurement] = []
"""Every registered measurement, in the order in which they are made."""


def register_measurement(measurement: Measurement) -> Measurement:
    """Make this measurement at the end of every run as well; usable as a decorator."""
    MEASUREMENTS.append(measurement)
    return measurement


def measured(learner: Learner) -> dict[str, np.ndarray]:
    """All arrays that are measured of a learner, by name."""
    arrays = dict(learner.measurements())
    for measurement in MEASUREMENTS:
        arrays |= measurement(learner)
    return arrays
