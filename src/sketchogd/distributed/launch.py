"""Joining the processes that torchrun started."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=2)
"""How long a collective may take before a process gives up on the others."""


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
