"""Data parallelism (DDP): every process trains on its part of each batch and remembers its part of each task.

torchrun --nproc-per-node 2 --max-restarts 1 examples/ddp.py

Weights and memory are saved after every task. If a process dies, the others stop within the timeout below; torchrun
then restarts all of them, and they continue after the last saved task. Try it with --kill-in-task 2.
"""

import argparse
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import sketchogd as so
from sketchogd.distributed import start
from sketchogd.lab import benchmark, mlp


def train(tasks, options, folder: Path, device: torch.device):
    model = DistributedDataParallel(mlp(outputs=2).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    memory = so.LayerMemory(rank=200) if options.rank is None else so.ProductSketch(options.rank)
    protection = so.protect(model, optimizer, memory=memory, every=50, shard=options.rank is not None)

    state = {"model": model.module.state_dict(), "memory": protection}
    done = [path for path in sorted(folder.glob("after-task-*")) if (path / ".metadata").exists()]
    if done:
        dcp.load(state, checkpoint_id=done[-1])
        model.module.load_state_dict(state["model"])
        say(f"resumed from {done[-1].name}, {protection.memory.examples:,} examples remembered")

    for t, task in enumerate(tasks, start=1):
        if t <= len(done):
            continue
        data = TensorDataset(task.x_train[: options.examples].to(device), task.y_train[: options.examples].to(device))
        sampler = DistributedSampler(data, seed=t)
        loader = DataLoader(data, batch_size=10 // dist.get_world_size(), sampler=sampler)
        for epoch in range(options.epochs):
            sampler.set_epoch(epoch)
            for inputs, targets in loader:
                optimizer.zero_grad()
                cross_entropy(model(inputs), targets).backward()
                optimizer.step()
            if t == options.kill_in_task and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os._exit(1)
        protection.remember(loader)  # without the examples that the sampler repeats as padding
        dcp.save({"model": model.module.state_dict(), "memory": protection}, checkpoint_id=folder / f"after-task-{t}")
    return model, protection


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10, help="epochs per task")
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--examples", type=int, default=2000, help="examples per task")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--rank", type=int, help="a sharded gradient sketch of this rank instead of a layer memory")
    parser.add_argument("--folder", type=Path, default=Path("runs/ddp"), help="where to save, and to resume from")
    parser.add_argument("--kill-in-task", type=int, help="let process 1 die in this task, at the first attempt")
    options = parser.parse_args()
    device = start(timeout=timedelta(minutes=2))  # init_process_group, with NCCL or gloo
    tasks = list(benchmark("split-mnist"))[: options.tasks]
    model, protection = train(tasks, options, options.folder, device)
    with torch.no_grad(), protection.settled():
        scores = [float((model(t.x_test.to(device)).argmax(1).cpu() == t.y_test).float().mean()) for t in tasks]
    say("accuracy " + "  ".join(f"{task.name} {score:.3f}" for task, score in zip(tasks, scores, strict=True)))
    say(f"remembered {protection.memory.examples:,} examples")
    say(str(protection.ledger()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
