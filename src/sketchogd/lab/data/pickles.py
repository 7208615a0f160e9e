"""The pickles of CIFAR's python version, read without unpickling.

The files were written by Python 2 with protocol 2 and hold a dict of byte strings, lists and one array of unsigned
bytes. `read` interprets the opcodes that this takes and no others. Names in the file are compared with those of numpy's
arrays and never looked up, an array is made from its bytes after its shape was compared with their number, and nothing
in a file can call a function or set the state of an object. What is kept in memory is bounded by the length of the
file, and no message shows what a file says, since a small file can describe a large tree.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

PROTOCOL = b"\x80\x02"


class PickleError(ValueError):
    """The bytes are not a pickle of the published form."""


@dataclass(frozen=True)
class _Name:
    """A name that the file mentions; it stands for nothing."""

    module: bytes
    name: bytes


@dataclass(eq=False)
class _Array:
    """An array whose contents come with a later opcode."""

    contents: np.ndarray | None = None


_RECONSTRUCT = _Name(b"numpy.core.multiarray", b"_reconstruct")
_NDARRAY = _Name(b"numpy", b"ndarray")
_DTYPE = _Name(b"numpy", b"dtype")
_BYTE = object()
"""Stands for the dtype of unsigned bytes, the only one there is."""

_EMPTY_ARRAY = (_NDARRAY, (0,), b"b")


def read(data: bytes) -> dict[bytes, Any]:
    """The dict that a file holds: its values are bytes, ints, lists, tuples, None, dicts and arrays of unsigned bytes.

    Raises:
        PickleError: an opcode, a name or an array is not of the published form, or the bytes end too early.
    """
    if data[:2] != PROTOCOL:
        raise PickleError(f"expected a pickle of protocol 2, found {data[:2].hex() or 'nothing'!r}")
    found = _Machine(data, len(PROTOCOL)).run()
    if not isinstance(found, dict):
        raise PickleError("expected a dict")
    return {key: value.contents if isinstance(value, _Array) else value for key, value in found.items()}


class _Machine:
    """The stack, the marks and the memo of a pickle that is read."""

    def __init__(self, data: bytes, place: int) -> None:
        self.data, self.place = data, place
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """What is on the stack at the end of the file."""
        while True:
            opcode = self.take(1)
            if opcode == b".":
                break
            action = _ACTIONS.get(opcode)
            if action is None:
                raise PickleError(f"refused: opcode {opcode.hex()!r} at byte {self.place - 1}")
            action(self)
        if len(self.stack) != 1 or self.marks or self.place != len(self.data):
            raise PickleError("expected one object and nothing after it")
        return self.stack[0]

    # ---------------------------------------------------------------- bytes

    def take(self, count: int) -> bytes:
        """The next bytes of the file."""
        if not 0 <= count <= len(self.data) - self.place:
            raise PickleError(f"cut off, or a wrong length, at byte {self.place}")
        self.place += count
        return self.data[self.place - count : self.place]

    def number(self, width: int, signed: bool = False) -> int:
        """The next number, of so many bytes."""
        return int.from_bytes(self.take(width), "little", signed=signed)

    def line(self) -> bytes:
        """The bytes up to the next line feed; names are short."""
        end = self.data.find(b"\n", self.place, self.place + 64)
        if end < 0:
            raise PickleError(f"expected a name at byte {self.place}")
        return self.take(end + 1 - self.place)[:-1]

    # ---------------------------------------------------------------- the stack

    def pop(self) -> Any:
        """The top of the stack, taken off; never past the last mark."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise PickleError(f"nothing to take at byte {self.place}")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        """The top of the stack, left on it, which must be of a kind."""
        value = self.pop()
        self.stack.append(value)
        if not isinstance(value, kind):
            raise PickleError(f"expected a {kind.__name__} at byte {self.place}")
        return value

    def since_mark(self) -> list[Any]:
        """Everything above the last mark, taken off."""
        if not self.marks:
            raise PickleError(f"nothing was marked at byte {self.place}")
        start = self.marks.pop()
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    # ---------------------------------------------------------------- opcodes

    def mark(self) -> None:
        self.marks.append(len(self.stack))

    def put(self, width: int) -> None:
        self.memo[self.number(width)] = self.top(object)

    def get(self, width: int) -> None:
        number = self.number(width)
        if number not in self.memo:
            raise PickleError(f"nothing was kept under the number asked for at byte {self.place}")
        self.stack.append(self.memo[number])

    def extend(self, items: list[Any]) -> None:
        self.top(list).extend(items)

    def update(self, items: list[Any]) -> None:
        if len(items) % 2 or not all(type(key) is bytes for key in items[::2]):
            raise PickleError(f"expected keys that are byte strings at byte {self.place}")
        self.top(dict).update(zip(items[::2], items[1::2], strict=True))

    def tuple(self, items: list[Any]) -> None:
        self.stack.append(tuple(items))

    def last(self, count: int) -> list[Any]:
        """The last so many objects, taken off."""
        return [self.pop() for _ in range(count)][::-1]

    def name(self) -> None:
        found = _Name(self.line(), self.line())
        if found not in (_RECONSTRUCT, _NDARRAY, _DTYPE):
            raise PickleError(f"refused: a name other than those of numpy's arrays at byte {self.place}")
        self.stack.append(found)

    def reduce(self) -> None:
        name, arguments = self.last(2)
        if _is(name, _RECONSTRUCT) and _is(arguments, _EMPTY_ARRAY):
            self.stack.append(_Array())
        elif _is(name, _DTYPE) and _plain(arguments) and arguments[:1] == (b"u1",):
            self.stack.append(_BYTE)
        else:
            raise PickleError(f"an array of unsigned bytes ('u1') is expected at byte {self.place}")

    def build(self) -> None:
        state, built = self.pop(), self.top(object)
        if isinstance(built, _Array) and built.contents is None:
            built.contents = _contents(state)
        elif built is not _BYTE or not _plain(state):  # byte order and such, of which bytes have none
            raise PickleError(f"an array of unsigned bytes ('u1') is expected at byte {self.place}")


def _is(value: Any, expected: Any) -> bool:
    """Whether a value is equal to an expected one of the same type; only tuples are looked into."""
    if type(value) is not type(expected):
        return False
    if isinstance(expected, tuple):
        return len(value) == len(expected) and all(map(_is, value, expected))
    return bool(value == expected)


def _plain(value: Any) -> bool:
    """Whether a value is a tuple of constants, numbers and byte strings."""
    return type(value) is tuple and all(type(item) in (bytes, int, bool, type(None)) for item in value)


def _contents(state: Any) -> np.ndarray:
    """The array of a state (version, shape, dtype, whether columns come first, bytes)."""
    if type(state) is not tuple or len(state) != 5 or not (_is(state[0], 1) and state[2] is _BYTE):
        raise PickleError("the state of an array is not that of unsigned bytes")
    _, shape, _, by_columns, content = state
    if type(content) is not bytes or type(shape) is not tuple or len(shape) != 2:
        raise PickleError("expected an array of two dimensions with its bytes")
    if not all(type(size) is int and size >= 0 for size in shape) or shape[0] * shape[1] != len(content):
        raise PickleError(f"the shape of an array does not fit its {len(content)} bytes")
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if by_columns is True else "C")


def _push(value: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(value(machine))


_ACTIONS: dict[bytes, Callable[[_Machine], None]] = {
    b"N": _push(lambda machine: None),
    b"\x88": _push(lambda machine: True),
    b"\x89": _push(lambda machine: False),
    b"K": _push(lambda machine: machine.number(1)),
    b"M": _push(lambda machine: machine.number(2)),
    b"J": _push(lambda machine: machine.number(4, signed=True)),
    b"\x8a": _push(lambda machine: machine.number(machine.number(1), signed=True)),
    b"U": _push(lambda machine: machine.take(machine.number(1))),
    b"T": _push(lambda machine: machine.take(machine.number(4, signed=True))),
    b"]": _push(lambda machine: []),
    b"}": _push(lambda machine: {}),
    b")": _push(lambda machine: ()),
    b"(": _Machine.mark,
    b"q": lambda machine: machine.put(1),
    b"r": lambda machine: machine.put(4),
    b"h": lambda machine: machine.get(1),
    b"j": lambda machine: machine.get(4),
    b"a": lambda machine: machine.extend([machine.pop()]),
    b"e": lambda machine: machine.extend(machine.since_mark()),
    b"s": lambda machine: machine.update(machine.last(2)),
    b"u": lambda machine: machine.update(machine.since_mark()),
    b"t": lambda machine: machine.tuple(machine.since_mark()),
    b"\x85": lambda machine: machine.tuple(machine.last(1)),
    b"\x86": lambda machine: machine.tuple(machine.last(2)),
    b"\x87": lambda machine: machine.tuple(machine.last(3)),
    b"c": _Machine.name,
    b"R": _Machine.reduce,
    b"b": _Machine.build,
}
"""What Python 2 wrote: constants, numbers, byte strings, containers, the memo, and the making of an array."""
