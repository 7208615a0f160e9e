"""One attempt: a refused operation must say why and leave everything as it was, an accepted one must go on to work."""

import warnings
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb
from typing import Any

from sketchogd.errors import ProtectionError, StorageError
from tools.campaign import subjects
from tools.campaign.subjects import Subject, batch, differing

CLEAR = (StorageError, ProtectionError, ValueError, TypeError, OSError)
"""Errors that say what is wrong: ours, and Python's for files."""


def refused_or(
    subject: Subject, operation: Callable[[], Any], clear: tuple[type[Exception], ...] = CLEAR
) -> str | None:
    """The outcome of a refused operation: "refused", "changed" or "unclear"; None where it was accepted."""
    before = subject.before()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            operation()
    except clear as error:
        if not str(error):
            return f"unclear: {type(error).__name__} without a word"
        changed = differing(before, subject.everything())
        return f"changed: {', '.join(changed[:5])} by {error}" if changed else "refused"
    except Exception as error:
        if _of_the_model(error):  # passes as it is: only the user knows what it means
            changed = differing(before, subject.everything())
            return f"changed: {', '.join(changed[:5])} by {error}" if changed else "refused"
        return f"unclear: {type(error).__name__}: {error}"
    return None


def _of_the_model(error: Exception) -> bool:
    """Whether an error came from the user's own forward pass."""
    return any(
        frame.name == "forward" and frame.filename == subjects.__file__ for frame in extract_tb(error.__traceback__)
    )


def used(subject: Subject, folder: Path) -> str:
    """Use a protection that accepted a file: steps, a batch, a task, a save; "accepted" or "later"."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            subject.train(subject.every + 1)
            subject.protection.observe(*batch(7, 3))
            subject.train(1)
            subject.protection.remember([batch(8, 4)])
            subject.train(subject.every + 1)
            subject.protection.settle()
            subject.protection.diagnostics()
            subject.protection.save(folder / "later.safetensors")
            subject.protection.load(folder / "later.safetensors")
    except Exception as error:
        return f"later: {type(error).__name__}: {error}"
    bad = [name for name, t in subject.model.named_parameters() if not bool(t.isfinite().all())]
    return f"later: {', '.join(bad)} are not finite" if bad else "accepted"
