"""Damaged files: bits flipped, cut, extended (unsigned), and lies that are signed with a right checksum (forged)."""

import copy
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sketchogd import storage
from sketchogd.errors import StorageError
from tools.campaign import forge
from tools.campaign.attempts import refused_or, used
from tools.campaign.children import Attempt, rng_of
from tools.campaign.subjects import MEMORIES, Subject

State = tuple[dict[str, Any], dict[str, Tensor]]


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The bytes of a file, with some of them changed, lost or added."""
    out, how = bytearray(data), rng.randrange(6)
    if how == 0:
        return data[: rng.randrange(len(data))]
    if how == 1:
        return data + rng.randbytes(rng.choice([1, 8, 4096]))
    if how == 2:  # the length of the header
        out[:8] = rng.choice([rng.randbytes(8), rng.randrange(1 << 20).to_bytes(8, "little")])
    elif how == 3:
        start = rng.randrange(len(out))
        out[start : start + 512] = bytes(len(out[start : start + 512]))
    elif how == 4:
        start = rng.randrange(len(out))
        del out[start : start + rng.choice([1, 7, 300])]
    else:
        for _ in range(rng.choice([1, 1, 2, 8])):
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _read(path: Path) -> State:
    """What is in a file, in memory of its own: the file will be overwritten in place."""
    meta, tensors = storage.read(path)
    return meta, {name: t.clone() for name, t in tensors.items()}


def fuzzing(folder: Path, seed: int, forged: bool) -> Attempt:
    """Attempts to load a file, or to merge it, into a protection of the same kind in the middle of training."""
    names = sorted(MEMORIES)
    victims: dict[tuple[str, int, int], Subject] = {}
    good: dict[tuple[str, bool], tuple[bytes, State]] = {}
    path = folder / "m.safetensors"

    def attempt(i: int) -> str:
        rng = rng_of(seed, "forged" if forged else "unsigned", i)
        name, every, finished = names[i % len(names)], rng.choice([1, 3]), rng.random() < 0.8
        if (name, finished) not in good:
            Subject(name, seed=2, remembered=finished).protection.save(path)
            good[name, finished] = path.read_bytes(), _read(path)
        data, whole = good[name, finished]
        what = "damaged"
        if forged:
            meta, tensors = copy.deepcopy(whole[0]), dict(whole[1])
            what = forge.lie_in_tensors(tensors, rng) if rng.random() < 0.35 else forge.lie_in_metadata(meta, rng)
            forge.signed(path, meta, tensors, rng)
        else:
            path.write_bytes(damaged(data, rng))
        key = name, every, rng.choice([4, 5])  # Adam or SGD
        if key not in victims:
            victims[key] = Subject(*key)
        victim = victims[key]
        merging = rng.random() < 0.25
        operation = victim.protection.merge if merging else victim.protection.load
        outcome = refused_or(
            victim, lambda: operation(path), (StorageError, ValueError) if merging else (StorageError,)
        )
        if outcome is not None:
            return f"{outcome} [{name}, {what}]" if outcome != "refused" else outcome
        del victims[key]
        if not forged:
            meta, tensors = _read(path)
            same = meta == whole[0] and all(torch.equal(t, whole[1][key]) for key, t in tensors.items())
            return "accepted" if same else f"undetected: [{name}]"
        outcome = used(victim, folder)
        return outcome if outcome == "accepted" else f"{outcome} [{name}, {what}]"

    return attempt
