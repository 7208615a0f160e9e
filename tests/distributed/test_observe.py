"""What a group of processes must get right beside the numbers: padding, errors, limits, files, bytes on the wire."""

import pytest
import torch

import sketchogd as so
from sketchogd.distributed import cost

from . import cases, workers
from .processes import together

P = sum(p.numel() for p in cases.model().parameters())


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Everything that three processes try out, in one group."""
    folder = tmp_path_factory.mktemp("three")
    return {"folder": folder, "processes": together(workers.behaviour, 3, folder, str(folder))}


@pytest.mark.parametrize("layout", ["ddp", "flat", "fsdp"])
@pytest.mark.parametrize("n", [10, 2])
def test_padding_of_a_sampler_is_not_remembered(found, layout, n):
    """10 examples for 3 processes are padded to 12, and 2 to 3."""
    x, y = cases.examples(1)
    net = cases.model()
    protection = so.protect(net, torch.optim.SGD(net.parameters(), lr=0.1), memory=so.ProductSketch(12))
    protection.remember([(x[:n], y[:n])])
    expected = torch.stack([protection.projector.protected_part_(v) for v in cases.probes(protection.parameters.p)])
    for process in found["processes"]:
        result = process[f"padding {layout} {n}"]
        assert result["examples"] == n
        torch.testing.assert_close(result["parts"], expected, rtol=1e-6, atol=1e-8)


def test_dealing_gives_each_example_to_one_process(found):
    assert sorted(i for process in found["processes"] for i in process["dealt"]) == list(range(10))


@pytest.mark.parametrize("layout", ["ddp", "flat", "fsdp"])
def test_an_error_in_one_process_is_told_to_all_and_they_can_go_on(found, layout):
    """Process 1 has an example that is not a number; the others are told, and all remember the 12 good ones after it.

    Batches of earlier rounds are kept, and of this one none where processes sketch apart or rows travel, but 4 of
    process 0 where processes take turns.
    """
    errors = [process[f"error {layout}"] for process in found["processes"]]
    for rank, error in enumerate(errors):
        kinds = ("NonFiniteError",) if layout == "fsdp" or rank == 1 else ("ProtectionError", "NonFiniteError")
        assert error["kind"] in kinds, error
    _, y = cases.examples(1)
    for error in errors:
        assert error["rows_after"] == len(y) + {"ddp": 0, "flat": 0, "fsdp": 4}[layout]


def test_streams_without_tasks(found):
    """observe on some processes, nothing on others, and the next step projects with all of it."""
    x, y = cases.examples(1)
    net = cases.model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    protection = so.protect(net, optimizer, memory=so.ProductSketch(12))
    for part in (slice(0, 4), slice(4, 6)):
        protection.observe(x[part], y[part])
    cases.train(net, optimizer, 4)
    for process in found["processes"]:
        torch.testing.assert_close(process["stream"], protection.parameters.flatten(), rtol=1e-7, atol=1e-9)


def test_processes_that_see_numbers_of_different_sizes(found):
    """24 examples and rank 12: what is kept depends on how the processes' sketches are weighed against each other."""
    x, y = cases.examples(1)
    net = cases.model()
    protection = so.protect(net, torch.optim.SGD(net.parameters(), lr=0.1), memory=so.ProductSketch(12))
    protection.remember([(x[rank::3] * 4.0**rank, y[rank::3]) for rank in range(3)])
    expected = torch.stack([protection.projector.protected_part_(v) for v in cases.probes(P)])
    for process in found["processes"]:
        torch.testing.assert_close(process["scales"], expected, rtol=1e-6, atol=1e-7)


def test_a_split_basis_is_orthonormal_where_the_spectrum_falls(found):
    """Rows of sizes from 1 to 2e-6: one pass leaves float32 rows that are not orthonormal to 1e-5."""
    split, whole = found["processes"][0]["falling"]
    for basis in (split, whole):
        assert len(basis) == len(whole)
        assert float((basis.double() @ basis.double().T - torch.eye(len(basis))).abs().max()) < 1e-5
    leading = split[:12].double().T @ split[:12].double() - whole[:12].double().T @ whole[:12].double()
    assert float(leading.abs().max()) < 1e-2


@pytest.mark.parametrize("layout", ["ddp", "flat", "fsdp"])
def test_in_single_precision_it_is_the_same_to_single_precision(found, layout):
    x, y = cases.examples(1, 12)
    net = cases.model().float()
    protection = so.protect(net, torch.optim.SGD(net.parameters(), lr=0.1), memory=so.ProductSketch(12))
    protection.remember([(x[rank::3].float(), y[rank::3]) for rank in range(3)])
    expected = torch.stack([protection.projector.protected_part_(v.float()) for v in cases.probes(P)])
    for process in found["processes"]:
        assert process[f"float32 {layout}"].dtype == torch.float32
        # Gradients that are nearly dependent amplify rounding; 1e-3 of probes of size 1 is what is left of it.
        torch.testing.assert_close(process[f"float32 {layout}"], expected, rtol=0, atol=1e-3)


def test_what_cannot_be_shared_is_refused_with_the_reason(found):
    for process in found["processes"]:
        refused = process["refused"]
        assert "seed=1" in refused["other seed"]
        assert "small" in refused["sharded layer memory"]
        assert "ProductSketch" in refused["layer memory that does not add up"]
        assert "grows" in refused["checkpoint of a growing sketch"]
        assert "'2.weight' is whole in every process" in refused["partly split"]
        assert "Shard(dim=1)" in refused["split along columns"]


def test_a_memory_beyond_the_limit_of_a_process_fits_when_it_is_split(found):
    """Whole it takes more than the limit and is refused; split over three it fits, and is more than that in all."""
    for process in found["processes"]:
        limits = process["limit"]
        assert "its limit is" in limits["whole"]
        assert "shard=True" in limits["whole"]
        assert limits["split"] <= limits["limit"]
    assert sum(process["limit"]["split"] for process in found["processes"]) > found["processes"][0]["limit"]["limit"]


def test_the_ledger_shows_the_bytes_of_one_process(found):
    """One of the processes has a column less than the others."""
    for process in found["processes"]:
        missing = process["limit"]["missing"]
        assert process["limit"]["split"] == cost.memory(P, 12, R=3, s=8) - 8 * 12 * missing
    assert [process["limit"]["missing"] for process in found["processes"]] == [0, 0, 2]


def test_a_budget_is_that_of_one_process(found):
    """Whole, it picks a layer memory; split, a gradient sketch of which each process keeps a part within the budget."""
    for process in found["processes"]:
        (whole, _), (split, nbytes) = process["budgets"]
        assert (whole, split) == ("layers", "gradients")
        assert 4_500 < nbytes <= 9_000


def test_batch_statistics_are_those_of_process_0(found):
    """Processes saw different data in training; the gradients they remember are of one model all the same."""
    first = found["processes"][0]["statistics"]
    for process in found["processes"]:
        assert torch.equal(process["statistics"], first)
        assert process["spread"] > 0


def test_all_processes_hold_the_same_statistics_from_the_first_task_on(found):
    first = found["processes"][0]["digests"]
    assert len(first["digests"]) == 2
    for process in found["processes"]:
        assert process["held"]
        assert process["digests"] == first


def test_evaluation_between_steps_leaves_the_projection_of_split_weights_right(found):
    """After a forward pass FSDP2's root is still gathered; projecting then must reach the weights that are used."""
    for process in found["processes"]:
        torch.testing.assert_close(process["settled"], process["expected settled"], rtol=1e-7, atol=1e-9)
        (said,) = process["unsettled"]  # of two evaluations the first one warns, in every process
        assert "NOT YET PROTECTED" in said
        assert process["gradients kept"]


# ---------------------------------------------------------------- bytes on the wire


@pytest.mark.parametrize("layout", ["whole", "flat", "fsdp"])
def test_bytes_of_a_step_are_those_of_the_cost_model(found, layout):
    for process in found["processes"]:
        traffic = process[f"wire {layout}"]
        for name, measured in (("step", False), ("measured step", True)):
            expected = cost.step(P, traffic["rank"], 3, s=8, layout=layout, measured=measured)
            assert traffic[name] == vars(expected)


@pytest.mark.parametrize("layout", ["whole", "flat", "fsdp"])
@pytest.mark.parametrize("b", [5, 14])
def test_bytes_of_remembering_are_those_of_the_cost_model(found, layout, b):
    """5 gradients a process are fewer than the 12 rows of the sketch, 14 are more."""
    finish = cost.Traffic(all_gather=8 * 3)
    for process in found["processes"]:
        traffic = process[f"wire {layout}"][f"remember {b}"]
        expected = cost.observe(P, 12, 3, b, s=8, layout=layout) + finish + cost.refresh(P, 12, 3, s=8, layout=layout)
        assert traffic == vars(expected)
        used = {name for name, size in traffic.items() if size}
        assert ("reduce_scatter" in used) == (layout == "flat" and b == 14)
        assert ("all_to_all" in used) == (layout == "flat" and b == 5)


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("layout", ["ddp", "flat", "fsdp"])
@pytest.mark.filterwarnings("ignore:the weights are not those")
def test_a_file_of_three_processes_is_that_of_one(found, layout):
    net = cases.model()
    protection = so.protect(net, torch.optim.SGD(net.parameters(), lr=0.1), memory=so.ProductSketch(12))
    protection.load(found["folder"] / f"{layout}.safetensors")
    parts = torch.stack([protection.projector.protected_part_(v) for v in cases.probes(protection.parameters.p)])
    for process in found["processes"]:
        torch.testing.assert_close(parts, process[f"saved {layout}"], rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(process[f"read {layout}"], process[f"saved {layout}"], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("size", [1, 2])
def test_a_checkpoint_of_three_processes_is_loaded_by_others(found, size, tmp_path):
    for process in together(workers.load_checkpoints, size, tmp_path, str(found["folder"])):
        for layout in workers.FILES:
            expected = found["processes"][0]
            torch.testing.assert_close(process[layout], expected[f"saved {layout}"], rtol=1e-7, atol=1e-9)
            if layout in workers.ANCHORED:
                continue
            assert process[f"rank {layout}"] == expected[f"rank {layout}"] < 12
            examples, parts = process[f"continued {layout}"]
            assert examples == expected[f"continued {layout}"][0]
            torch.testing.assert_close(parts, expected[f"continued {layout}"][1], rtol=1e-6, atol=1e-8)
            if layout != "fsdp":
                other = process[f"{layout} by the other"]
                torch.testing.assert_close(other, expected[f"saved {layout}"], rtol=1e-7, atol=1e-9)
