"""Start a few gloo processes on this machine, run one function in all, and bring back what each returns.

Processes meet through a file, so that tests never fight for a port, and are killed at a hard limit, so that nothing
hangs the suite. What a worker returns is plain data and tensors.
"""

import datetime
import multiprocessing
import os
import time
import traceback
import warnings

import torch
import torch.distributed as dist

TIMEOUT = 30
"""Seconds that a collective may take."""


def _work(function, rank, size, store, results, arguments, timeout):
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=size,
            timeout=datetime.timedelta(seconds=timeout),
        )
        found = function(rank, size, *arguments)
        results.put((rank, "ok", _plain(found)))
        dist.destroy_process_group()
    except BaseException as error:
        results.put((rank, type(error).__name__, f"{error}\n{traceback.format_exc()}"))


def _plain(value):
    """Tensors as arrays: a queue sends those whole, while tensors need their sender alive."""
    if isinstance(value, torch.Tensor):
        return ("tensor", value.detach().cpu().numpy())
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _revived(value):
    if isinstance(value, list) and len(value) == 2 and value[0] == "tensor":
        return torch.from_numpy(value[1])
    if isinstance(value, tuple) and len(value) == 2 and value[0] == "tensor":
        return torch.from_numpy(value[1].copy())
    if isinstance(value, dict):
        return {key: _revived(item) for key, item in value.items()}
    return [_revived(item) for item in value] if isinstance(value, list) else value


def outcomes(function, size, tmp_path, *arguments, limit=90, timeout=TIMEOUT):
    """{rank: (status, what it returned or its error)} of all that reported within `limit` seconds."""
    context = multiprocessing.get_context("forkserver")  # torch is imported once, and no thread of pytest is copied
    context.set_forkserver_preload(["sketchogd.distributed", "torch.distributed.fsdp", "torch.distributed.checkpoint"])
    results = context.Queue()
    store = tmp_path / f"store-{time.monotonic_ns()}"
    workers = [
        context.Process(target=_work, args=(function, rank, size, str(store), results, arguments, timeout), daemon=True)
        for rank in range(size)
    ]
    for worker in workers:
        worker.start()
    found, deadline = {}, time.monotonic() + limit
    try:
        while len(found) < size and time.monotonic() < deadline:
            if results.empty():
                if not any(worker.is_alive() for worker in workers) and results.empty():
                    break
                time.sleep(0.02)
                continue
            rank, status, value = results.get(timeout=5)
            found[rank] = (status, _revived(value))
    finally:
        for worker in workers:
            worker.join(timeout=2 if len(found) == size else 0)
            if worker.is_alive():
                worker.kill()
                worker.join()
    return found


def together(function, size, tmp_path, *arguments, limit=240):
    """What each process returned, in their order; fails if one of them did."""
    found = outcomes(function, size, tmp_path, *arguments, limit=limit)
    for rank in range(size):
        assert rank in found, f"process {rank} of {size} did not finish within {limit} s; others: {found}"
    for rank in range(size):
        status, value = found[rank]
        assert status == "ok", f"process {rank} of {size}: {status}: {value}"
    return [found[rank][1] for rank in range(size)]
