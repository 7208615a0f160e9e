"""Ctrl-C is held back while something changes that must not be left half changed."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold an interrupt (SIGINT) back until the block has ended; a second one is let through at once.

    Inside of another such block, in a thread other than the main one, or where a program ignores the signal or handles
    it outside of Python, nothing is held back.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or isinstance(handler, _Hold) or not _in_main_thread():
        yield
        return
    hold = _Hold(handler)
    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if hold.held:
            handler(*hold.held[0])


class _Hold:
    """A handler that keeps the first interrupt, and passes later ones on."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self.handler = handler
        self.held: list[tuple[int, FrameType | None]] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.held.append((number, frame))
        if len(self.held) > 1:
            self.handler(number, frame)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
