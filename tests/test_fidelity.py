"""What protection promises: predicted changes of remembered outputs are those measured, a small part of the benchmark.

`benchmarks/fidelity.py` has sixteen networks; here are those that show it fastest, at full rank.
"""

import pytest

from benchmarks.fidelity import NETWORKS, ratios


@pytest.mark.parametrize("name", ["MLP", "CNN, global pooling", "ViT", "GRU, written out"])
def test_predictions_for_displacements_of_training_are_right(name):
    found = ratios(*NETWORKS[name], rank=1000)["training"]
    layers = [ratio for layer, ratio in found.items() if layer != "together"]
    assert len(layers) >= 3
    assert all(0.25 < ratio < 4 for ratio in layers), found
    assert sum(0.5 < ratio < 2 for ratio in layers) >= 0.9 * len(layers), found
    assert 0.2 < found["together"] < 5


def test_single_positions_predict_far_too_little_where_weights_are_shared():
    found = ratios(*NETWORKS["CNN, global pooling"], rank=1000, curvature="positions")["training"]
    assert max(found.values()) > 20
