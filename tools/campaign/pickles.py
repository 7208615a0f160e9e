"""Mutated batches of CIFAR-100, which are pickles: refused or read, never executed, never the end of the process."""

import pickle
import random
from pathlib import Path

import numpy as np

from sketchogd.lab.data.fileformats import DataError, read_cifar_batch
from tools.campaign.children import Attempt, rng_of

NASTY = (
    *(b"cposix\nsystem\n", b"O8", b"V9", b"U4", b"\x8a\xff", b"b", b"R"),
    *(b"\x81", b"u1", b"M8[ns]", b"|", b"\xff" * 8),
)
"""Opcodes, names and kinds of numbers that readers have tripped over."""


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The bytes of a pickle, with a few of its small parts changed."""
    out = bytearray(data)
    heads = [j for j in range(len(out)) if j < 200 or j > len(out) - 200]
    for _ in range(rng.choice([1, 1, 2, 4])):
        j, how = rng.choice(heads), rng.randrange(4)
        if how == 0:
            out[j % len(out)] ^= 1 << rng.randrange(8)
        elif how == 1:
            out[j % len(out)] = rng.randrange(256)
        elif how == 2:
            out[j:j] = rng.choice(NASTY)
        else:
            del out[j : j + rng.choice([1, 2, 9])]
    return bytes(out)


def unpickling(folder: Path, seed: int) -> Attempt:
    """Attempts to read a mutated batch."""
    generator = np.random.default_rng(0)
    batch = {b"data": generator.integers(0, 256, (3, 3072), np.uint8), b"fine_labels": [1, 2, 3], b"batch_label": b"x"}
    good = [pickle.dumps(batch, protocol=protocol) for protocol in (2, 3, 4)]

    def attempt(i: int) -> str:
        rng = rng_of(seed, "pickle", i)
        try:
            x, y = read_cifar_batch(mutated(rng.choice(good), rng))
        except DataError:
            return "refused"
        except Exception as error:
            return f"unclear: {type(error).__name__}: {error}"
        return "accepted" if x.shape[1:] == (3, 32, 32) and len(x) == len(y) else "undetected: shapes"

    return attempt
