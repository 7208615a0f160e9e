"""A file is taken whole or not at all: what is wrong is said, and nothing else happens."""

import copy
import json

import pytest
import torch
from safetensors.torch import save, save_file

import sketchogd as so
from sketchogd import storage
from sketchogd.storage.file import checksum
from tests import models
from tools.campaign.subjects import Subject, Tokens, batch, differing


def kept(subject, path):
    """The contents of a subject's file, in memory of their own."""
    subject.protection.save(path)
    meta, tensors = storage.read(path)
    return meta, {name: t.clone() for name, t in tensors.items()}


def refuse(subject, path, match, how="load"):
    """Loading or merging a file is refused, and no tensor changes."""
    before = subject.everything()
    with pytest.raises(so.StorageError, match=match):
        getattr(subject.protection, how)(path)
    assert differing(before, subject.everything()) == []


@pytest.mark.parametrize("how", ["load", "merge"])
def test_a_refused_file_leaves_steps_pending_and_weights_unmoved(how, tmp_path):
    subject, path = Subject("layers", every=3, seed=5), tmp_path / "m"
    assert subject.protection.pending
    path.write_bytes(b"")
    refuse(subject, path, "empty", how)
    _, _, other = protected_mlp(so.LayerMemory(4))
    other.save(path)
    refuse(subject, path, "of another model", how)


def protected_mlp(memory):
    model, x, y = models.make("mlp")
    protection = so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=memory)
    protection.remember([(x, y)])
    return model, (x, y), protection


def test_a_basis_of_zeros_is_refused_where_it_left_training_unprotected(tmp_path):
    """In bfloat16 its Gram matrix has no inverse: the memory was replaced and the projector None, without a word."""
    subject, path = Subject("bfloat16", seed=4), tmp_path / "m"
    meta, tensors = kept(subject, path)
    assert subject.protection.projector is not None
    storage.write(path, meta, {**tensors, "sketch.rows": torch.zeros_like(tensors["sketch.rows"])})
    refuse(subject, path, "not orthonormal")
    storage.write(path, meta, {**tensors, "sketch.rows": 1.1 * tensors["sketch.rows"]})
    refuse(subject, path, "not orthonormal", "merge")
    assert subject.protection.projector is not None


def test_a_projector_that_would_blow_up_updates_is_refused(tmp_path):
    subject, path = Subject("pull", seed=4), tmp_path / "m"
    meta, tensors = kept(subject, path)
    huge = torch.full_like(tensors["sketch.0.values"], 1e300)
    storage.write(path, meta, {**tensors, "sketch.0.values": huge})
    refuse(subject, path, "would change by")


@pytest.mark.parametrize(("name", "part"), [("layers", "anchor.out.weight"), ("int8", "anchor.out.weight.scales")])
def test_an_anchor_that_weights_cannot_have_been_is_refused(name, part, tmp_path):
    """Pulled there, weights were finite and so large that nothing could be observed any more."""
    subject, path = Subject(name, seed=4), tmp_path / "m"
    meta, tensors = kept(subject, path)
    storage.write(path, meta, {**tensors, part: tensors[part] * 1e30})
    refuse(subject, path, "the anchor of 'out.weight' has a weight of")


def test_what_fails_after_the_memory_was_built_changes_nothing(tmp_path, monkeypatch):
    subject, path = Subject("product", every=3, seed=4), tmp_path / "m"
    kept(subject, path)
    subject.train(1)

    def fail(self):
        raise torch.linalg.LinAlgError("no basis")

    for how in ("load", "merge"):
        monkeypatch.setattr(so.GradientMemory, "projector", fail)
        before = subject.everything()
        with pytest.raises((so.StorageError, ValueError), match="no basis"):
            getattr(subject.protection, how)(path)
        monkeypatch.undo()
        assert differing(before, subject.everything()) == []


LIES = {
    "settings": (("sketch",), [1], "sketch is a list"),
    "huge rank": (("sketch", "settings", "rank"), 10**12, r"expected \(75, 75\)"),
    "negative rank": (("sketch", "settings", "rank"), -1, r"rank is -1.*whole number"),
    "digits": (("sketch", "counters", "count"), 10**400, "count is a number of about"),
    "nan": (("sketch", "counters", "energy"), float("nan"), r"energy is nan"),
    "word": (("settings", "power"), "one", r"settings\.power is 'one'"),
    "device": (("settings", "offload"), "meta", "a device such as"),
    "flag": (("stale",), 1, "expected true or false"),
    "no shape": (("parameters", 0), "name", r"parameters\[0\] is 'name'"),
    "kind": (("memory",), {"a": 1}, "memory is a mapping of 1"),
    "unknown": (("settings", "limit"), 3, "unknown 'limit'"),
    "row length": (("sketch", "d"), 10**9, "d: 1000000000 here"),
    "unprotected": (("remembered",), False, "neither remembered nor"),
    "exponent": (("sketch", "counters", "exponent"), 10**6, "exponent"),
    "test matrix": (("sketch", "settings", "test_matrix"), {"kind": "sparse", "zeta": 10**12}, "zeta"),
}


@pytest.mark.parametrize("name", LIES)
def test_metadata_is_checked_by_a_schema(name, tmp_path):
    (*place, last), value, match = LIES[name]
    subject, path = Subject("product", every=3, seed=4), tmp_path / "m"
    meta, tensors = kept(Subject("product", seed=2), path)
    lying = copy.deepcopy(meta)
    node = lying
    for key in place:
        node = node[key]
    node[last] = value
    storage.write(path, lying, tensors)
    refuse(subject, path, match)


def test_metadata_without_end_is_refused(tmp_path):
    subject, path = Subject("product", seed=4), tmp_path / "m"
    meta, tensors = kept(subject, path)
    text = json.dumps(meta).replace('"memory"', f'"deep": {"[" * 100_000}{"]" * 100_000}, "memory"')
    path.write_bytes(save(tensors, metadata={"sketchogd": text, "sha256": checksum(text, tensors)}))
    refuse(subject, path, "metadata of .* is damaged")


def test_a_forged_rank_allocates_nothing(tmp_path):
    """Frequent directions have rank rows however short they are: 10^12 of them were asked of the machine."""
    subject, path = Subject("frequent", seed=4), tmp_path / "m"
    meta, tensors = kept(subject, path)
    meta["sketch"]["settings"]["rank"] = 10**12
    storage.write(path, meta, tensors)
    refuse(subject, path, r"rows has shape \(7, 75\).*expected \(1000000000001, 75\)")


@pytest.mark.parametrize("name", ["layers", "int8", "all", "pca", "blocks", "random"])
def test_tensors_that_do_not_belong_are_refused(name, tmp_path):
    subject, path = Subject(name, every=3, seed=4), tmp_path / "m"
    meta, tensors = kept(Subject(name, seed=2), path)
    for change in (*tensors, "extra", "anchor.extra", "sketch.extra"):
        without = {key: t for key, t in tensors.items() if key != change}
        for lie in (without, {**without, change: torch.ones(2, dtype=torch.float16)}):
            if change not in tensors and lie is without:
                continue
            storage.write(path, meta, lie)
            refuse(subject, path, ".")


def test_what_is_loaded_does_not_live_in_the_file(tmp_path):
    """Tensors that safetensors reads are views of the file, and a file may be overwritten in place."""
    subject, path = Subject("product", seed=4), tmp_path / "m"
    kept(subject, path)
    subject.protection.load(path)
    before = subject.everything()
    path.write_bytes(bytes(path.stat().st_size))
    assert differing(before, subject.everything()) == []


def test_merging_is_all_or_nothing_between_protections_too():
    subject, other = Subject("layers", every=3, seed=4), Subject("gpm", every=3, seed=4)
    before, theirs = subject.everything(), other.everything()
    with pytest.raises(ValueError, match="cannot be merged"):
        subject.protection.merge(other.protection)
    assert differing(before, subject.everything()) == []
    assert differing(theirs, other.everything()) == []
    with pytest.warns(so.ProtectionWarning, match="saved beside"):
        subject.protection.merge(Subject("layers", seed=2).protection)
    assert subject.protection.memory.examples == 48


def test_loading_begins_anew_where_nothing_was_remembered(tmp_path):
    """The anchor of the memory that is replaced is not kept for the new one."""
    subject, path = Subject("layers", seed=4), tmp_path / "m"
    model = Tokens()
    fresh = so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=so.LayerMemory(4))
    fresh.save(path)
    assert any(item.name.startswith("reference") for item in subject.protection.held())
    subject.protection.load(path)
    assert subject.protection.memory.examples == 0
    with pytest.warns(so.ProtectionWarning, match="saved beside"):
        assert subject.protection.projector is None
    subject.protection.remember([batch(3)])
    subject.train(2)


@pytest.mark.parametrize("name", ["product", "layers"])
def test_one_process_reads_what_several_padded(name):
    """A state of several processes has its tensors at their largest sizes, and says how much of each counts."""
    from sketchogd.distributed.checkpoint import padded

    one = Subject(name, seed=4)
    state = one.protection.state_dict()
    meta, tensors = padded(one.protection.memory, state["meta"], state["tensors"])
    other = Subject(name, seed=4)
    other.protection.load_state_dict({"meta": meta, "tensors": tensors})
    assert differing(state["tensors"], other.protection.state_dict()["tensors"]) == []
    meta["padded"]["out.inputs.factor" if name == "layers" else "sketch.factor"] = [10**12, 1]
    with pytest.raises(so.StorageError, match="smaller than it says"):
        other.protection.load_state_dict({"meta": meta, "tensors": tensors})


def test_another_dict_than_a_state_is_said(tmp_path):
    subject = Subject("product", seed=4)
    with pytest.raises(so.StorageError, match=r'"meta" and "tensors"; got .embed.weight'):
        subject.protection.load_state_dict(subject.model.state_dict())
    with pytest.raises(so.StorageError, match="got list"):
        subject.protection.load_state_dict([1])


def test_files_of_other_kinds_are_named(tmp_path):
    subject, path = Subject("product", seed=4), tmp_path / "m"
    for content, match in [
        ({"a": torch.ones(3)}, r"written by torch\.save or pickle"),
        (None, "not one that Protection.save wrote"),
    ]:
        torch.save(content, path) if content else save_file({"a": torch.ones(3)}, path)
        refuse(subject, path, match)
    with pytest.raises(IsADirectoryError, match="this is a folder"):
        subject.protection.load(tmp_path)
