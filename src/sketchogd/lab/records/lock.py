"""The lock that a process holds on the run it works on; the system releases it however the process ends."""

import contextlib
import sys
import time
from pathlib import Path

if sys.platform != "win32":
    import fcntl


def try_lock(handle: int, attempts: int = 1) -> bool:
    """Lock an open file unless another process has locked it; always True on Windows, which has no such lock."""
    if sys.platform != "win32":
        for attempt in range(attempts):
            time.sleep(0.05 if attempt else 0)
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
        return False
    return True


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock in the file `path`, which need not exist."""
    if not path.exists():
        return False
    with open(path, "a") as file:
        return not try_lock(file.fileno())
