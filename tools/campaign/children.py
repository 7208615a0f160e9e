"""Attempts in a child process: a crash of the interpreter, or a hang, is an outcome like any other."""

import json
import os
import random
import resource
import select
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LIMIT = 300.0
"""Seconds that an attempt may take."""

MEMORY = 12 << 30
"""Bytes that a child may allocate: an attempt that wants more fails, and is seen."""

Attempt = Callable[[int], str]
"""Attempt number i; its outcome, after a colon perhaps with details."""

BAD = ("unclear", "changed", "torn", "later", "undetected", "crash", "hang")
"""Outcomes that must not be: an error that is none of ours; a state changed by a refused operation; a file neither old
nor new; an accepted file that failed later; damage that was not noticed; the interpreter gone; no end in time."""


@dataclass
class Outcomes:
    """How often each outcome came, and the first bad ones."""

    counts: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def add(self, i: int, outcome: str) -> None:
        """Count the outcome of attempt i."""
        kind = outcome.partition(":")[0]
        self.counts[kind] += 1
        if kind in BAD and len(self.bad) < 20:
            self.bad.append(f"{i}: {outcome}")

    def plain(self) -> dict[str, Any]:
        """For JSON: all bad outcomes are named, also those that did not come."""
        n = sum(self.counts.values())
        return {"attempts": n, **dict.fromkeys(BAD, 0), **dict(sorted(self.counts.items())), "first bad": self.bad}


def rng_of(seed: int, part: str, i: int) -> random.Random:
    """The random numbers of attempt i: they depend on nothing else."""
    return random.Random(f"{seed}/{part}/{i}")


def attempts(make: Callable[[], Attempt], n: int) -> Outcomes:
    """n attempts in children; `make` is called in each child. After a crash or a hang the next child goes on."""
    found, done = Outcomes(), 0
    while done < n:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _work(make, done, n, writer)
        os.close(writer)
        done = _collect(reader, pid, done, found)
    return found


def _work(make: Callable[[], Attempt], first: int, n: int, writer: int) -> None:
    """In the child: attempt after attempt, a line each."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        attempt = make()
        for i in range(first, n):
            outcome = attempt(i)
            os.write(writer, (json.dumps([i, outcome[:300]]) + "\n").encode())
        code = 0
    finally:
        os._exit(code)


def _collect(reader: int, pid: int, done: int, found: Outcomes) -> int:
    """Read outcomes until the child ends or hangs; returns the number of the next attempt."""
    text, started = b"", time.monotonic()
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, started + LIMIT - time.monotonic()))
        if not ready:
            os.kill(pid, signal.SIGKILL)
            found.add(done, "hang")
            done += 1
            break
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            break
        *lines, text = (text + chunk).split(b"\n")
        for line in lines:
            i, outcome = json.loads(line)
            found.add(i, outcome)
            done, started = i + 1, time.monotonic()
    os.close(reader)
    status = os.waitpid(pid, 0)[1]
    if ready and status != 0:
        found.add(done, f"crash: status {status}")
        done += 1
    return done
