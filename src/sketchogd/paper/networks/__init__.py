"""Networks people use: every method in the same bytes, tuned with equally many tries on held-out training data.

* `tries`: the settings that are tried for each method, and which of them was chosen
* `experiments`: tuning, the comparison, long streams, one pass and ablations
"""

from sketchogd.paper.networks.experiments import (
    class_incremental,
    long_streams,
    networks,
    networks_ablations,
    networks_tuning,
    one_pass,
)

EXPERIMENTS = (*("networks-tuning", "networks", "class-incremental", "long-streams", "one-pass", "networks-ablations"),)
"""Their names, in the order in which they are done."""

__all__ = [
    "EXPERIMENTS",
    "class_incremental",
    "long_streams",
    "networks",
    "networks_ablations",
    "networks_tuning",
    "one_pass",
]
