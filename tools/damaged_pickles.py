"""Damaged and forged CIFAR pickles against the reader of the lab: `python -m tools.damaged_pickles --count 10000`.

Each pickle is made from a valid one: bytes are flipped, cut, repeated and replaced by opcodes and by numbers that are
lengths or sizes elsewhere, or the state of the array or of its dtype is forged. The reader runs in a process of its
own, since what is looked for is a crash. Every outcome must be "read" or "refused" (a `DataError`).
"""

import argparse
import json
import pickletools
import random
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sketchogd.lab.data.fileformats import DataError, read_cifar_batch

OPCODES = [opcode.code.encode("latin-1") for opcode in pickletools.opcodes]
SECONDS = 0.002
"""Time that the process gets per pickle, on top of a minute."""


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


def damaged(count: int, seed: int) -> Iterator[bytes]:
    """So many damaged pickles."""
    chance = random.Random(seed)
    for number in range(count):
        batch: dict[bytes, Any] = {b"fine_labels": [chance.randrange(100) for _ in range(2)], b"batch_label": b"x"}
        batch |= {b"data": np.full((2, 3072), number % 256, np.uint8)}
        if number % 3:
            yield _mutated(bytearray(published(batch)), chance)
        else:
            forged = {"shape": _tree(chance, 2), "dtype": tuple(_tree(chance, 2) for _ in range(chance.choice((8, 9))))}
            whole = (3, b"|", None, None, None, -1, -1, chance.choice((0, 1, 8, 27, 63, 127)))
            part = chance.choice(["shape", "dtype"])
            yield published(batch, **{part: chance.choice([forged[part], whole if part == "dtype" else (2, 3072)])})


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


def outcomes(count: int, seed: int) -> dict[str, int]:
    """How many damaged pickles were read, refused, or ended otherwise ("crashed", "hung" or an error's name)."""
    command = [sys.executable, "-m", "tools.damaged_pickles", "--here", "--count", str(count), "--seed", str(seed)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60 + SECONDS * count)
    except subprocess.TimeoutExpired:
        return {"hung": 1}
    if done.returncode:
        return {"crashed": 1, "exit status": done.returncode}
    found: dict[str, int] = json.loads(done.stdout)
    return found


def _outcomes_here(count: int, seed: int) -> dict[str, int]:
    found: Counter[str] = Counter({"read": 0, "refused": 0})
    for data in damaged(count, seed):
        try:
            read_cifar_batch(data)
            found["read"] += 1
        except DataError:
            found["refused"] += 1
        except Exception as error:
            found[type(error).__name__] += 1
    return dict(found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the counts as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tools.damaged_pickles", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--here", action="store_true", help="in this process, which a crash would end")
    options = parser.parse_args(arguments)
    counted = _outcomes_here if options.here else outcomes
    print(json.dumps(counted(options.count, options.seed)))


if __name__ == "__main__":
    main()
