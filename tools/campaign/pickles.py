"""Damaged and forged CIFAR pickles against the reader of the lab: refused or read, never the end of the process.

Each pickle is made from a valid one: bytes are flipped, cut, repeated and replaced by opcodes and by numbers that are
lengths or sizes elsewhere, or the state of the array or of its dtype is forged.
"""

import pickletools
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sketchogd.lab.data.fileformats import DataError, read_cifar_batch
from tools.campaign.children import Attempt, rng_of

OPCODES = [opcode.code.encode("latin-1") for opcode in pickletools.opcodes]


def published(batch: dict[bytes, Any], shape: Any = None, dtype: Any = None, kind: bytes = b"u1") -> bytes:
    """A batch as Python 2 wrote it, with protocol 2; shape and state of the dtype of its arrays may be forged."""
    return b"\x80\x02" + _encoded(batch, shape, dtype or (3, b"|", None, None, None, -1, -1, 0), kind) + b"."


def _encoded(value: Any, shape: Any, dtype: Any, kind: bytes) -> bytes:
    def several(items: Sequence[Any]) -> bytes:
        return b"".join(_encoded(item, shape, dtype, kind) for item in items)

    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + struct.pack("<i", value)
    if isinstance(value, bytes):
        return (b"U" + bytes([len(value)]) if len(value) < 256 else b"T" + struct.pack("<i", len(value))) + value
    if isinstance(value, list):
        return b"]q\x01(" + several(value) + b"e"
    if isinstance(value, tuple):
        return b"(" + several(value) + b"t"
    if isinstance(value, dict):
        return b"}q\x02(" + several([part for item in value.items() for part in item]) + b"u"
    made = b"cnumpy\ndtype\n" + several([(kind, 0, 1)]) + b"R" + several([dtype]) + b"b"
    empty = b"cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\n" + several([0]) + b"\x85U\x01b\x87R"
    state = b"(" + several([1, value.shape if shape is None else shape]) + made + several([False, value.tobytes()])
    return empty + state + b"tb"


def damaged(chance: random.Random) -> bytes:
    """A damaged or forged pickle of a batch of CIFAR-100."""
    batch: dict[bytes, Any] = {b"fine_labels": [chance.randrange(100) for _ in range(2)], b"batch_label": b"x"}
    batch |= {b"data": np.full((2, 3072), chance.randrange(256), np.uint8)}
    if chance.randrange(3):
        return _mutated(bytearray(published(batch)), chance)
    forged = {"shape": _tree(chance, 2), "dtype": tuple(_tree(chance, 2) for _ in range(chance.choice((8, 9))))}
    whole = (3, b"|", None, None, None, -1, -1, chance.choice((0, 1, 8, 27, 63, 127)))
    part = chance.choice(["shape", "dtype"])
    return published(batch, **{part: chance.choice([forged[part], whole if part == "dtype" else (2, 3072)])})


def _mutated(data: bytearray, chance: random.Random) -> bytes:
    """A pickle after one to four changes, most of them outside the pixels."""
    pixels = data.rfind(b"T\x00\x18\x00\x00")
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(max(len(data), 1)) if chance.random() < 0.1 else chance.randrange(2, pixels + 5)
        place = min(place, len(data))
        change = chance.randrange(6)
        if change == 0:
            data[place : place + 1] = bytes([chance.randrange(256)])
        elif change == 1:
            data[place : place + 1] = chance.choice(OPCODES)
        elif change == 2:
            data[place:place] = chance.choice(OPCODES)
        elif change == 3:
            number = chance.choice((-1, 0, 1, 2**31 - 1, -(2**31), 3072, 6145))
            data[place : place + 4] = struct.pack("<i", number)
        elif change == 4:
            del data[place : place + chance.randint(1, 20)]
        else:
            data[place:place] = data[max(place - chance.randint(1, 40), 0) : place]
    return bytes(data)


def _tree(chance: random.Random, depth: int) -> Any:
    """A random value: a tuple, list or dict of values, or something that states of arrays and dtypes contain."""
    kind = chance.randrange(8 if depth else 6)
    if kind < 6:
        return chance.choice((None, True, 0, 1, -1, 8, 2**31 - 1, -(2**31), b"|", b"O", b"a", b"u1", 63))
    items = [_tree(chance, depth - 1) for _ in range(chance.randrange(4))]
    return tuple(items) if kind == 6 else {b"a": tuple(items)}


def unpickling(folder: Path, seed: int) -> Attempt:
    """Attempts to read a damaged batch."""

    def attempt(i: int) -> str:
        try:
            x, y = read_cifar_batch(damaged(rng_of(seed, "pickle", i)))
        except DataError:
            return "refused"
        except Exception as error:
            return f"unclear: {type(error).__name__}: {error}"
        return "accepted" if x.shape[1:] == (3, 32, 32) and len(x) == len(y) else "undetected: shapes"

    return attempt
