"""Two processes that do not agree, or one of which fails: both say so, and none waits for ever.

`python -m tools.campaign.processes CASE RANK FILE` is one of the two.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import sketchogd as so
from sketchogd.errors import ProtectionError
from tools.campaign.children import Attempt
from tools.campaign.subjects import Tokens, batch

WAITING = 20.0
"""Seconds that a process waits for another one."""

STARTING = 280.0
"""Seconds that both have in all, most of them on a busy machine for importing torch."""

REFUSED, UNCLEAR = 3, 4
"""Exit codes: an error of ours; another one."""


def _protected(rank: int, every: int = 1, **settings: Any) -> so.Protection:
    torch.manual_seed(0)
    model = Tokens()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings.setdefault("memory", so.LayerMemory(4))
    return so.protect(model, optimizer, group=dist.group.WORLD, every=every, **settings)


def _remembered(rank: int) -> so.Protection:
    protection = _protected(rank)
    protection.remember([batch(rank)])
    return protection


def _wrong_batch(rank: int, folder: Path) -> None:
    x, y = batch(rank)
    _protected(rank).remember([(x, y), (x, y[:-1] if rank else y)])


def _killed(rank: int, folder: Path) -> None:
    protection = _protected(rank)
    if rank:
        os.kill(os.getpid(), signal.SIGKILL)
    protection.remember([batch(rank)])


def _damaged(rank: int, folder: Path) -> None:
    protection, path = _remembered(rank), folder / "m.safetensors"
    protection.save(path)
    dist.barrier()
    if rank == 0:
        path.write_bytes(path.read_bytes()[:-9])
    dist.barrier()
    protection.load(path)


CASES: dict[str, Callable[[int, Path], Any]] = {
    "other ranks": lambda rank, folder: _protected(rank, memory=so.LayerMemory(4 + rank)),
    "other seeds": lambda rank, folder: _protected(rank, memory=so.ProductSketch(4, seed=rank)),
    "other parameters": lambda rank, folder: _protected(rank, parameters=["out"] if rank else None),
    "other every": lambda rank, folder: _protected(rank, every=1 + rank),
    "no folder": lambda rank, folder: _remembered(rank).save(folder / "none" / "m.safetensors"),
    "no file": lambda rank, folder: _remembered(rank).load(folder / f"none-{rank}"),
    "damaged file": _damaged,
    "wrong batch": _wrong_batch,
    "killed": _killed,
}
"""What each of the two does; all of it must be refused in both."""


def disagreeing(folder: Path, seed: int) -> Attempt:
    """Attempts with two processes."""
    names = list(CASES)

    def attempt(i: int) -> str:
        name, place = names[i % len(names)], folder / f"processes-{i}"
        place.mkdir()
        command = [sys.executable, "-m", "tools.campaign.processes", name]
        both = [
            subprocess.Popen([*command, str(rank), str(place)], stderr=subprocess.PIPE, text=True) for rank in range(2)
        ]
        deadline, said = time.monotonic() + STARTING, []
        for process in both:
            try:
                said.append(process.communicate(timeout=max(0.1, deadline - time.monotonic()))[1])
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                said.append("no end")
        if "no end" in said:
            return f"hang: {name}"
        codes = [process.returncode for process in both]
        if -signal.SIGALRM in codes:
            return f"hang: {name}: {codes}"
        if codes[0] == REFUSED and codes[1] == (-signal.SIGKILL if name == "killed" else REFUSED):
            return "refused"
        return f"{'undetected' if 0 in codes else 'unclear'}: {name}: {codes} {said[0][-150:]}"

    return attempt


def main(name: str, rank: int, folder: Path) -> int:
    """Do a case as one of two processes."""
    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    waiting = timedelta(seconds=WAITING)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=waiting)
    signal.alarm(round(2 * WAITING))  # from here on nothing may take longer
    try:
        CASES[name](rank, folder)
    except (ValueError, OSError, ProtectionError) as error:
        print(error, file=sys.stderr)
        return REFUSED
    except Exception as error:
        print(error, file=sys.stderr)
        return UNCLEAR
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
    sys.stderr.flush()
    os._exit(code)  # without waiting for the other process
