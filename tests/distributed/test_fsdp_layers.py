"""Layer memories of FSDP2 models: those of one process, with whole factors and split anchors and updates."""

import pytest
import torch

from sketchogd.distributed import cost
from sketchogd.sketch import FlatTailSketch

from . import sharded, sharded_behaviour
from .processes import together

TOLERANCE = {"rtol": 1e-7, "atol": 1e-9}
"""Of float64 results that differ in the order of sums, through a few eigendecompositions."""

ADAMW = {"optimizer": "adamw"}
FAST = [
    ("mlp", "mlp", {}),
    ("mlp adamw int8 every 3", "mlp", {**ADAMW, "every": 3, "steps": 7, "memory": "int8"}),
    ("transformer adamw", "transformer", ADAMW),
]
SLOW = [
    ("transformer", "transformer", {}),
    ("transformer adamw every 10", "transformer", {**ADAMW, "every": 10, "steps": 22}),
    ("transformer span", "transformer", {"memory": "span"}),
    *((f"{net} {memory}", net, {"memory": memory}) for net in ("mlp", "gpt2") for memory in sharded.MEMORIES),
    *((f"{net} every 3", net, {"every": 3}) for net in ("transformer", "convolutional")),
    *((f"{net} adamw every 10", net, {**ADAMW, "every": 10, "steps": 22}) for net in ("convolutional", "gpt2")),
    ("transformer int8 adamw every 3", "transformer", {**ADAMW, "every": 3, "steps": 8, "memory": "int8"}),
    *((net, net, {}) for net in ("recurrent", "routed", "convolutional")),
    ("normalised", "normalised", {"steps": 0}),  # training depends on how a batch is dealt out
]
SLOW = [each for each in SLOW if each[0] != "gpt2 span"]  # refused


def _near(expected):
    """None, where weights are not pulled back, is None."""
    return expected if expected is None else pytest.approx(expected, rel=1e-6)


def require_equal(found, wanted, size):
    for key, name, options in wanted:
        expected = sharded.alone(name, size, **options)
        for rank in range(size):
            result, where = found[rank][key], f"{key}, process {rank} of {size}"
            assert result["examples"] == expected["examples"], where
            for part in ("parts", "weights"):
                torch.testing.assert_close(result[part], expected[part], **TOLERANCE, msg=lambda m: f"{where}: {m}")  # noqa: B023
            for part in ("forgetting", "displacement"):
                assert result[part] == _near(expected[part]), where
            assert result["leak"] == pytest.approx(expected["leak"], rel=1e-6, abs=1e-10), where
            assert torch.equal(result["weights"], found[0][key]["weights"]), where


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return together(sharded.runs, 2, tmp_path_factory.mktemp("runs"), FAST)


def test_two_processes_are_one(two):
    require_equal(two, FAST, 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.func cannot")
@pytest.mark.parametrize(("size", "replicas"), [(1, 1), (2, 1), (3, 1), (4, 1), (4, 2), (2, 2)])
def test_every_memory_and_network_is_that_of_one_process(size, replicas, tmp_path):
    """Four processes have weights of three outputs, so that one has none of their rows; replicas are those of HSDP."""
    pytest.importorskip("transformers")
    wanted = [each for each in FAST + SLOW if each[0] != "normalised" or size == 2]
    require_equal(together(sharded.runs, size, tmp_path, wanted, replicas, limit=500), wanted, size)


def test_replicas_of_split_weights_are_one_process(tmp_path):
    """HSDP: two replicas, each split over two processes."""
    wanted = FAST[1:2]
    require_equal(together(sharded.runs, 4, tmp_path, wanted, 2), wanted, 4)


def test_anchors_are_split_as_the_weights_are(two):
    """Of 7, 5 and 3 rows the first of two processes has 4, 3 and 2."""
    rows = 4 * 6 + 4 + 4 + 4 + 3 * 7 + 3 + 2 * 5 + 2
    whole = sum(p.numel() for p in sharded.network("mlp").parameters())
    assert [process["mlp"]["reference"] for process in two] == [8 * rows, 8 * (whole - rows)]


# ---------------------------------------------------------------- files


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored")
    return folder, together(sharded.saved, 3, folder, str(folder), sharded.STORED)


def require_same(found, stored):
    for key, expected in stored[1][0].items():
        torch.testing.assert_close(found[key]["weights"], expected["weights"], **TOLERANCE, msg=lambda m: f"{key}: {m}")  # noqa: B023
        assert found[key]["forgetting"] == pytest.approx(expected["forgetting"], rel=1e-6), key


def test_a_file_of_three_processes_is_loaded_by_one_without_fsdp(stored):
    require_same(sharded.loaded(0, 0, stored[0], sharded.STORED, "file"), stored)


@pytest.mark.parametrize("way", ["file", "checkpoint"])
@pytest.mark.parametrize(
    ("size", "replicas"), [(2, 1), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, 1), (4, 1), (4, 2)))]
)
def test_what_three_processes_saved_others_load(stored, way, size, replicas, tmp_path):
    for found in together(sharded.loaded, size, tmp_path, str(stored[0]), sharded.STORED, way, replicas):
        require_same(found, stored)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["file", "checkpoint"])
def test_what_is_stored_transposed_is_loaded_by_others(way, tmp_path):
    pytest.importorskip("transformers")
    kept = [("gpt2", "int8"), ("gpt2", "pull")]
    stored = tmp_path, together(sharded.saved, 3, tmp_path, str(tmp_path), kept)
    for found in together(sharded.loaded, 2, tmp_path, str(tmp_path), kept, way):
        require_same(found, stored)


# ---------------------------------------------------------------- everything else


@pytest.fixture(scope="module")
def behaviour(tmp_path_factory):
    return together(sharded_behaviour.everything, 2, tmp_path_factory.mktemp("two"))


def alone(memory="pull"):
    net = sharded.network("mlp")
    return net, *sharded_behaviour.protected(net, memory)


def parts(protection):
    return torch.stack([protection.projector.protected_part_(v) for v in sharded.cases.probes(protection.parameters.p)])


def test_an_error_in_one_process_is_told_to_all_and_they_can_go_on(behaviour):
    _, _, protection = alone()
    x, y = sharded.examples("mlp", 1)
    protection.remember([(x[rank::2], y[rank::2]) for rank in range(2)])
    for rank, process in enumerate(behaviour):
        failure = process["failure"]
        assert failure["kinds"] == [("ProtectionError", "NonFiniteError")[rank], "none"]
        assert failure["examples"] == len(x)
        torch.testing.assert_close(failure["parts"], parts(protection), **TOLERANCE)


def test_streams_without_tasks(behaviour):
    expected = sharded_behaviour.stream(sharded.network("mlp"), 0, 1)
    for process in behaviour:
        torch.testing.assert_close(process["stream"]["weights"], expected["weights"], rtol=1e-6, atol=1e-8)
        assert process["stream"]["forgetting"] == pytest.approx(expected["forgetting"], rel=1e-5)


def test_batches_of_one_example_beside_batches_of_several(behaviour):
    net = sharded.network("transformer")
    _, protection = sharded_behaviour.protected(net)
    x, y = sharded.examples("transformer", 1)
    protection.remember([(x[part], y[part]) for part in (slice(0, 1), slice(2, 6), slice(1, 2))])
    for process in behaviour:
        torch.testing.assert_close(process["single examples"], parts(protection), **TOLERANCE)


def test_how_far_given_weights_are(behaviour):
    for process in behaviour:
        now, given = process["given weights"]
        assert given == pytest.approx(now, rel=1e-9)
        assert now > 0


def test_remembering_leaves_gradients_mode_and_parameters_as_they_are(behaviour):
    assert all(process["as before"] for process in behaviour)


def test_a_budget_is_that_of_one_process_and_picks_a_layer_memory(behaviour):
    for process in behaviour:
        found = process["budget"]
        for (limit, expected), (name, anchor, nbytes) in zip(sharded_behaviour.BUDGETS.items(), found, strict=True):
            assert (name, anchor) == ("layers", expected)
            assert 0.5 * limit < nbytes <= limit


def test_what_cannot_be_is_refused_with_the_reason(behaviour):
    for process in behaviour:
        refused = process["refused"]
        assert "tensor parallelism" in refused["tensor parallel"]
        assert "tensor parallelism" in refused["tensor parallel, gradients"]
        assert "Tensor parallelism beside it" in refused["tensor parallel and FSDP2"]
        assert "ProductSketch" in refused["does not add up"]


def test_weights_gathered_in_bfloat16_are_remembered(behaviour):
    net = sharded.network("mlp").float()
    _, protection = sharded_behaviour.protected(net)
    protection.remember([(x.float(), y) for x, y in sharded.in_order("mlp", 1, 2)])
    expected = torch.stack(
        [protection.projector.protected_part_(v.float()) for v in sharded.cases.probes(protection.parameters.p)]
    )
    for process in behaviour:
        torch.testing.assert_close(process["mixed"], expected, rtol=0.0, atol=0.05 * float(expected.abs().max()))


# ---------------------------------------------------------------- bytes


def layers_of(traffic):
    """The layers of the network as the cost model takes them."""
    net = sharded.network("mlp")
    for name, (s, r, tail) in traffic["ranks"].items():
        o, i = net.get_submodule(name).weight.shape
        yield cost.Layer(o, i + 1, s, r, tail=tail)


def test_bytes_of_a_step_are_those_of_the_cost_model(behaviour):
    for process in behaviour:
        traffic = process["wire"]
        layers = list(layers_of(traffic))
        assert len(layers) == 3
        for name, measured in (("step", False), ("measured step", True)):
            assert traffic[name] == vars(cost.layers_step(layers, traffic["others"], s=8, measured=measured))


def test_bytes_of_remembering_are_those_of_the_cost_model(behaviour):
    """Each call also has the round in which nobody has a batch any more."""
    end = cost.Traffic(all_gather=8 * 2)
    for process in behaviour:
        traffic = process["wire"]
        assert traffic["first round"] == vars(cost.layers_observe(2, others=True, first=True) + end)
        assert traffic["round"] == vars(cost.layers_observe(2, others=True) + end)
        refresh = cost.layers_refresh(traffic["numbers"], traffic["sketches"], sums=3, s=8)
        assert traffic["remember"] == vars(cost.layers_observe(2, others=True) + end + refresh)


def test_bytes_of_transposed_weights_are_those_of_the_cost_model():
    """By the sizes of what `LayerStack` would sum."""
    from sketchogd.projector.kronecker import LayerSpectra, Part, PullingLayer

    o, w, s, r = 5, 7, 2, 3
    spectra = LayerSpectra(torch.randn(r, w), torch.rand(r), torch.randn(s, o), torch.rand(s), 1.0, 0.1)
    stack = PullingLayer.stack([PullingLayer(spectra, 1.0)], Part(columns=slice(2, 5)))
    summed = stack.summand(torch.randn(1, o, 3))
    assert cost.Layer(o, w, s, r, transposed=True, bias=False).summed == summed.numel()
    assert cost.Layer(o, w, s, 0, transposed=True).summed == 0


def test_bytes_of_factors_are_those_of_the_cost_model():
    for k, d in ((4, 30), (64, 4096)):
        assert cost.memory(d, k) == FlatTailSketch(k).cost(d)
