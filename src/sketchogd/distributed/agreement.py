"""Whether all processes of a group were given the same settings; where not, every process says which differ.

Processes that disagree on how often they project, or on what they keep, take part in other collectives at other times:
training hangs until the timeout, or goes on with weights that drift apart. So the settings meet in one small all-gather
before anything else does.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch

from .group import Group

BYTES = 8192
"""Size of the message of one process: its settings as text, a long one cut and followed by its checksum."""
SHOWN = 160
"""Characters of a setting that are sent, and shown where it differs."""


def require_same(group: Group, settings: Mapping[str, Any]) -> None:
    """Raise ValueError in every process if a setting is not the same in all, with the processes that have each value.

    All processes call it, with any settings, in any order.
    """
    whole = {key: described(value) for key, value in settings.items()}
    message = json.dumps({key: _told(text) for key, text in whole.items()}).encode()
    if len(message) > BYTES:
        raise ValueError(f"the settings to compare take {len(message)} bytes of {BYTES}")
    mine = torch.tensor(list(message.ljust(BYTES)), dtype=torch.uint8)
    found = [json.loads(bytes(row.tolist())) for row in group.gather(mine[None])]
    names = dict.fromkeys(key for each in found for key in each)
    differing = [key for key in names if len({each.get(key) for each in found}) > 1]
    if differing:
        every = ((key, _around_the_difference(group.texts(whole.get(key, "unknown")))) for key in differing)
        said = "; ".join(f"{key} is {_by_process(texts)}" for key, texts in every)
        raise ValueError(
            f"all {group.size} processes must protect the same way, but {said}. Build model, optimizer and memory in "
            "every process from the same settings and seed, with the same version of sketchogd"
        )


def described(value: Any) -> str:
    """A setting as text that is the same in every process that has the same one: functions and classes by name."""
    if isinstance(value, str | int | float | bool | list | tuple | dict | None):
        return json.dumps(value, sort_keys=True, default=described, ensure_ascii=False)
    if isinstance(value, type | FunctionType | MethodType | BuiltinFunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _told(text: str) -> str:
    """The text, or its beginning with a checksum of all."""
    if len(text) <= SHOWN:
        return text
    return f"{text[:SHOWN]}… (checksum {hashlib.blake2b(text.encode(), digest_size=8).hexdigest()})"


def _around_the_difference(texts: list[str]) -> list[str]:
    """What is shown of long texts: the part from a little before the place where they differ."""
    if max(map(len, texts)) <= SHOWN:
        return texts
    alike = next((i for i, signs in enumerate(zip(*texts, strict=False)) if len(set(signs)) > 1), min(map(len, texts)))
    start = max(alike - SHOWN // 3, 0)
    parts = [text[start : start + SHOWN] + ("…" if text[start + SHOWN :] else "") for text in texts]
    return [("…" if start else "") + part for part in parts]


def _by_process(texts: list[str]) -> str:
    """
    >>> _by_process(["1", "2", "1"])
    '1 in processes 0 and 2, 2 in process 1'
    """
    groups: dict[str, list[str]] = {}
    for rank, text in enumerate(texts):
        groups.setdefault(text, []).append(str(rank))
    words = []
    for text, ranks in groups.items():
        several = f"processes {', '.join(ranks[:-1])} and {ranks[-1]}" if len(ranks) > 1 else f"process {ranks[0]}"
        words.append(f"{text} in {several}")
    return ", ".join(words)
