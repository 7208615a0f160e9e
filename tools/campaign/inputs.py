"""Batches that cannot be remembered: refused whole, with every tensor as it was."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sketchogd.errors import ProtectionError
from tools.campaign.attempts import refused_or
from tools.campaign.children import Attempt
from tools.campaign.subjects import MEMORIES, Subject, batch

Pair = tuple[Any, Any]


def _broken_second(x: Tensor, y: Tensor) -> Iterator[Pair]:
    yield x, y
    raise ValueError("the disk with the data is gone")


WRONG: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "fewer targets": lambda x, y: (x, y[:-1]),
    "tokens out of range": lambda x, y: (x + 100, y),
    "negative tokens": lambda x, y: (x - 50, y),
    "float tokens": lambda x, y: (x.float(), y),
    "one dimension": lambda x, y: (x[:, 0], y),
    "a text": lambda x, y: ("tokens", y),
    "a number": lambda x, y: (3, y),
    "another width": lambda x, y: (torch.randn(24, 4, 5, 5), y),
}
"""Batches for `observe`."""

ERRORS = (ValueError, TypeError, ProtectionError)

TASKS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "broken second": _broken_second,
    "wrong second": lambda x, y: [(x, y), (x, y[:-1])],
    "a number": lambda x, y: 7,
    "a dict": lambda x, y: [{"x": x}],
}
"""Tasks for `remember`; good batches before a wrong one may be kept."""


def batches(folder: Path, seed: int) -> Attempt:
    """Attempts to observe or remember what is wrong."""
    names = sorted(MEMORIES)
    cases = [("observe", name) for name in WRONG] + [("remember", name) for name in TASKS]

    def attempt(i: int) -> str:
        (how, case), name = cases[i % len(cases)], names[i // len(cases) % len(names)]
        subject = Subject(name, every=3 if i % 2 else 1, seed=i % 7)
        x, y = batch(5, 6)
        if how == "observe":
            wrong = WRONG[case](x, y)
            outcome = refused_or(subject, lambda: subject.protection.observe(*wrong), ERRORS)
        else:
            task = TASKS[case](x, y)
            outcome = refused_or(subject, lambda: subject.protection.remember(task), ERRORS)
        if case.endswith("second") and outcome is not None and outcome.startswith("changed"):
            return "refused after a good batch"
        return f"{outcome or 'undetected'} [{name}, {how} {case}]" if outcome != "refused" else outcome

    return attempt
