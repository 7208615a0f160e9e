"""Joining the processes that torchrun started."""

import atexit
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=2)
"""How long a collective may take before a process gives up on the others."""
PAUSE = 0.3
"""Seconds that a process with gloo waits before it ends."""


def start(timeout: timedelta = TIMEOUT, device: str | None = None) -> torch.device:
    """`init_process_group` under torchrun, with NCCL on GPUs and gloo elsewhere; returns this process's device.

    `device` is "cpu" or "cuda"; by default "cuda" where there is one. A process that is gone makes collectives of the
    others fail: at once with gloo, after `timeout` with NCCL or when it hangs.
    """
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    place = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(place)
    backend = "nccl" if kind == "cuda" else "gloo"
    if backend == "gloo":
        # A thread of gloo may still hold the tensors of the last collective. If it lets go of them while Python shuts
        # down, it asks for a lock that it can no longer get, and the process aborts after its work is done; FSDP2
        # keeps that thread alive after destroy_process_group (see github.com/pytorch/pytorch/pull/179291).
        atexit.register(time.sleep, PAUSE)
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and os.environ.get("GROUP_WORLD_SIZE") == "1":
        # torchrun of torch 2.13 keeps its store when it restarts the processes, with the addresses of the dead ones in
        # it; a prefix for each attempt keeps them apart. Machines may count attempts differently: see the docs.
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.PrefixStore(
            f"attempt-{os.environ['TORCHELASTIC_RESTART_COUNT']}",
            dist.TCPStore(*address, is_master=False, timeout=timeout),
        )
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    else:
        dist.init_process_group(backend, timeout=timeout)
    return place
