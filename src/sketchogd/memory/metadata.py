"""What files say of memories: the form of their metadata."""

import re
from collections.abc import Mapping
from typing import Any

import torch

from .. import schema
from ..errors import StorageError
from ..sketch import REGISTRY
from ..sketch.stored import RANK, SEED

SKETCH = schema.record(
    {
        "sketch": schema.text,
        "settings": schema.anything,
        "d": schema.whole(1),
        "dtype": schema.word("float32", "float64"),
        "counters": schema.anything,
    }
)
"""A sketch; its settings and counters are checked by its own class."""


def _device(value: Any, where: str) -> None:
    """The name of a device that is there."""
    schema.text(value, where)
    if not is_device(value):
        raise schema.wrong(value, where, 'a device such as "cpu" or "cuda:0"')
    if not has_device(value):
        raise StorageError(
            f"{where} keeps the sketch on the device {value!r}, which this machine does not have. Load the memory on "
            "one that has it"
        )


def is_device(name: object) -> bool:
    """Whether this names a device that can keep a sketch.

    >>> is_device("cuda:1"), is_device("meta")
    (True, False)
    """
    return isinstance(name, str) and _DEVICE.fullmatch(name) is not None


def has_device(name: str) -> bool:
    """Whether this machine has a device of that name."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError):
        return False
    return True


_DEVICE = re.compile(r"(cpu|cuda|mps|xpu)(:\d{1,3})?")

GRADIENTS = schema.record(
    {
        "settings": schema.record(
            {
                "basis_dtype": schema.maybe(schema.word("float64", "float32", "bfloat16", "float16")),
                "offload": schema.maybe(_device),
                "power": schema.number(-100.0, 100.0),
            },
            {
                "blocks": schema.whole(1),
                "ridge": schema.number(0.0),
                "strength": schema.number(0.0),
                "anchor_dtype": schema.word("int8"),
            },
        ),
        "examples": schema.whole(),
    },
    {"tasks": schema.whole(), "sketch": SKETCH, "sketches": schema.table(SKETCH)},
    more=True,
)
"""A gradient memory."""


def _kind(value: Any, where: str) -> None:
    """The name of a sketch."""
    schema.word(*REGISTRY)(value, where)


def _rank(value: Any, where: str) -> None:
    """A rank for all layers, or one by layer name or glob."""
    (schema.table(RANK) if isinstance(value, Mapping) else RANK)(value, where)


LAYERS = schema.record(
    {
        "settings": schema.record(
            {
                "rank": _rank,
                "ridge": schema.maybe(schema.number(0.0)),
                "strength": schema.maybe(schema.number(0.0)),
                "damping": schema.number(0.0),
                "outputs": schema.flag,
                "sketch": _kind,
                "seed": SEED,
                "energy": schema.number(0.0, 1.0),
                "rest": schema.maybe(RANK),
            },
            {
                "anchor_dtype": schema.maybe(schema.word("int8", "span")),
                "curvature": schema.word("traces", "positions"),
                "apart": schema.flag,
            },
        ),
        "examples": schema.whole(),
        "tasks": schema.whole(),
        "logits": schema.whole(),
        "sketches": schema.table(SKETCH),
    },
    more=True,
)
"""A layer memory."""
