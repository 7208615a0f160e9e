"""Initialisation of the process group under torchrun."""

import atexit
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=2)
"""How long a process waits for the others in a collective before it raises an error."""
PAUSE = 0.3
"""Seconds that a process with gloo waits before it exits."""


def start(timeout: timedelta = TIMEOUT, device: str | None = None) -> torch.device:
    """Initialise the default process group under torchrun; returns this process's device.

    The backend is NCCL on GPUs and gloo elsewhere. If a process dies, the collectives of the others fail: at once with
    gloo, after `timeout` with NCCL. If it hangs, they fail after `timeout`.

    Args:
        timeout: Longest duration of a collective.
        device: "cpu" or "cuda"; by default "cuda" if available.
    """
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    place = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(place)
    backend = "nccl" if kind == "cuda" else "gloo"
    if backend == "gloo":
        # A gloo thread may still hold the tensors of the last collective. If it releases them while Python shuts down,
        # it requests a lock that is no longer available, and the process aborts although its work is done. FSDP2 keeps
        # that thread alive after destroy_process_group (see github.com/pytorch/pytorch/pull/179291).
        atexit.register(time.sleep, PAUSE)
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and os.environ.get("GROUP_WORLD_SIZE") == "1":
        # torchrun of torch 2.13 keeps its store across restarts, with the addresses of dead processes in it; a prefix
        # per attempt separates them. On one machine only, since machines may count attempts differently: see the docs.
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
