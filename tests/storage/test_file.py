"""Files: a memory goes on in another process to the same bits; damage is refused; a kill leaves old or new."""

import copy
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import sketchogd as so
from sketchogd import storage
from sketchogd.optimizer import meter
from sketchogd.storage.restore import describe
from tests import models
from tests.reference import projected

MEMORIES = {
    "gradient": lambda: so.GradientSketch(12, seed=4),
    "product": lambda: so.ProductSketch(12, seed=4),
    "symmetric": lambda: so.SymmetricSketch(6, 8),
    "stored": lambda: so.ProductSketch(6, test_matrix=so.Gaussian(stored=True)),
    "all": lambda: so.AllRows(),
    "random": lambda: so.RandomRows(12),
    "pca": lambda: so.PCARows(10, 6),
    "frequent": lambda: so.FrequentDirections(8, 4),
    "bfloat16": lambda: so.GradientMemory(so.ProductSketch(12), basis_dtype="bfloat16", offload="cpu"),
    "scaled": lambda: so.GradientMemory(so.ProductSketch(12), power=1.0),
    "blocks": lambda: so.GradientMemory(so.ProductSketch(6), blocks=3),
    "blocks-bfloat16": lambda: so.GradientMemory(so.ProductSketch(6), blocks=3, basis_dtype="bfloat16", offload="cpu"),
    "pulled": lambda: so.GradientMemory(so.ProductSketch(6), blocks=3, strength=3.0),
    "layers": lambda: so.LayerSketch(rank=6, ridge=0.1),
    "layers-anchored": lambda: so.LayerSketch(rank=6),
    "layers-rounded": lambda: so.LayerSketch(rank=6, anchor_dtype="int8"),
    "layers-hard": lambda: so.LayerSketch(rank={"*": 6}, ridge=0.0, outputs=False, energy=0.99),
}


def protected(memory, kind="cnn", every=1):
    model, x, y = models.make(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return model, optimizer, so.protect(model, optimizer, memory=memory, every=every), x, y


def train(model, optimizer, x, y, n=4):
    model.eval()
    for _ in range(n):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


# Run by a new Python: rebuild the model, load weights, optimizer and memory, and go on.
CONTINUE = """
import sys, torch
torch.set_num_threads({threads})
sys.path.insert(0, {root!r})
from tests import models
from tests.storage.test_file import MEMORIES, protected, train
model, optimizer, protection, x, y = protected(so_memory := MEMORIES[{name!r}](), every={every})
model.load_state_dict(torch.load({weights!r}, weights_only=True))
optimizer.load_state_dict(torch.load({optimizer!r}, weights_only=True))
protection.load({memory!r})
train(model, optimizer, x.flip(0), y)
protection.remember([(x.flip(0), y)])
train(model, optimizer, x, y)
protection.save({out!r})
torch.save(model.state_dict(), {out!r} + ".weights")
"""


@pytest.mark.parametrize(
    ("name", "every"),
    [
        ("product", 1),
        ("layers", 3),
        ("layers-rounded", 3),
        ("gradient", 1),
        ("bfloat16", 1),
        ("blocks", 3),
        ("layers-hard", 3),
    ],
)
def test_a_new_process_continues_to_the_same_bits(name, every, tmp_path):
    model, optimizer, protection, x, y = protected(MEMORIES[name](), every=every)
    train(model, optimizer, x, y)
    protection.remember([(x, y)])
    train(model, optimizer, x, y, 5)
    memory, weights, state = (str(tmp_path / part) for part in ("m.safetensors", "w.pt", "o.pt"))
    protection.save(memory)
    torch.save(model.state_dict(), weights)
    torch.save(optimizer.state_dict(), state)

    train(model, optimizer, x.flip(0), y)
    protection.remember([(x.flip(0), y)])
    train(model, optimizer, x, y)
    protection.save(tmp_path / "here.safetensors")

    root, out = os.path.dirname(os.path.dirname(os.path.dirname(__file__))), str(tmp_path / "there.safetensors")
    script = CONTINUE.format(
        threads=torch.get_num_threads(),  # the order of summation depends on it
        root=root,
        name=name,
        every=every,
        weights=weights,
        optimizer=state,
        memory=memory,
        out=out,
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    theirs = torch.load(out + ".weights", weights_only=True)
    for key, value in model.state_dict().items():
        assert torch.equal(value, theirs[key]), key
    a, b = storage.read(tmp_path / "here.safetensors"), storage.read(out)
    assert a[0] == b[0]
    assert all(torch.equal(a[1][key], b[1][key]) for key in a[1])


@pytest.mark.parametrize("name", ["product", "all", "blocks", "layers-hard"])
def test_the_second_pass_and_what_was_measured_go_on(name, tmp_path, monkeypatch):
    """Once a hard projection leaves too much behind, every step has a second pass, also after loading.

    Here only the first process can find out that it is needed.
    """
    monkeypatch.setattr(meter, "_TWICE_ABOVE", -1.0)
    model, optimizer, protection, x, y = protected(MEMORIES[name]())
    protection.remember([(x, y)])
    train(model, optimizer, x.flip(0), y, 5)
    protection.save(tmp_path / "m.safetensors")
    other, its_optimizer, loaded, _, _ = protected(MEMORIES[name]())
    other.load_state_dict(model.state_dict())
    its_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    loaded.load(tmp_path / "m.safetensors")
    monkeypatch.setattr(meter, "_TWICE_ABOVE", 1.0)
    assert loaded.metrics() == {**protection.metrics(), "steps": 0}
    train(model, optimizer, x.flip(0), y, 4)
    train(other, its_optimizer, x.flip(0), y, 4)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert loaded.metrics() == {**protection.metrics(), "steps": 4}


@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize("finished", [True, False])
def test_state_round_trips(name, finished, tmp_path):
    _model, _, protection, x, y = protected(MEMORIES[name]())
    (protection.remember if finished else lambda batches: protection.observe(*batches[0]))([(x, y)])
    protection.save(tmp_path / "m.safetensors")
    _twin, _optimizer, loaded, _, _ = protected(MEMORIES[name]())
    loaded.load(tmp_path / "m.safetensors")
    _again, _, restored, _, _ = protected(MEMORIES[name]())
    restored.load_state_dict(protection.state_dict())
    for other in (loaded, restored):
        v = torch.randn(protection.parameters.p, generator=torch.Generator().manual_seed(0))
        assert torch.equal(projected(other.projector, v.clone()), projected(protection.projector, v.clone()))
        assert other.memory.examples == 24
    assert sum(e.nbytes for e in loaded.ledger()) == sum(e.nbytes for e in protection.ledger())
    assert not [f for f in os.listdir(tmp_path) if f.endswith(".tmp")]


def test_a_budget_memory_adopts_the_settings_of_the_file(tmp_path):
    _model, _optimizer, protection, x, y = protected(so.LayerSketch(rank=6, ridge=0.1))
    protection.remember([(x, y)])
    protection.save(tmp_path / "m.safetensors")
    twin, _, _ = models.make("cnn")
    other = so.protect(twin, torch.optim.SGD(twin.parameters(), lr=0.1), budget="1MB")
    other.load(tmp_path / "m.safetensors")
    assert other.memory.rank == 6
    found = describe(tmp_path / "m.safetensors")
    assert found["memory"] == "layers"
    assert found["examples"] == 24
    assert found["nbytes"] == protection.memory.nbytes
    json.dumps(found)


def test_files_that_are_not_memories_are_refused(tmp_path):
    _model, _, protection, x, y = protected(so.ProductSketch(8))
    protection.remember([(x, y)])
    path = tmp_path / "m.safetensors"
    protection.save(path)
    good = path.read_bytes()
    before = protection.projector.basis.clone()

    with pytest.raises(FileNotFoundError, match="no memory file"):
        protection.load(tmp_path / "none.safetensors")
    for damage, message in [
        (good[: len(good) // 2], "truncated"),
        (b"", "truncated"),
        (b"\x80\x04\x95 this could be a pickle", r"written by torch\.save or pickle"),
        (b"\x09\x00\x00 anything else at all", "truncated or is not"),
        (good[:-3] + bytes(255 - b for b in good[-3:]), "checksum"),
    ]:
        path.write_bytes(damage)
        with pytest.raises(so.StorageError, match=message):
            protection.load(path)
    save_file({"x": torch.zeros(3)}, path)
    with pytest.raises(so.StorageError, match=r"not one that Protection\.save wrote"):
        protection.load(path)
    path.write_bytes(good)
    meta, tensors = storage.read(path)
    storage.write(path, {**meta, "format": 99}, tensors)
    with pytest.raises(so.StorageError, match=r"format 99.*Upgrade"):
        protection.load(path)
    tensors["sketch.rows"][0, 0] = float("nan")
    storage.write(path, meta, tensors)
    with pytest.raises(so.StorageError, match=r"sketch.*rows.*NaN"):
        protection.load(path)
    storage.write(path, {**meta, "memory": "hologram"}, {})
    with pytest.raises(so.StorageError, match="hologram"):
        protection.load(path)
    assert torch.equal(protection.projector.basis, before)


def test_metadata_that_lies_about_its_tensors_is_refused(tmp_path):
    _model, _, protection, x, y = protected(so.ProductSketch(8))
    protection.remember([(x, y)])
    path = tmp_path / "m.safetensors"
    protection.save(path)
    meta, tensors = storage.read(path)
    before = protection.projector.basis.clone()
    for change in [
        {"sketch.rows": tensors["sketch.rows"][:5].clone()},
        {"sketch.factor": tensors["sketch.factor"][:, :3].clone()},
        {"sketch.values": tensors["sketch.values"].repeat(3)},
        {"sketch.rows": None},
    ]:
        changed = {k: t for k, t in {**tensors, **change}.items() if t is not None}
        storage.write(path, meta, changed)
        with pytest.raises(so.StorageError):
            protection.load(path)
    assert torch.equal(protection.projector.basis, before)


def test_another_model_is_refused_with_the_first_differences(tmp_path):
    _, _, protection, x, y = protected(so.ProductSketch(8), "cnn")
    protection.remember([(x, y)])
    protection.save(tmp_path / "m.safetensors")
    _, _, other, _, _ = protected(so.ProductSketch(8), "mlp")
    with pytest.raises(so.StorageError, match=r"0.weight is \(16, 10\) in the model, \(6, 3, 3, 3\) in the file"):
        other.load(tmp_path / "m.safetensors")
    with pytest.raises(so.StorageError, match=r"6\.weight is not in the model"):
        other.load(tmp_path / "m.safetensors")


# One interpreter imports torch and forks a writer for every line it reads, telling its process number.
WRITERS = """
import os, signal, sys, torch
from sketchogd import storage
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
torch.set_num_threads(1)
for line in sys.stdin:
    n, pid = int(line), os.fork()
    if pid == 0:
        while True:
            n += 1
            storage.write(sys.argv[1], {"format": 1, "n": n}, {"x": torch.full((200_000,), float(n))})
    print(pid, flush=True)
"""


def test_killed_while_saving_fifty_times(tmp_path):
    """SIGKILL at random moments: what is there is a whole file, the last one seen or a newer one.

    On a busy machine more kills are needed until some saves were finished and some were hit in the middle.
    """
    path, rng, newest, interrupted, kills = tmp_path / "m.safetensors", random.Random(0), 0, 0, 0
    storage.write(path, {"format": 1, "n": 0}, {"x": torch.zeros(200_000)})
    command = [sys.executable, "-c", WRITERS, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as forker:
        while kills < 50 or (kills < 1000 and (newest <= 20 or interrupted <= 5)):
            kills += 1
            forker.stdin.write(f"{newest}\n")
            forker.stdin.flush()
            pid = int(forker.stdout.readline())
            time.sleep(rng.uniform(0.0, 0.03))
            os.kill(pid, signal.SIGKILL)
            meta, tensors = storage.read(path)
            assert float(tensors["x"][0]) == float(tensors["x"][-1]) == meta["n"] >= newest
            newest = meta["n"]
            for part in tmp_path.glob(".*.tmp"):
                interrupted += 1
                part.unlink()
        forker.stdin.close()
    assert newest > 20
    assert interrupted > 5
